"""Solutions that were built: each simulated once, with what it exceeds; and the solutions next to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...graph import KEEP, RECOMPUTE
from ...partition import QUARTERS, cut
from ...plan import Plan
from ..common import TOLERANCE
from .alternatives import Alternative
from .build import Excess, built, excess_for_long, first_that_fits, sloping, ways_to_leave, with_period
from .programme import Stage

Stages = tuple[Stage, ...]


@dataclass(frozen=True)
class Tried:
    """A solution as a plan. excess: of its devices, and of the hosts."""

    alternative: Alternative
    stages: Stages
    plan: Plan
    excess: Excess

    @property
    def period_s(self) -> float:
        """Simulated seconds a micro-batch; of the run as a whole where the plan does not fit."""
        forecast = self.plan.forecast
        assert forecast is not None
        return forecast.step_s / self.plan.problem.workload.micro_batches if self.excess.total else forecast.objective_s

    @property
    def score(self) -> tuple[int, float]:
        """Missing bytes first, then the period."""
        return self.excess.total, self.period_s

    def may_lose_to(self, stages: Stages) -> bool:
        """Whether other stages of the alternative may come to a better score: False where a bound says that not."""
        least_s = self.period_s * (1 - TOLERANCE.same)
        return self.excess.total > 0 or self.alternative.allows(sloping(stages), least_s)

    @property
    def over(self) -> tuple[int, ...]:
        """Bytes missing at every place of the pipeline."""
        groups = self.alternative.split.groups
        return tuple(max(self.excess.devices[g[d]] for g in groups) for d in self.alternative.order)


class Pool:
    """Everything simulated of one problem's alternatives."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, Stages], Tried | None] = {}
        self._alternatives: dict[int, Alternative] = {}

    def __len__(self) -> int:
        return len(self.known)

    def tried(
        self, alternative: Alternative, stages: Sequence[Stage], source: str = "search", whole: bool = True
    ) -> Tried | None:
        """The solution as the best plan of its ways to leave room for copies; None where it does not run.

        `whole`: whether all that is missing is of interest (`excess_for_long`).
        """
        key = id(alternative), tuple(stages)
        self._alternatives[key[0]] = alternative  # no other one gets its id
        if key not in self.known:
            built = (self._built(alternative, key[1], source, way, whole) for way in ways_to_leave(stages))
            self.known[key] = first_that_fits(built)
        return self.known[key]

    def _built(
        self, alternative: Alternative, stages: Stages, source: str, leaving: int | None, whole: bool
    ) -> Tried | None:  # fmt: skip
        plan = built(alternative.split, alternative.order, stages, alternative.method, source, leaving)
        if plan is None:
            return None
        excess = excess_for_long(plan, whole=whole)
        return Tried(alternative, stages, plan if excess.total else with_period(plan), excess)


def alternating(alternative: Alternative) -> Iterator[Stages]:
    """One forward, one backward on the cut that balances best, from a full pipeline to one micro-batch at a time.

    Stashes are kept, then recomputed where they may be, so that of those that fit the fastest tends to come first.
    """
    chain, order, count = alternative.split.chain, alternative.order, len(alternative.order)
    for most in dict.fromkeys((count, (count + 1) // 2, 2, 1)):
        flights = [min(most, count - k) for k in range(count)]
        found = cut(chain, order, flights) or cut(chain, order, [0] * count, buffers=0)
        if found is None:
            return
        ends = (0, *found, len(chain))
        for stash in (KEEP, RECOMPUTE):
            if stash in alternative.stashes:
                yield tuple(Stage(ends[k], ends[k + 1], stash, flights[k]) for k in range(count))


def neighbours(alternative: Alternative, stages: Stages) -> Iterator[Stages]:
    """Solutions that differ in one stash policy or its share, one number in flight, or one layer between two stages."""
    for k, stage in enumerate(stages):
        for stash in alternative.stashes:
            if stash != stage.stash:
                yield _with(stages, k, replace(stage, stash=stash, quarters=QUARTERS))
        for quarters in (stage.quarters - 1, stage.quarters + 1) if stage.stash != KEEP else ():
            if 1 <= quarters <= QUARTERS:
                yield _with(stages, k, replace(stage, quarters=quarters))
        for more in (1, -1):
            if stage.in_flight + more >= 1:
                yield _with(stages, k, replace(stage, in_flight=stage.in_flight + more))
    for k, (a, b) in enumerate(zip(stages, stages[1:], strict=False)):
        for moved in (a.end - 1, a.end + 1):
            if a.first < moved < b.end:
                yield _with(_with(stages, k, replace(a, end=moved)), k + 1, replace(b, first=moved))


def _with(stages: Stages, k: int, stage: Stage) -> Stages:
    return (*stages[:k], stage, *stages[k + 1 :])
