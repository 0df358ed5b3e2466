"""Named orders whose stashes are shipped to other devices where their own do not hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ... import bounds
from ...basics import PlanError, check_time
from ...forecast import Timeline, simulate_orders
from ...graph import Candidate
from ...lower import assembled
from ...partition import Cuts, cut
from ...plan import Op
from ...schedules import Layout, capped
from ..common import COUNT, SIZE, Session, missing
from .fullest import in_flight
from .portfolio import Order, busiest_s, caps, named_layouts, not_split, place, whole_backwards
from .shipping import Shipping, with_guests


def run_shipped(session: Session, order: Order) -> None:
    """Every named order, and 1F1B with fewer micro-batches in flight, with what does not fit on other devices."""
    if not session.ships or len(order) < 2:
        return
    simulated = 0
    for layout in _layouts(session, len(order)):
        count = 2 * session.problem.workload.micro_batches * layout.stages
        if session.done or simulated + count > SIZE.remade_ops:
            return
        if layout.stages > len(session.chain):
            continue
        simulated += count
        placed = place(layout, order, len(session.problem.cluster))
        for cuts in list(_cuts(session, placed))[: 1 if count > SIZE.one_cut else None]:
            try_shipped(session, placed, cuts)


def _layouts(session: Session, devices: int) -> Iterator[Layout]:
    batches = session.problem.workload.micro_batches
    yield from named_layouts(session.space, devices, batches, len(session.chain))
    if session.space.schedule == "search":
        for most in caps(devices, 2 * batches * devices > SIZE.one_cut):
            yield capped(devices, batches, most)


def _cuts(session: Session, layout: Layout) -> Iterator[Cuts]:
    """Equal seconds, and where that is another, equal seconds where every stage and its mirror share their room."""
    route, flights = layout.pipelines[0].forward, in_flight(layout)
    shared = [(a + b + 1) // 2 for a, b in zip(flights, reversed(flights), strict=True)]
    share = len(set(route)) / len(route)
    found = [cut(session.chain, route, [0] * layout.stages, buffers=0)]
    found.append(cut(session.chain, route, shared, buffers=2, share=share))
    yield from dict.fromkeys(cuts for cuts in found if cuts is not None)


def try_shipped(session: Session, layout: Layout, cuts: Cuts) -> None:
    """Simulates a placed layout with its stashes kept, then with some shipped; offers what fits."""
    check_time()
    plain = Candidate(session.problem, session.chain.stages(cuts), layout.pipelines)
    whole = not_split(session.space, plain)
    orders = [whole_backwards(order, whole) for order in layout.orders]
    if busiest_s(plain) >= session.incumbent.worth_s or _least_s(session, plain) >= session.best_s:
        return
    try:
        with session.clock.simulating():
            timeline = _timeline(plain, orders)
        if timeline.step_s < session.best_s:
            _fit(session, plain, orders, timeline, layout.name)
    except PlanError:
        return


def _least_s(session: Session, candidate: Candidate) -> float:
    """No order of the candidate takes less, whatever becomes of its stashes."""
    shares = tuple(len(pipeline.micro_batches) for pipeline in candidate.pipelines)
    roomy = [1 << 60] * len(session.problem.cluster)
    return bounds.candidate(candidate, shares, session.space.split_backward, roomy)


def _timeline(candidate: Candidate, orders: Sequence[Sequence[Op]]) -> Timeline:
    return simulate_orders(candidate, candidate.costs, assembled(candidate, orders).ops.lists())


def _fit(session: Session, plain: Candidate, orders: Sequence[Sequence[Op]], timeline: Timeline, phase: str) -> None:
    """Ships what does not fit, with less memory each time it still does not."""
    less = [0] * len(session.problem.cluster)
    for _ in range(COUNT.fitted):
        if session.done:
            return
        guests = Shipping(plain, timeline, less).choose()
        if not guests:
            return
        found = assembled(with_guests(plain, guests), orders, phase)
        session.remember(found)
        over = missing(found)
        if not any(over):
            if found.forecast.step_s < session.best_s:
                session.offer(found.plan, phase)
            return
        less = [a + b for a, b in zip(less, over, strict=True)]
