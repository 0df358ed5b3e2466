"""A layout's orders made anew for given costs: names fix who runs what and how much is held, costs the rest."""

from __future__ import annotations

import math
from dataclasses import replace

from ..plan import Kind
from .blocks import adapted
from .layout import Layout
from .list_order import Listed, filled
from .squeezed import Run, Squeeze
from .timing import Timing

LEAST_GAPS = (0.6, 1.0)
"""Shares of a W from which on a gap is filled with it; none of them is best for all costs."""
OUT_OF_TURN = ((0.6, 0.3), (0.3, 0.6))
"""The same, and of an F or I, where what is ready may overtake. Measured: interleaved-zb on 24 cases, 4 to 16 devices,
six costs: the better pair is 2.2 % shorter on average than no overtaking, the best of nine 2.3 %, both 15 % at most."""
HOPELESS = 1.02
"""Times as long as what is worth having, from which on a schedule is not tried without overtaking, which takes four
times as long. Measured: of 72 schedules of 14 random instances against peers (seed 6402) the best is more than 2 %
shorter than the better with overtaking in 2, than the first alone in 12."""


def by_costs(
    layout: Layout, timing: Timing, blocks: bool = True, worth_s: float = math.inf
) -> tuple[Layout, float] | None:
    """The layout with W, and F and I out of turn, where they cost least, and its step in seconds.

    Its stages may be on any devices. Stashes never take more than the room, nor than `layout.most` of them take, or
    than its F and I alone need. The step counts what `timing` says, and nothing else. With `blocks`, a V may have
    another building block. None where orders do not depend on costs, where stashes do not fit, or where little hope is
    left for a step below `worth_s`.
    """
    if layout.most is None:
        return None
    route = layout.pipelines[0].forward
    capped = replace(timing, room_bytes=_rooms(layout, layout.most, timing))
    found: list[Listed | Run] = []
    if blocks and len(route) == 2 * len(layout.orders) and route == route[::-1]:
        found += adapted(route, len(layout.pipelines[0].micro_batches), capped, HOPELESS * worth_s)
        worth_s = min([worth_s, *(run.step_s for run in found)])
    found += _placed(layout, capped, worth_s)
    if not found:
        return None
    best = min(found, key=lambda run: run.step_s)
    return replace(layout, orders=best.orders), best.step_s


def _placed(layout: Layout, timing: Timing, worth_s: float) -> list[Listed | Run]:
    """The layout's own order of F and I with different gaps, and as it is; nothing where F and I do not fit."""
    orders = [[op for op in order if op.kind is not Kind.W] for order in layout.orders]
    route = layout.pipelines[0].forward
    squeeze = Squeeze.of_orders(orders, route, timing)
    runs = [squeeze.run(*gaps) for gaps in OUT_OF_TURN]
    if not runs[0].fits or min(run.step_s for run in runs if run.fits) > HOPELESS * worth_s:
        return []
    lists = [filled(layout.orders, route, timing), *(filled(orders, route, timing, gap) for gap in LEAST_GAPS)]
    return [*(run for run in runs if run.fits), *(listed for listed in lists if listed.over_bytes <= 0)]


def _rooms(layout: Layout, most: int, timing: Timing) -> list[float]:
    """Bytes for every device's stashes: its room, or `most` of the average stash of its stages.

    Where the layout's F and I alone need more, since stashes are unequal, that much.
    """
    found = []
    route = layout.pipelines[0].forward
    for d, (order, room) in enumerate(zip(layout.orders, timing.room_bytes, strict=True)):
        mine = [stash for stash, device in zip(timing.stash_bytes, route, strict=True) if device == d]
        alive = needed = 0.0
        for op in order:
            if op.kind is not Kind.W:
                alive += timing.stash_bytes[op.stage] * (1 if op.kind is Kind.F else -1)
                needed = max(needed, alive)
        found.append(min(room, max(needed, most * sum(mine) / max(1, len(mine)))))
    return found
