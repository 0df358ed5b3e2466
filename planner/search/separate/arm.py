"""One line of decisions under annealing: its case, its best decisions, and the plan that they lead to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...basics import PlanError, drop_stale
from ...lower import assemble
from ...plan import Plan, Problem
from ...problem import StageCosts
from ..common import PLACE
from ..jit import NEVER, SOURCES
from . import dispatch as dispatching
from . import events, tables
from . import moves as moving
from .anneal import anneal, value_of
from .case import Stages
from .dispatch import dispatch
from .lists import candidate_of, op_lists
from .tables import HALVES, Case, Floats, Ints, scratch

_GOLDEN = 0x9E3779B97F4A7C15

drop_stale((anneal, dispatch), (tables, events, moving, dispatching, *SOURCES))


@dataclass(frozen=True)
class Allowed:
    """What decisions may be: stash choices, and whether backwards may be split."""

    menu: tuple[int, ...]
    split: bool


@dataclass(eq=False)
class Arm:
    """Decisions with their own random numbers. seconds: their value, NEVER where they do not run."""

    problem: Problem
    stages: Stages
    case: Case
    dec: Ints
    extra: Floats
    seed: int
    lag: Floats = field(init=False)
    patience: Floats = field(init=False)
    lowered: Ints = field(init=False)
    seconds: float = NEVER
    rounds: int = 0
    state: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.lag = np.zeros((3, len(self.stages)))
        self.patience = np.zeros(len(self.problem.cluster))
        self.lowered = np.zeros(len(self.problem.cluster), dtype=np.int64)
        self.reseed()

    def reseed(self) -> None:
        """Begins with the random numbers of the seed."""
        self.state = np.array([(self.seed + 1) * _GOLDEN % 2**64 | 1], dtype=np.uint64)

    @property
    def ops(self) -> int:
        """Ops of a run: what one evaluation costs."""
        return int(self.case.batches * (2 * len(self.stages) + self.dec[HALVES].sum()))

    @property
    def decided(self) -> Hashable:
        """What tells its decisions from others."""
        return self.stages, self.dec.tobytes(), self.extra.tobytes(), self.lag.tobytes(), self.patience.tobytes()

    def evaluate(self) -> float:
        """The value of the decisions as they are."""
        given = self.case, self.dec, self.lag, self.extra, self.patience, self.lowered
        self.seconds = float(value_of(*given, scratch(self.case), NEVER))
        return self.seconds

    def improve(self, allowed: Allowed, moves: int, target_s: float, stop: Ints) -> None:
        """One annealing from the best decisions; hot at first, cooler in later rounds."""
        hot = PLACE.hot[min(self.rounds, len(PLACE.hot) - 1)]
        self.rounds += 1
        self.seconds = float(
            anneal(
                self.case, scratch(self.case), self.dec, self.lag, self.extra, self.patience, self.lowered,
                np.array(allowed.menu, dtype=np.int64), self.separable & allowed.split, moves, hot, hot * PLACE.cooled,
                target_s, self.state, stop,
            )
        )  # fmt: skip

    @property
    def separable(self) -> NDArray[np.bool_]:
        """By stage, whether its backward can be split."""
        return np.array(StageCosts.of(self.problem.model, self.stages).separable, dtype=np.bool_)

    def plan(self) -> Plan | None:
        """The complete plan of the decisions; None where they do not run."""
        given = self.case, self.dec, self.lag, self.extra, self.patience, self.lowered
        work = scratch(self.case)
        if dispatch(*given, work, NEVER) >= NEVER:
            return None
        try:
            return assemble(candidate_of(self.problem, self.stages, self.dec), op_lists(self.dec, work), "search")
        except PlanError:
            return None

    def lower(self, over: list[int]) -> None:
        """Takes bytes off the limits, for what the dispatcher leaves out."""
        self.lowered = self.lowered + np.array(over, dtype=np.int64)
        self.evaluate()

    def copy(self, seed: int) -> Arm:
        """The same decisions with other random numbers."""
        found = replace(self, dec=self.dec.copy(), extra=self.extra.copy(), seed=seed)
        found.lag, found.patience, found.lowered = self.lag.copy(), self.patience.copy(), self.lowered.copy()
        return found
