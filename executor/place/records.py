"""When an op ran."""

from __future__ import annotations

from dataclasses import dataclass

from ...planner.plan import Op


@dataclass
class OpRecord:
    """When an op ran, in seconds since the step's start; messages end when they are known to be complete.

    Attributes:
        waited_s: seconds the rank was blocked before or in this op.
        moved_bytes: what it sends, receives, copies or reduces.
        live_bytes, peak_bytes: on the device at its start, and the most during it; -1 in a step without tracking.
    """

    op: Op
    start_s: float
    end_s: float
    waited_s: float = 0.0
    moved_bytes: int = 0
    live_bytes: int = -1
    peak_bytes: int = -1
