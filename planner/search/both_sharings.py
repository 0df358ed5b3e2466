"""Both ways for replicas to have their optimizers: shared, and each its own, where gathering parameters takes time.

What is best with shared optimizers need not be best without, since gathering ends a step. So both searches begin, and
the one whose first plans are better goes on; each begins a turn from the other's best plan where that is shorter. What
they find is told with what is proven of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ..basics import end_asked
from ..graph import gather_seconds
from ..plan import Plan
from .common import COUNT, HOPE, SECONDS, SHARE, SIZE, TOLERANCE, Clock, OnProgress, Progress, Result, Session
from .named import run_hint


class Searching(Protocol):
    """The search of a problem, which goes on in later calls."""

    session: Session

    def go_on(self, clock: Clock, listener: OnProgress | None, hint: Plan | None = None) -> Result:
        """The best plan by the end of another clock, from another search's plan on."""

    def run(self, hint: Plan | None) -> Result:
        """The best plan by the end of its own."""

    def told(self, hint: Plan | None) -> Result:
        """What it answers, a plan to start from considered."""


@dataclass
class Told:
    """Who hears of both searches: of the best plan of either, and of the bound of the one that was asked for."""

    listener: OnProgress
    first: Session
    best: Progress | None = None

    def __call__(self, event: Progress) -> bool | None:
        if self.best is None or _step_s(event.plan) < _step_s(self.best.plan):
            self.best = event
        known, bound_s = self.best, self.first.proof.asked_s
        bound_s = min(bound_s, math.inf if known.best_step_s is None else known.best_step_s)
        return self.listener(replace(known, seconds=event.seconds, bound_s=bound_s, phase=event.phase))


def better_of_both(shared: Searching, whole: Callable[[], Searching], hint: Plan | None) -> Result:
    """The answer of the search with shared optimizers, or of the one without where its first plans are better.

    While these are far from what may be reached, both have another look. Time that one leaves goes to the other; what
    is told is proven of both.
    """
    session, clock = shared.session, shared.session.clock
    if not _worth_it(session):
        return shared.run(hint)
    told = None if session.incumbent.listener is None else Told(session.incumbent.listener, session)
    session.follow(_glance(clock), told)
    found = shared.run(hint)
    if found.status in ("optimal", "infeasible") or session.clock.interrupted or end_asked():
        return found
    other = whole()
    other.session.follow(_glance(clock), told)
    theirs = other.run(found.plan or hint).plan
    clock.interrupt(other.session.clock.interrupted)
    for times in range(2, 2 + COUNT.looks):
        if not _says_little(min(session.best_s, _step_s(theirs)), session, clock):
            break
        found = shared.go_on(_glance(clock, times), told, _shorter(theirs, session))
        theirs = other.go_on(_glance(clock, times), told, _shorter(found.plan, other.session)).plan
    ahead = _step_s(theirs) < session.best_s * (1 - TOLERANCE.same)
    for search in (other, shared) if ahead else (shared, other):
        if clock.meter.cut or clock.interrupted or end_asked() or clock.remaining_s < SECONDS.no_progress:
            break
        if search is other:
            theirs = other.go_on(clock, told, _shorter(session.best, other.session)).plan
        else:
            shared.go_on(clock, told, _shorter(theirs, session))
        if clock.fixed:
            break
    session.follow(clock, told)
    if session.best is None and theirs is not None:
        run_hint(session, theirs)
    return shared.told(theirs or hint)


def _worth_it(session: Session) -> bool:
    """Whether both are to be looked at: one search takes all of a short time, and of a large problem."""
    problem, devices = session.problem, len(session.problem.cluster)
    short = not session.clock.fixed and session.remaining_s < SECONDS.both_sharings
    if not problem.workload.sharded or session.space.schedule != "search" or short or session.ops > SIZE.one_cut:
        return False
    share = sum(layer.trained_bytes for layer in problem.model.layers) // devices
    return devices > 1 and sum(gather_seconds(problem, (0, devices - 1), share)) > 0


def _says_little(best_s: float, session: Session, clock: Clock) -> bool:
    """Whether which of the first plans is better says little: all are far from what may be reached."""
    if clock.fixed or clock.meter.cut or clock.interrupted or end_asked():
        return False
    return best_s > HOPE.early * session.bound_s and clock.remaining_s > SECONDS.both_sharings


def _shorter(plan: Plan | None, session: Session) -> Plan | None:
    """Another search's plan, where it is shorter than what this one has."""
    return plan if _step_s(plan) < session.best_s * (1 - TOLERANCE.same) else None


def _glance(clock: Clock, times: int = 1) -> Clock:
    """The clock of a look: so many times a share of the time, or the quick plans."""
    if clock.fixed:
        return replace(clock, effort=0.0)
    return replace(clock, deadline=clock.deadline - (1 - times * SHARE.first_sharing) * clock.remaining_s)


def _step_s(plan: Plan | None) -> float:
    return math.inf if plan is None or plan.forecast is None else plan.forecast.step_s
