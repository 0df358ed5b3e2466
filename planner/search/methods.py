"""Which of several weight policies: every one gets a plan, and of those that are fast enough the best one is taken.

Methods differ little in speed and much in what they do to training, of which no forecast knows. What a plan does say is
how stale the weights of its forwards are, and its policy whether that is predicted: `quality` orders plans by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from .. import bounds
from ..graph import Versions
from ..plan import Plan
from ..problem import WEIGHT_POLICIES
from .common import (
    TOLERANCE,
    Considered,
    Incumbent,
    MethodFound,
    Progress,
    Proof,
    Proven,
    Result,
    Rounds,
    Session,
    in_words,
    told,
)

Search = Callable[[Session, Plan | None], Result]


class Quality(NamedTuple):
    """What a plan's weight policy does to training, the best first.

    stale: most updates of staleness of a stage's forwards that nothing makes up for. mixed: whether backwards then use
    other weights than their forwards. mean: the staleness of all stages, on average. ahead: updates that weights are
    predicted ahead, for forwards and for backwards, on average of all stages. rough: whether from the smoothed
    gradient, whatever the optimizer makes of it.
    """

    stale: int
    mixed: bool
    mean: float
    ahead: float
    rough: bool


def quality(plan: Plan) -> Quality:
    """The quality of a plan without a flush: predictions make up for staleness, the shorter ones better."""
    policy, most = WEIGHT_POLICIES[plan.weights], Versions.of(plan).most_stale
    stale = [most[stage] for stage in range(len(plan.stages))]
    if policy.predicts:
        ahead = [policy.forward_ahead(stage, late) + policy.backward_ahead(stage) for stage, late in enumerate(stale)]
        return Quality(0, False, 0.0, sum(ahead) / len(ahead), policy.smoothed and any(ahead))
    return Quality(max(stale), not policy.stashed and any(stale), sum(stale) / len(stale), 0.0, False)


def best_method(session: Session, search: Search, hint: Plan | None) -> Result:
    """Searches with every method of the space, each with an equal share of the time that is left, and chooses.

    Of the plans at most `space.quality_within` slower than the fastest the one of best quality; of equals the faster.
    Each method begins with the best plan of those before, as far as it applies; that of the hint comes first.
    """
    methods = session.space.asynchronous
    if hint is not None:
        methods = tuple(sorted(methods, key=lambda method: method != hint.weights))
    if len(methods) == 1:
        return search(session, hint)
    found: dict[str, Result] = {}
    for number, method in enumerate(methods):
        if number and session.clock.over(any(result.plan is not None for result in found.values())):
            break
        part = _part(session, method)
        with session.part(part, 1 / (len(methods) - number)):
            found[method] = search(part, _start(method, hint, found))
    planned = {method: result.plan for method, result in found.items() if result.plan is not None}
    if not planned:
        open_ = [result for result in found.values() if result.status != "infeasible"]
        return replace((open_ or list(found.values()))[0], methods=_rows(found, None))
    chosen = choose(list(planned.values()), session.space.quality_within)
    return _answer(session, found, chosen)


def choose(plans: list[Plan], within: float) -> Plan:
    """Of plans with a forecast those at most this share slower than the fastest; of these the best, then the faster."""
    least = min(_seconds(plan) for plan in plans)
    fast = [plan for plan in plans if _seconds(plan) <= least * (1 + within) * (1 + TOLERANCE.same)]
    return min(fast, key=lambda plan: (quality(plan), _seconds(plan)))


def _seconds(plan: Plan) -> float:
    assert plan.forecast is not None
    return plan.forecast.objective_s


def _part(session: Session, method: str) -> Session:
    """The search with one method; what it finds is told as the best so far of all."""

    def heard(event: Progress) -> None:
        if part.best is not None:
            session.incumbent.take(part.best, TOLERANCE.sums)
        session.report(f"{method}, {event.phase}")

    part = replace(
        session,
        space=replace(session.space, asynchronous=(method,)),
        clock=replace(session.clock),
        incumbent=Incumbent(heard),
        proof=Proof(),
        rounds=Rounds(),
    )
    return part


def _start(method: str, hint: Plan | None, found: dict[str, Result]) -> Plan | None:
    """A plan to start from: the caller's if it is of this method, or else the best so far, trained in this way."""
    if hint is not None and hint.weights == method:
        return hint
    plans = [result.plan for result in found.values() if result.plan is not None]
    best = min(plans, key=_seconds, default=None)
    return None if best is None else replace(best, weights=method)


def _answer(session: Session, found: dict[str, Result], chosen: Plan) -> Result:
    """The chosen plan, with what is proven of the whole space and of its method."""
    problem, space = session.problem, session.space
    result = found[chosen.weights]
    whole = Proven(in_words(space), bounds.period(problem, space))
    own = Proven(in_words(replace(space, asynchronous=(chosen.weights,))), result.bound_s)
    parts = [own] if result.among is None else [own, result.among]
    notes = tuple(_of(method, note) for method, one in found.items() for note in one.considered)
    made = replace(chosen.provenance, seconds=session.clock.elapsed_s)
    answer = told(chosen, whole, parts, made, notes)
    return replace(answer, methods=_rows(found, chosen.weights))


def _of(method: str, note: Considered) -> Considered:
    return note if note.what.startswith(method) else replace(note, what=f"{method}: {note.what}")


def _rows(found: dict[str, Result], chosen: str | None) -> tuple[MethodFound, ...]:
    return tuple(_row(method, result, method == chosen) for method, result in found.items())


def _row(method: str, result: Result, chosen: bool) -> MethodFound:
    plan, predicted = result.plan, WEIGHT_POLICIES[method].predicts
    if plan is None or plan.forecast is None:
        return MethodFound(method, result.status, predicted, chosen)
    most = Versions.of(plan).most_stale
    stale = tuple(most[stage] for stage in range(len(plan.stages)))
    peak = max(plan.forecast.peak_bytes)
    return MethodFound(method, result.status, predicted, chosen, _seconds(plan), peak, stale)
