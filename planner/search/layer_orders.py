"""Models that are no chains: cut along other orders of their layers too, beside the order of the file.

Everything that the search knows cuts a chain of layers into contiguous stages. A graph has many topological orders, and
its best stages may be contiguous in none but one that the graph partitioner finds. A search on another order is one of
the same problem whose model has its layers in that order; what it finds is told with the caller's model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..basics import OutOfTime, until
from ..partition import Effort, LayerOrder, least_load, other_orders
from ..plan import Plan, Problem
from ..simulate import evaluate
from .common import COUNT, HOPE, SECONDS, SHARE, SIZE, TOLERANCE, Progress, Result, Rounds, Session, binding, fits

Search = Callable[[Session], None]


def in_layer_orders(session: Session, search: Search) -> None:
    """Searches on the order of the file, on others that promise more, and then on the one that has the best plan.

    A chain is searched on its only order, and so is a graph none of whose orders promises more.
    """
    small = len(session.chain) * session.stages <= SIZE.cut_at_once
    if session.problem.model.straight or session.clock.effort == 0 or (small and not _reordered(session)):
        search(session)
        return
    named = session.space.schedule != "search"
    with session.clock.hurried(1.0 if named else SHARE.own_order):
        search(session)
    own_s = session.best_s
    if not small and not _ended(session):
        _reordered(session)
    for part in session.reordered:
        if not _ended(session):
            _search_part(session, part, search, SHARE.layer_order)
    if not (named or _ended(session)):
        _go_on(session, search, own_s)


def best_in_layer_orders(session: Session, search: Callable[[Session, Plan | None], Result]) -> Result:
    """The best answer of a search on the order of the file and on others that promise more, as `in_layer_orders`.

    `search` takes a plan to start from.
    """
    if session.problem.model.straight:
        return search(session, None)
    with session.clock.hurried(SHARE.own_steady):
        best = search(session, None)
    if best.status == "optimal" or session.clock.over(best.plan is not None):
        return best
    others: list[Session] = []
    with suppress(OutOfTime), until(session.clock.deadline + SECONDS.grace):
        others = _others(session)
    for part in others:
        if session.clock.over(best.plan is not None):
            break
        start = None if best.plan is None else replace(best.plan, problem=part.problem)
        found = search(part, start)
        if found.plan is not None and (best.seconds is None or (found.seconds or 0.0) < best.seconds):
            told = _told(found.plan, session.problem)
            if fits(told):
                best = replace(found, plan=told, considered=(*best.considered, *found.considered))
    return best


def _reordered(session: Session) -> list[Session]:
    """The searches on other orders, as they were in the round before if there were any."""
    return session.reordered or session.reorder(_others(session))


def _others(session: Session) -> list[Session]:
    """Searches on other orders, those that promise most first; none that promise no more than the file's."""
    clock, devices = session.clock, tuple(range(session.stages))
    if not clock.meter.go():
        return []
    effort = clock.set_aside(SHARE.layer_orders)
    clock.meter.count(effort or 0.0)
    seconds = (1.0 if clock.fixed else SHARE.layer_orders) * max(0.0, clock.remaining_s)
    with until(time.monotonic() + seconds):
        found = other_orders(
            session.chain, devices, Effort(seconds, session.workers, effort, SIZE.cut_decisions), session.seed
        )
    parts = [_part(session, order) for order in found]
    own = _promises(session)
    promising = sorted((_ratio(_promises(part), own), k) for k, part in enumerate(parts))
    chosen = [parts[k] for ratio, k in promising if ratio < 1 - HOPE.better_order]
    return chosen[: COUNT.layer_orders]


def _part(session: Session, order: LayerOrder) -> Session:
    """A search of the problem whose model has its layers in another order; what it finds is offered to this one."""

    def heard(event: Progress) -> None:
        if part.best is not None and part.best.stages != (session.best.stages if session.best else None):
            _offer(session, part)
        session.report(f"{event.phase}, other order of layers")

    problem = session.problem
    part = replace(
        session,
        problem=Problem(problem.model.in_order(order), problem.cluster, problem.workload),
        clock=replace(session.clock),
        incumbent=replace(session.incumbent, listener=heard, best=None, plain=None),
        proof=session.proof.without_shapes(),
        rounds=Rounds(),
    )
    return part


def _promises(session: Session) -> list[float]:
    """Seconds a micro-batch of the slowest stage, or link: with one stage a device, or two where that takes no time.

    Where memory binds, within what one forward, one backward needs and without.
    """
    found = []
    many = 2 * len(session.chain) * session.stages > SIZE.cut_decisions
    for each in (1,) if many else (1, 2):
        devices = tuple(range(session.stages)) * each
        flights = [len(devices) - k for k in range(len(devices))]
        if binding(session.problem):
            found.append(least_load(session.chain, devices, flights))
        found.append(least_load(session.chain, devices, [0] * len(devices), buffers=0))
    return found


def _ratio(one: list[float], other: list[float]) -> float:
    """How one order's promises compare with another's, where it is best; below 1: better."""
    better = [a / b if math.isfinite(b) else 0.0 for a, b in zip(one, other, strict=True) if a < b]
    return min(better, default=1.0)


def _search_part(session: Session, part: Session, search: Search, share: float) -> None:
    """Searches on another order with a share of the time and effort that is left, from the best plan on."""
    if session.best is not None and session.best_s < part.best_s:
        part.incumbent.start_from(replace(session.best, problem=part.problem))
    with session.part(part, share):
        search(part)
    session.clock.heed(part.clock)
    _offer(session, part)
    session.ledger.adopt(part.ledger, "other order of layers")


def _offer(session: Session, part: Session) -> None:
    """Offers what another order has to the whole search."""
    if part.best is not None and part.best_s < session.best_s:
        session.offer(_told(part.best, session.problem), part.best.provenance.source)


def _told(plan: Plan, problem: Problem) -> Plan:
    """The plan with the caller's model: in a stage layers run in the file's order, and what ops take beside stashes
    depends on it.
    """
    known = plan.forecast
    assert known is not None
    found = evaluate(plan, problem.model)
    forecast = replace(found, bound_s=known.bound_s, gap=known.gap, status=known.status)
    return replace(plan, problem=problem, forecast=forecast)


def _go_on(session: Session, search: Search, own_s: float) -> None:
    """What is left goes to the order that has the best plan; `own_s`: what the file's came to."""
    if session.best_s >= own_s:
        session.rounds.go_on()
        search(session)
        return
    part = min(session.reordered, key=lambda one: one.best_s)
    part.rounds.go_on()
    _search_part(session, part, search, 1.0)


def _ended(session: Session) -> bool:
    """Whether there is no time left, or no plan of any order can be shorter."""
    return session.over or session.best_s <= session.bound_s * (1 + TOLERANCE.proven)
