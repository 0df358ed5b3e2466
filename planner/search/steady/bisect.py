"""The least period at which a programme has a solution, by bisection."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from ...basics import OutOfTime
from ..common import TOLERANCE
from .programme import Programme, Stage


@dataclass(frozen=True)
class Least:
    """No solution has a period of `below_s` or less; these stages have one of `period_s`."""

    below_s: float
    period_s: float
    stages: tuple[Stage, ...]


def least_period(
    programme: Programme,
    below_s: float,
    cap_s: float,
    deadline: float = math.inf,
    close: float = TOLERANCE.same,
) -> Least | None:
    """The least period above `below_s`, which none goes below, and at most `cap_s`; None where there is none.

    It is found to a share of `close`. Raises OutOfTime at `deadline` (of time.monotonic()).
    """

    def solve(period: float) -> tuple[Stage, ...] | None:
        if time.monotonic() >= deadline:
            raise OutOfTime("no time is left")
        return programme.solve(period)

    high = min(cap_s, programme.serial_s)
    if high < below_s:
        return None
    stages = solve(high)
    if stages is None:
        return None
    low = min(below_s, high)
    first = max(low, 1e-300) * (1 + close)
    if first < high:
        found = solve(first)
        if found is not None:
            return Least(low, first, found)
        low = first
    while high > low * (1 + close):
        middle = (low + high) / 2
        found = solve(middle)
        if found is None:
            low = middle
        else:
            high, stages = middle, found
    return Least(low, high, stages)
