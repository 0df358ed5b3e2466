"""Solutions that were built: each simulated once, with what it exceeds; and the solutions next to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...graph import KEEP, RECOMPUTE, stash_policy
from ...partition import QUARTERS, cut
from ...plan import Plan
from .alternatives import Alternative
from .build import LATE, NEVER, SOON, Excess, built, excess_for_long, with_period
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

    @property
    def over(self) -> tuple[int, ...]:
        """Bytes missing at every place of the pipeline."""
        groups = self.alternative.split.groups
        return tuple(max(self.excess.devices[g[d]] for g in groups) for d in self.alternative.order)


class Pool:
    """Everything simulated of one problem's alternatives."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, Stages], Tried | None] = {}

    def __len__(self) -> int:
        return len(self.known)

    def tried(self, alternative: Alternative, stages: Sequence[Stage], source: str = "search") -> Tried | None:
        """The solution as the best plan of its ways to leave room for copies; None where it does not run."""
        key = id(alternative), tuple(stages)
        if key not in self.known:
            away = any(stash_policy(stage.stash).hosted for stage in stages)
            ways = (
                self._built(alternative, key[1], source, way) for way in ((NEVER, LATE, SOON) if away else (NEVER,))
            )
            self.known[key] = min((way for way in ways if way is not None), key=lambda way: way.score, default=None)
        return self.known[key]

    def _built(self, alternative: Alternative, stages: Stages, source: str, leaving: int | None) -> Tried | None:
        plan = built(alternative.split, alternative.order, stages, alternative.method, source, leaving)
        if plan is None:
            return None
        excess = excess_for_long(plan)
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
