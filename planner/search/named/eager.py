"""1F1B over slow links: as many micro-batches in flight as a round trip asks for, not one for every later stage.

1F1B keeps D - s micro-batches on stage s: enough where messages take no time. Where they do, a stage waits for the
gradient of the oldest of them while forwards that it could run are not begun (Zhuang et al., arXiv:2211.05322, begin
twice as many).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...partition import Cuts, cut, link_seconds
from ...schedules import alternating
from ..common import Session
from .portfolio import Order, place, try_layout


def run_eager(session: Session, order: Order) -> Iterator[None]:
    """Alternating orders for the round trips of their own cut, where these ask for more than 1F1B has; else nothing."""
    stages, batches = len(order), session.problem.workload.micro_batches
    flights, before = [0] * stages, None
    for _ in range(2):  # a cut whatever memory it needs, then one with room for what that one has in flight
        cuts = cut(session.chain, order, flights, buffers=2 if any(flights) else 0)
        if cuts in (None, before) or session.done:
            return
        yield
        assert cuts is not None
        before = cuts
        flights = [min(batches, count) for count in round_trips(session, order, cuts)]
        if not any(count > stages - s for s, count in enumerate(flights) if stages - s < batches):
            return
        for more in (0, 1):
            layout = alternating("search", [count + more for count in flights], batches)
            try_layout(session, place(layout, order, len(session.problem.cluster)), [cuts], "eager")


def round_trips(session: Session, order: Sequence[int], cuts: Cuts) -> list[int]:
    """Micro-batches that pass the slowest stage, or link, while one goes from every stage to the last and back."""
    chain, ends = session.chain, (0, *cuts, len(session.chain))
    load = [float(chain.seconds[a, b]) / chain.speed(d) for (a, b), d in zip(pairwise(ends), order, strict=True)]
    links = [link_seconds(chain, order, s) for s in range(len(order))]
    sent = [float(occupied[a]) for (occupied, _), a in zip(links, ends, strict=False)]
    period, trip, found = max(*load, *sent), 0.0, []
    for s in range(len(order) - 1, -1, -1):
        trip += load[s]
        found.append(max(1, math.ceil(trip / period)) if period else 1)
        trip += 2 * sent[s] + links[s][1]
    return found[::-1]
