"""One pipeline round and round with as many stages a device as time allows: in large problems hardly any idles longer.

Devices wait for the first micro-batch to pass all others at a chunk each, so that the wait is shorter the more chunks
there are (Narayanan et al., arXiv:2104.04473, section 2.2). Named schedules with many micro-batches are tried on fewer
of them first; with many devices there is no time for most of these either.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ...schedules import folded, split_laps
from ..common import SHARE, SIZE, Session
from .likely_cuts import cuts_for
from .portfolio import Order, place, try_layout


def run_laps(session: Session, order: Order) -> Iterator[None]:
    """That with split backwards, where memory holds a stash of the whole model for every device; then with one lap.

    With few laps and messages that take time the one may be shorter, and costs least.
    """
    if session.proven or not session.space.split_backward or not holds_all(session, order):
        return
    batches, layers = session.problem.workload.micro_batches, len(session.chain) // len(order)
    passes = len(order) * batches
    most = min(SIZE.lap_chunks, layers, int(_affordable(session, passes) // (3 * passes)))
    for chunks in sorted({most, 1} if most else (), reverse=True):
        placed = place(split_laps(len(order), batches, chunks), order, len(session.problem.cluster))
        try_layout(session, placed, islice(cuts_for(session, placed, 0), 1), placed.name)
        yield


def run_folded(session: Session, order: Order) -> Iterator[None]:
    """One pipeline down and up, in the block that suits the costs and all the room there is.

    Where memory holds less than 1F1B's, no schedule that goes round and round fits.
    """
    stages, batches = 2 * len(order), session.problem.workload.micro_batches
    ops = 2 * stages * batches
    if session.proven or len(order) < 2 or len(session.chain) < stages or ops > SIZE.by_costs_ops:
        return
    if 3 * ops > 2 * _affordable(session, len(order) * batches):
        return
    with_all_room = next(folded(len(order), batches))
    placed = place(with_all_room, order, len(session.problem.cluster))
    try_layout(session, placed, islice(cuts_for(session, placed, 0), 1), placed.name)
    yield


def _affordable(session: Session, passes: int) -> float:
    """Ops of which there is time to make orders, and to simulate them, in a share of what is left.

    What these take an op is taken from the longest simulation so far, of F and B of so many `passes`.
    """
    clock = session.clock
    if clock.fixed or not clock.longest_s:
        return SIZE.lap_ops
    return SHARE.laps * clock.remaining_s / (SIZE.lap_simulations * clock.longest_s / (2 * passes))


def holds_all(session: Session, order: Order) -> bool:
    """Whether every device has room for its share of the parameters and for as many stashes of all layers as 1F1B."""
    chain = session.chain
    stashes = int(chain.stash.ends[-1])
    least = min(chain.limit(device) for device in order)
    return stashes + int(chain.static_bytes[0].sum()) // len(order) <= least
