"""Memory that was promised and not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...planner.plan import Op
from .reports import RankReport


@dataclass(frozen=True)
class Excess:
    """A device that held more than was planned, in bytes, and the op in which it did."""

    device: int
    measured_bytes: int
    planned_bytes: int
    op: Op | None

    def __str__(self) -> str:
        """In one line."""
        when = "" if self.op is None else f" in {self.op}"
        return f"device {self.device} held {self.measured_bytes} bytes{when}, {self.planned_bytes} were planned"


def excesses(reports: Sequence[RankReport], planned: Sequence[int]) -> tuple[Excess, ...]:
    """The devices above their planned peaks, by what every rank reports."""
    return tuple(
        Excess(report.rank, report.peak_bytes, most, report.peak_op)
        for report, most in zip(reports, planned, strict=True)
        if report.peak_bytes > most
    )
