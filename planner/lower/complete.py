"""From compute orders to complete op lists: places SEND, RECV, OFFLOAD, FETCH, REDUCE and STEP, and forecasts the plan.

A SEND follows its producer at once. A RECV is posted at the last place in its device's list that does not delay
the message: the compute op after it runs while the message travels, and its buffer lives no longer than it must.
A stash leaves its device right after its forward and comes back as late as it can without delaying its backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..basics import check_time
from ..forecast import Deadlock, Jobs, build_columns
from ..graph import Candidate, Ints, Messages, Ops, StageCosts, with_steps, with_updates
from ..plan import IN_LINE, Kind, Op
from ..problem import FLUSH
from .lowering import Lowering
from .placement import add_arrivals, add_departures, place_receives

Orders = Sequence[Sequence[Op]]


def complete(candidate: Candidate, costs: StageCosts, compute_orders: Orders) -> tuple[tuple[Op, ...], ...]:
    """Op lists with every SEND, RECV, OFFLOAD, FETCH, REDUCE and STEP in place."""
    return completed(candidate, costs, compute_orders)[0].lists()


def completed(candidate: Candidate, costs: StageCosts, compute_orders: Orders) -> tuple[Ops, Messages]:
    """The same as columns."""
    if candidate.weights == FLUSH:
        return _lowered(candidate, costs, compute_orders)
    if any(p.forward != p.backward for p in candidate.pipelines):
        compute_orders = _with_arrivals(candidate, costs, with_steps(candidate, compute_orders))
    return _lowered(candidate, costs, with_updates(candidate, compute_orders))


def _with_arrivals(candidate: Candidate, costs: StageCosts, orders: list[list[Op]]) -> list[list[Op]]:
    """The orders with the RECV_Ps that they lack: which version a forward finds follows from their places."""
    if any(op.kind is Kind.RECV_P for order in orders for op in order):
        return orders
    found = []
    for order, listed in zip(orders, _lowered(candidate, costs, orders)[0].lists(), strict=False):
        known = {op for op in order if op.kind not in IN_LINE}
        found.append([op for op in listed if op.kind in IN_LINE or op.kind is Kind.RECV_P or op in known])
    return found


def _lowered(candidate: Candidate, costs: StageCosts, compute_orders: Orders) -> tuple[Ops, Messages]:
    devices = len(candidate.problem.cluster)
    padded = [compute_orders[d] if d < len(compute_orders) else () for d in range(devices)]
    check_time()
    lowering = Lowering(candidate, costs, Ops.of(padded, len(candidate.stages)))
    add_departures(lowering)
    order, jobs = _served(lowering)
    if add_arrivals(lowering, order, jobs):
        order, jobs = _served(lowering)
    place_receives(lowering, order, jobs)
    return lowering.columns(lowering.order)


def _served(lowering: Lowering) -> tuple[Ints, Jobs]:
    """A lowering's items in list order, and their jobs when no RECV delays its message."""
    check_time()
    order = lowering.order
    jobs = build_columns(lowering.candidate, lowering.costs, *lowering.columns(order), receivers_order=False)
    if not jobs.complete:
        raise Deadlock("the compute orders wait for each other in a circle")
    return order, jobs
