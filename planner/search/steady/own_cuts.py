"""Own cuts for forwards and backwards in a search: for every weight policy, way to form groups and order of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ... import bounds
from ...graph import KEEP
from ...lower import Assembled
from ...plan import Plan, Problem
from ...problem import WEIGHT_POLICIES, SearchSpace
from ...schedules import WEIGHTS
from ..common import SHARE, Proven, Session, priced
from ..named import Order, device_orders, splits
from .chains import Crossing, Terms
from .rules import Rules
from .separate import TwoChains
from .tables import Split
from .trials import Tried

ONE_PIPELINE = "plans with one pipeline: one forward and one backward device a stage"
TWO_SIDES = "plans with one pipeline whose devices run forwards, or backwards, of consecutive layers, not both"


def of_search(
    session: Session, take: Callable[[Assembled], bool], orders: Callable[[Problem, int], list[Order]]
) -> Iterator[TwoChains]:
    """The searches among pairs of cuts that the space allows; none where a stage must have one device.

    orders: of devices, so many, of one group's problem.
    """
    problem, space = session.problem, session.space
    if not space.separate_backward:
        return
    one = (tuple(range(len(problem.cluster))),)
    ways = splits(problem, space)
    for groups in ways if (space.replicas or 1) > 1 else (one, *ways):
        split = Split(problem, groups)
        count = min(len(groups[0]), 2 * len(split.chain))
        for method in space.asynchronous:
            rules = rules_of(problem, method, len(groups), count)
            if rules is None:
                continue
            for order in orders(split.small, count):
                for shared in (False, True):
                    terms = Terms(split, order, rules, crossings(split.small, space), shared)
                    below_s = _below_s(session, method, len(groups), shared)
                    yield TwoChains(session, terms, method, "search", take, lambda: session.best_s, below_s)


def _below_s(session: Session, method: str, groups: int, shared: bool) -> float:
    """No plan of two chains has a shorter period; shared: devices may run pieces of both."""
    if groups > 1:
        return session.proof.asked_s
    space = replace(session.space, pipelines=1)
    if shared or not session.problem.model.straight:
        return bounds.period(session.problem, space)
    return bounds.two_sides(session.problem, replace(space, asynchronous=(method,)))


def rules_of(problem: Problem, method: str, width: int, stages: int) -> Rules | None:
    """What a weight policy asks of each of so many groups; None where its updates do not come out."""
    workload, policy = problem.workload, WEIGHT_POLICIES[method]
    update = workload.update_every or policy.least_update(min(stages, len(problem.model.layers)))
    if update % width or workload.micro_batches // update < 2:
        return None
    return Rules(policy, update // width, width > 1, workload.staleness_limit)


def crossings(problem: Problem, space: SearchSpace) -> tuple[Crossing, ...]:
    """What may become of stashes that cross, the cheapest first."""
    kept = tuple(Crossing(KEEP, early) for early in (1.0, 0.5, 0.0))
    return (*kept, *(Crossing(policy) for policy in priced(problem, space)))


def run_own_cuts(session: Session, every: list[TwoChains]) -> None:
    """The best of each with stashes kept, then everything, within a share of the time. Raises OutOfTime.

    Devices that run forwards, or backwards, come first: these are solved far sooner than those that run both.
    """
    with session.clock.hurried(SHARE.own_cuts):
        for shared, share in ((False, SHARE.one_side), (True, 1.0)):
            mine = [one for one in every if one.terms.shared == shared]
            alone = session.clock.fixed or len(mine) == len(every)
            with session.clock.hurried(1.0 if alone else share, 0.0):
                for one in mine:
                    one.first()
                for one in mine:
                    one.run()
    for one in every:
        groups = len(one.terms.split.groups)
        what = f"{one.method}: own cuts for forwards and backwards" + (f", {groups} groups" if groups > 1 else "")
        what += "" if one.terms.shared else ", no device with both"
        session.ledger.note(what, one.below_s, one.found_s, "simulated" if one.simulated else "")


def of_schedule(session: Session, tried: Tried) -> list[TwoChains]:
    """The same for a named schedule of forward nodes and backward nodes: no device is both."""
    problem, count = session.problem, min(len(session.problem.cluster), 2 * len(session.chain))
    method = WEIGHTS[session.space.schedule]
    rules = rules_of(problem, method, 1, count)
    if rules is None:
        return []
    split = Split(problem, (tuple(range(len(problem.cluster))),))
    allowed, name = crossings(problem, session.space), session.space.schedule
    below_s = bounds.two_sides(problem, replace(session.space, asynchronous=(method,)))
    return [
        TwoChains(session, terms, method, name, tried.take, lambda: tried.best_s, below_s)
        for terms in (Terms(split, order, rules, allowed, shared=False) for order in device_orders(problem, count))
    ]


# ------------------------------------------------------------------ what is proven


def proven_apart(problem: Problem, space: SearchSpace, plan: Plan) -> list[Proven]:
    """What is proven of parts of the space that have a plan: one pipeline, and forward nodes and backward nodes."""
    routes = {(p.forward, p.backward) for p in plan.pipelines if p.micro_batches}
    if len(routes) > 1:
        return []
    found = [Proven(ONE_PIPELINE, bounds.period(problem, replace(space, pipelines=1)))]
    forward, backward = routes.pop()
    if problem.model.straight and two_sides(forward, backward):
        found.append(Proven(TWO_SIDES, bounds.two_sides(problem, space)))
    return found


def two_sides(forward: tuple[int, ...], backward: tuple[int, ...]) -> bool:
    """Whether every device of a route runs forwards or backwards, of stages that follow one another."""
    if set(forward) & set(backward):
        return False
    return all(len(_runs(route)) == len(set(route)) for route in (forward, backward))


def _runs(route: tuple[int, ...]) -> list[int]:
    return [device for k, device in enumerate(route) if not k or route[k - 1] != device]
