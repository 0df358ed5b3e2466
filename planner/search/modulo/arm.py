"""One line of decisions under annealing: its case, its best decisions, and their times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...basics import drop_stale
from ..jit import NEVER, SOURCES
from . import held, kernel, passes, tables
from .anneal import anneal
from .kernel import times
from .tables import EARLY, END, FRONT, HALVED, POLICY, REAR, ROWS, TIMES, Case, Floats, Ints, Work, scratch

_GOLDEN = 0x9E3779B97F4A7C15

drop_stale((anneal, times), (tables, passes, held, kernel, *SOURCES))


@dataclass(frozen=True)
class Allowed:
    """What decisions may be: stash choices, and whether a stage may have two devices."""

    menu: tuple[int, ...]
    apart: bool


class Heat(NamedTuple):
    """How an annealing accepts: its first and last temperature, as shares of what it minimises, and how much evenness
    counts in that (`anneal`)."""

    hot: float
    cold: float
    even: float = 0.0


@dataclass(eq=False)
class Arm:
    """Decisions [ROWS, stages at most] with their own random numbers; the first `count` stages are in use.

    slack [F, B, EARLY; stages]: periods by which a pass lies further out than it must, and EARLY. lowered: bytes taken
    off each device's limit. cap_s: no longer period is of use. period_s: the least that the decisions fit at; above
    cap_s: they do not.
    """

    case: Case
    dec: Ints
    count: int
    cap_s: float
    seed: int
    slack: Floats = field(init=False)
    lowered: Floats = field(init=False)
    period_s: float = NEVER
    work: Work = field(init=False)
    state: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.slack = np.zeros((EARLY + 1, self.dec.shape[1]))
        self.slack[EARLY] = 0.5
        self.lowered = np.zeros(len(self.case.speed))
        self.work = scratch(self.case, self.dec.shape[1])
        self.state = np.array([(self.seed + 1) * _GOLDEN % 2**64 | 1], dtype=np.uint64)

    @classmethod
    def of(
        cls, case: Case, stages: list[tuple[int, int, int, int]], most: int, cap_s: float, seed: int
    ) -> Arm:  # fmt: skip
        """Of stages (end, forward device, backward device, stash choice), `most` of them at the most."""
        dec = np.zeros((ROWS, max(most, len(stages))), dtype=np.int64)
        dec[HALVED] = 1
        for s, (end, front, rear, policy) in enumerate(stages):
            dec[END, s], dec[FRONT, s], dec[REAR, s], dec[POLICY, s] = end, front, rear, policy
        return cls(case, dec, len(stages), cap_s, seed)

    @property
    def stages(self) -> list[tuple[int, int, int, int]]:
        """Of every stage its end, devices and stash choice."""
        rows = self.dec[[END, FRONT, REAR, POLICY], : self.count].T.tolist()
        return [(end, front, rear, policy) for end, front, rear, policy in rows]

    def evaluate(self, allowed: Allowed) -> float:
        """The period of the decisions as they are."""
        self.improve(allowed, 0, Heat(1.0, 1.0), np.zeros(1, dtype=np.int64))
        return self.period_s

    def improve(self, allowed: Allowed, moves: int, heat: Heat, stop: Ints) -> None:
        """One annealing from the decisions as they are, to the best ones found."""
        size = np.array([self.count], dtype=np.int64)
        self.period_s = float(
            anneal(
                self.case, self.work, self.dec, self.slack, size, self.lowered,
                np.array(allowed.menu, dtype=np.int64), allowed.apart, self.cap_s, moves, *heat,
                self.state, stop,
            )
        )  # fmt: skip
        self.count = int(size[0])

    def times(self) -> Floats | None:
        """Of the decisions at their period [TIMES, stages]; None where they do not fit at it."""
        found = np.zeros((TIMES, self.count))
        given = self.case, self.dec, self.slack, self.lowered, self.count, self.period_s, self.work, found
        return found if self.period_s <= self.cap_s and times(*given) else None

    def lower(self, over: list[int]) -> None:
        """Takes bytes off the limits, for what the timetable leaves out."""
        self.lowered = self.lowered + np.array(over, dtype=np.float64)

    def copy(self, seed: int, cap_s: float) -> Arm:
        """The same decisions with other random numbers and another cap."""
        found = Arm(self.case, self.dec.copy(), self.count, cap_s, seed)
        found.slack, found.lowered = self.slack.copy(), self.lowered.copy()
        return found
