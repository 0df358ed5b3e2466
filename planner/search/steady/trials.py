"""Plans of a named schedule without a flush, tried one after the other: the best that fits, or what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...basics import PlanError, check_time
from ...graph import Candidate, stash_policy, static_bytes
from ...lower import Assembled, Orders, assembled, period_seconds
from ...partition import Cuts, compositions
from ..common import SIZE, TOLERANCE, Session, lacking, limits
from .build import excess_for_long


@dataclass(frozen=True)
class Trial:
    """A candidate to simulate.

    Attributes:
        ways: make its orders; the next is tried where a plan does not fit.
        least_s: its period is no shorter (seconds).
        ahead: micro-batches between the first pass and the last of a stage, where a longer run must fit too.
    """

    candidate: Candidate
    ways: Sequence[Callable[[], Orders]]
    source: str
    least_s: float
    ahead: int = 0

    def plans(self) -> Iterator[Assembled]:
        """One a way, with its period where it fits."""
        for way in self.ways:
            try:
                found = assembled(self.candidate, way(), self.source, period=False)
                fits = not lacking(found) and not (self.ahead and excess_for_long(found.plan, self.ahead).total)
                period_s = period_seconds(found.plan) if fits else None
            except PlanError:
                continue
            yield replace(found, forecast=replace(found.forecast, period_s=period_s))
            if fits:
                return


@dataclass
class Tried:
    """What has been simulated.

    Attributes:
        best: the plan that fits with the shortest period, or of several the shortest run.
        least_bad: the plan that lacks least memory, if none fits. complete: nothing was left out for want of time.
    """

    best: Assembled | None = None
    least_bad: Assembled | None = None
    simulated: int = 0
    fit: int = 0
    complete: bool = True
    _missing: float = field(default=math.inf, repr=False)

    @property
    def best_s(self) -> float:
        """Period of the best plan; infinite before there is one."""
        return math.inf if self.best is None else self.best.forecast.objective_s

    def run(self, session: Session, trials: Iterable[Trial]) -> None:
        """Simulates what can be better than the best plan so far, until time is up."""
        for trial in trials:
            if session.over:
                self.complete = False
                return
            if trial.least_s <= self.best_s * (1 + TOLERANCE.proven):
                for found in trial.plans():
                    self.take(found)

    def take(self, found: Assembled) -> bool:
        """Takes a plan into account, with its period where it fits; whether it is the best."""
        self.simulated += 1
        if found.forecast.period_s is not None:
            self.fit += 1
            if self.best is None or _better(found, self.best):
                self.best = found
        elif lacking(found) < self._missing:
            self.least_bad, self._missing = found, lacking(found)
        return self.best is found


def _better(found: Assembled, best: Assembled) -> bool:
    """Whether the period is shorter, beyond round-off, or is the same and the run is shorter."""
    new, old = found.forecast, best.forecast
    if math.isclose(new.objective_s, old.objective_s, rel_tol=TOLERANCE.same):
        return new.step_s < old.step_s * (1 - TOLERANCE.same)
    return new.objective_s < old.objective_s


def every_cut(session: Session, stages: int) -> list[Cuts] | None:
    """All cuts into so many stages, where they and the ops of a plan are few enough to simulate all; else None."""
    small = 2 * session.problem.workload.micro_batches * stages <= SIZE.one_cut
    return compositions(len(session.chain), stages, SIZE.listed_cuts) if small else None


def lacks_least(candidate: Candidate) -> int:
    """Bytes that some device lacks at least: beside what stays, it holds a stash that it makes or uses."""
    costs, (pipeline,) = candidate.costs, candidate.pipelines
    static = [sum(parts.values()) for parts in static_bytes(candidate, costs)]
    worst = 0
    check_time()
    allowed = limits(candidate.problem)
    for s, policy in enumerate(candidate.stash[0]):
        here, there = pipeline.forward[s], pipeline.backward[s]
        held = int(costs.workspaces.backward[s] + costs.stash_bytes[s])
        made = int(costs.workspaces.forward[s] + costs.stash_bytes[s])
        forward = int(costs.workspace_bytes[s]) if stash_policy(policy).remade else made
        worst = max(worst, static[here] + forward - allowed[here], static[there] + held - allowed[there])
    return worst
