"""One structure and its best block so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...basics import drop_stale
from ...graph import Candidate
from ...plan import Op
from ..common import BLOCK
from ..jit import SOURCES
from . import kernel, tables
from .cases import case_of, compute_orders
from .coarse import coarse, in_legs
from .kernel import NEVER, RULES
from .tables import Case, Floats, Ints, Work, scratch
from .walk import improve

_GOLDEN = 0x9E3779B97F4A7C15

drop_stale((improve,), (tables, kernel, *SOURCES))


@dataclass(eq=False)
class Block:
    """A structure that keeps its stashes, and passes of `together` micro-batches of every pipeline in every period.

    whole: stages whose backwards are not split. few: micro-batches that are scheduled, in all. least_s: no order of the
    candidate takes less. step_s: of the block with all micro-batches, a guess where few are not all; NEVER without one.
    tried: blocks on few devices that were made of it.
    """

    candidate: Candidate
    whole: frozenset[int]
    few: int
    seed: int
    least_s: float = 0.0
    together: int = 1
    less: tuple[int, ...] = ()
    step_s: float = NEVER
    tried: int = 0
    pauses: Floats = field(init=False)
    rules: Floats = field(init=False)
    case: Case = field(init=False)
    state: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        passes = self.together * len(self.candidate.pipelines)
        self.case = case_of(self.candidate, self.whole, _shares(self.candidate, self.few), self.less)
        self.pauses = np.zeros((passes, 2 * len(self.candidate.stages)))
        self.rules = np.ones(RULES)
        self.state = np.array([(self.seed + 1) * _GOLDEN % 2**64 | 1], dtype=np.uint64)

    @property
    def ops(self) -> int:
        """Ops that one schedule of it runs."""
        return 3 * int(self.case.batches.sum()) * len(self.case.takes) // (2 * len(self.candidate.pipelines))

    @property
    def more(self) -> int:
        """Micro-batches that are not scheduled."""
        return self.candidate.problem.workload.micro_batches - self.few

    def improve(self, tries: int, moves: int, hot: float, stop: Ints) -> None:
        """So many blocks at random, then annealing of the best one."""
        self._improve(scratch(self.case, len(self.pauses)), tries, moves, hot, stop)

    def _improve(self, work: Work, tries: int, moves: int, hot: float, stop: Ints) -> None:
        given = self.case, work, self.pauses, self.rules, self.more, tries, moves
        self.step_s = float(improve(*given, hot, BLOCK.cold, self.state, stop))

    def orders(self) -> list[list[Op]] | None:
        """Compute orders of the block; None where it gets stuck. Sets the step to theirs."""
        work = scratch(self.case, len(self.pauses))
        self._improve(work, 0, 0, 1.0, np.zeros(1, dtype=np.int64))
        return compute_orders(self.candidate, self.case, work, self.whole) if self.step_s < NEVER else None

    def again(self, number: int, together: int, few: int) -> Block:
        """The same with other random numbers: so many micro-batches of every pipeline in a period, `few` in all."""
        other = replace(self, seed=self.seed + 104729 * (number + 1), together=together, few=few)
        other.pauses[:] = np.tile(self.pauses, (together // self.together or 1, 1))[: len(other.pauses)]
        other.rules[:] = self.rules
        other.step_s = self.step_s if (together, few) == (self.together, self.few) else NEVER
        return other

    @property
    def in_legs(self) -> bool:
        """Whether it can be had on fewer devices (see `coarse`)."""
        return in_legs(self.case)

    def on_few(self, devices: int) -> Block:
        """The structure on so many devices, of as many times fewer micro-batches; every time other random numbers."""
        self.tried += 1
        found = replace(self, seed=self.seed + 1_299_709 * self.tried, step_s=NEVER)
        found.case = coarse(self.case, devices)
        found.pauses = np.zeros((len(found.pauses), int(found.case.legs[-1])))
        return found

    def follow(self, few: Block, stop: Ints) -> None:
        """Takes the pauses that it has on few devices, equal on every part of the way, where that makes it shorter."""
        pauses, rules, step_s = self.pauses.copy(), self.rules.copy(), self.step_s
        legs = zip(self.case.legs, self.case.legs[1:], few.case.legs, few.case.legs[1:], strict=False)
        for low, high, first, last in legs:
            self.pauses[:, low] = few.pauses[:, first]
            self.pauses[:, low + 1 : high] = few.pauses[:, first + 1 : last].mean(axis=1)[:, None]
        self.rules[:] = few.rules
        self.improve(0, 0, 1.0, stop)
        if self.step_s >= step_s:
            self.pauses[:], self.rules[:], self.step_s = pauses, rules, step_s

    def anew(self, number: int) -> Block:
        """The structure alone, with other random numbers: nothing is known of its blocks."""
        return replace(self, seed=self.seed + 104729 * (number + 1), step_s=NEVER)

    def complete(self, less: tuple[int, ...] = ()) -> Block:
        """The same with all micro-batches, and so many bytes less on every device."""
        found = replace(self, few=self.few + self.more, less=less)
        found.pauses[:], found.rules[:] = self.pauses, self.rules
        return found


def _shares(candidate: Candidate, few: int) -> list[int]:
    """Micro-batches of every pipeline, `few` in all, shared out as they are."""
    counts = [len(pipeline.micro_batches) for pipeline in candidate.pipelines]
    taken = [count * few // sum(counts) for count in counts]
    for k in range(few - sum(taken)):
        taken[k % len(taken)] += 1
    return taken
