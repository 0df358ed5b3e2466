"""What ops take, where the orders of a layout depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 1e-9
"""Share of seconds or bytes that sums of floats may be off."""


@dataclass(frozen=True, eq=False)
class Timing:
    """Costs that a layout's orders are made for: seconds of every stage on its device, and bytes.

    Attributes:
        forward_s, input_s, weight_s: F, I and W of one micro-batch; I is the whole backward and W takes nothing where
            a backward cannot be split.
        arrival_s: seconds from stage s's device to the next one's, and back; one less than stages.
        stash_bytes, pending_bytes: what F leaves until I, and what of it I leaves until W.
        room_bytes: what stashes may take of every device.
    """

    forward_s: Sequence[float]
    input_s: Sequence[float]
    weight_s: Sequence[float]
    arrival_s: Sequence[float]
    stash_bytes: Sequence[float]
    pending_bytes: Sequence[float]
    room_bytes: Sequence[float]

    @classmethod
    def unit(cls, stages: int, devices: int, most: int) -> Timing:
        """Every op takes one unit of time, messages none; a device may hold `most` stashes, whole until their W."""
        one = (1.0,) * stages
        return cls(one, one, one, (0.0,) * (stages - 1), one, one, (float(most),) * devices)
