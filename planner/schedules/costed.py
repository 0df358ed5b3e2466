"""A layout's orders made anew for given costs: names fix who runs what and how much is held, costs the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..plan import Kind
from .blocks import adapted
from .layout import Layout
from .list_order import Listed, filled
from .timing import Timing

LEAST_GAPS = (0.6, 0.3, 1.0)
"""Shares of a W from which on a gap is filled with it; none of them is best for all costs."""
HOPELESS = 1.02
"""Times as long as what is worth having, from which on a schedule is not tried with other gaps. Measured: 72 cases, 4
to 16 devices, three costs: another gap is at most 1.3 % shorter than the first."""


def by_costs(
    layout: Layout, timing: Timing, reorder: bool = True, worth_s: float = math.inf
) -> tuple[Layout, float] | None:
    """The layout with every W where it costs least, or as it is where that is no better, and its step in seconds.

    Its stages may be on any devices. Stashes never take more than the room, nor than `layout.most` of them take. The
    step counts what `timing` says, and nothing else. With `reorder`, F and I are where they cost least too, if the
    layout lets them move. None where not even W can move, where stashes do not fit, or where little hope is left for a
    step below `worth_s`.
    """
    if layout.most is None:
        return None
    route = layout.pipelines[0].forward
    capped = replace(timing, room_bytes=_rooms(layout.most, route, timing))
    found = _placed(layout, capped, worth_s)
    if reorder and layout.reordered:
        worth_s = min([worth_s, *(listed.step_s for listed in found)])
        found += adapted(route, len(layout.pipelines[0].micro_batches), capped, HOPELESS * worth_s)
    if not found:
        return None
    best = min(found, key=lambda listed: listed.step_s)
    return replace(layout, orders=best.orders), best.step_s


def _placed(layout: Layout, timing: Timing, worth_s: float) -> list[Listed]:
    """The layout with W placed in different ways, or as it is, where it fits; nothing where F and I do not fit."""
    orders = [[op for op in order if op.kind is not Kind.W] for order in layout.orders]
    found: list[Listed] = []
    for gap in LEAST_GAPS:
        found.append(filled(orders, layout.pipelines[0].forward, timing, gap))
        if found[-1].over_bytes > 0 or found[-1].step_s > HOPELESS * worth_s:
            return []
    given = filled(layout.orders, layout.pipelines[0].forward, timing)
    return found if given.over_bytes > 0 else [*found, given]


def _rooms(most: int, route: Sequence[int], timing: Timing) -> list[float]:
    """Bytes for every device's stashes: its room, or `most` of the average stash of its stages."""
    mine: list[list[float]] = [[] for _ in timing.room_bytes]
    for stash, device in zip(timing.stash_bytes, route, strict=True):
        mine[device].append(stash)
    return [
        min(room, most * sum(sizes) / max(1, len(sizes))) for room, sizes in zip(timing.room_bytes, mine, strict=True)
    ]
