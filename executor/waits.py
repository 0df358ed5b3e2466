"""What every op of a list waits for so that memory follows the forecast and not the weather.

A send or an offload releases memory when it has ended, a fetch takes memory when it starts. The forecast says when;
whatever it lets happen afterwards waits here for the same things. These waits cannot deadlock: like everything else
that is waited for, it ends in the forecast before what waits for it starts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from ..planner.plan import IN_LINE, RECEIVES, SENDS, Kind, Plan
from ..planner.simulate import simulate

_LEAVING = SENDS | {Kind.OFFLOAD}


@dataclass(frozen=True)
class Waits:
    """Of one device, by place in its list.

    Attributes:
        left: places of the SENDs and OFFLOADs that must have ended before the op at this place starts (for a FETCH:
            before it starts, wherever it was posted).
        starts: for a FETCH, the place of the in-line op that must have run before it starts (-1: none).
    """

    left: tuple[tuple[int, ...], ...]
    starts: dict[int, int]


def waits(plan: Plan) -> list[Waits]:
    """The waits of every device. Raises Deadlock or PlanError for a plan that `check` rejects."""
    jobs = simulate(plan).jobs
    served = jobs.rank.copy()
    served[jobs.messages.receive] = jobs.rank[jobs.messages.send]  # a RECV has its message's
    start, end, rank = jobs.start.tolist(), jobs.end.tolist(), served.tolist()
    found, offset = [], 0
    for order in plan.orders:
        after = offset + len(order)
        found.append(_of_list([op.kind for op in order], *(x[offset:after] for x in (start, end, rank))))
        offset = after
    return found


def _of_list(kinds: list[Kind], start: list[float], end: list[float], rank: list[int]) -> Waits:
    line = [k for k, kind in enumerate(kinds) if kind in IN_LINE]

    def over(earlier: int, moment: float, before: float) -> bool:
        """Whether it has ended by a moment. At that very moment: if it was served `before`, so that nobody can wait
        in a circle where nothing takes any time."""
        return end[earlier] < moment or (end[earlier] == moment and rank[earlier] < before)

    left: list[tuple[int, ...]] = []
    gates: dict[int, int] = {}
    leaving: list[int] = []  # posted, and not waited for in line yet
    for k, kind in enumerate(kinds):
        moment, before = start[k], rank[k] if start[k] == end[k] else math.inf
        some: list[int] = []
        if kind in IN_LINE:
            some = [s for s in leaving if over(s, moment, before)]
            leaving = [s for s in leaving if s not in some]
        elif kind is Kind.FETCH:
            gates[k] = next((j for j in reversed(line) if j < k or over(j, moment, before)), -1)
            later = [s for s in range(k, gates[k]) if kinds[s] in _LEAVING]
            some = [s for s in (*leaving, *later) if over(s, moment, before)]
        elif kind in RECEIVES:  # holds up everything from here to the next in-line op
            at = bisect_left(line, k)
            moment = end[line[at - 1]] if at else 0.0
            held_up = range(k, line[at] + 1 if at < len(line) else len(kinds))
            before = min(rank[j] for j in held_up if rank[j] >= 0)
            some = [s for s in leaving if over(s, moment, before)]
        elif kind in _LEAVING:
            leaving.append(k)
        left.append(tuple(some))
    return Waits(tuple(left), gates)
