"""A layout's orders made anew for given costs: names fix who runs what and how much is held, costs the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..plan import Kind
from .layout import Layout
from .list_order import Listed, filled
from .timing import Timing

LEAST_GAPS = (0.3, 0.6, 1.0)
"""Shares of a W from which on a gap is filled with it; none of them is best for all costs."""


def by_costs(layout: Layout, timing: Timing) -> tuple[Layout, float] | None:
    """The layout with every W where it costs least, or as it is where that is no better, and its step in seconds.

    Its stages may be on any devices. Stashes never take more than the room, nor than `layout.most` of them take. The
    step counts what `timing` says, and nothing else. None where W cannot move, or where stashes do not fit.
    """
    if layout.most is None:
        return None
    route = layout.pipelines[0].forward
    capped = replace(timing, room_bytes=_rooms(layout.most, route, timing))
    orders = [[op for op in order if op.kind is not Kind.W] for order in layout.orders]
    found: list[Listed] = []
    for gap in LEAST_GAPS:
        found.append(filled(orders, route, capped, gap))
        if found[-1].over_bytes > 0:  # F and I alone do not fit
            return None
    given = filled(layout.orders, route, capped)
    best = min([given, *found] if given.over_bytes <= 0 else found, key=lambda listed: listed.step_s)
    return replace(layout, orders=best.orders), best.step_s


def _rooms(most: int, route: Sequence[int], timing: Timing) -> list[float]:
    """Bytes for every device's stashes: its room, or `most` of the average stash of its stages."""
    mine: list[list[float]] = [[] for _ in timing.room_bytes]
    for stash, device in zip(timing.stash_bytes, route, strict=True):
        mine[device].append(stash)
    return [
        min(room, most * sum(sizes) / max(1, len(sizes))) for room, sizes in zip(timing.room_bytes, mine, strict=True)
    ]
