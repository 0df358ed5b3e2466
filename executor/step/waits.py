"""What every op of a list waits for so that memory follows the forecast and not the weather.

A send or an offload releases memory when it has ended, a fetch takes memory when it starts. The forecast says when;
whatever it lets happen afterwards waits here for the same things. These waits cannot deadlock: like everything else
that is waited for, it ends in the forecast before what waits for it starts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...planner.forecast import CLOSE, jobs_of_ops, simulate_orders
from ...planner.graph import costs_of
from ...planner.plan import IN_LINE, RECEIVES, SENDS, Kind, Plan
from ...planner.problem import FLUSH

_LEAVING = SENDS | {Kind.OFFLOAD}


@dataclass(frozen=True)
class Waits:
    """Of one device, by position in its list.

    Attributes:
        left: positions of the SENDs and OFFLOADs that must have ended before the op at this one starts (for a FETCH:
            before it starts, wherever it was posted).
        starts: for a FETCH, the position of the in-line op that must have run before it starts (-1: none).
    """

    left: tuple[tuple[int, ...], ...]
    starts: dict[int, int]


def waits(plan: Plan) -> list[Waits]:
    """The waits of every device. Raises Deadlock or PlanError for a plan that `check` rejects."""
    return [listed.waits() for listed in _lists(plan)]


def waits_of(plan: Plan, device: int) -> Waits:
    """The waits of one device; raises as `waits`."""
    return _lists(plan)[device].waits()


def _lists(plan: Plan) -> list[_List]:
    timeline = simulate_orders(plan, costs_of(plan), plan.orders)
    jobs, unit = timeline.jobs, timeline.step_s * CLOSE or 1.0
    job = jobs_of_ops(jobs)
    start, end = (np.rint(time[job] / unit).astype(np.int64).tolist() for time in (jobs.start, jobs.end))
    rank = jobs.rank[job].tolist()
    taking = RECEIVES if plan.weights == FLUSH else RECEIVES | {Kind.SEND_P}  # which sends a copy
    found, offset = [], 0
    for order in plan.orders:
        after = offset + len(order)
        times = start[offset:after], end[offset:after], rank[offset:after]
        found.append(_List([op.kind for op in order], *times, taking))
        offset = after
    return found


@dataclass(frozen=True)
class _List:
    """One device's ops: kinds, times in units too fine to matter, and the order in which they were served.

    `posted_with_memory`: kinds of messages that take memory where they are posted.

    What waits for something ends later, or at the same time and is served later: so nobody waits in a circle.
    """

    kinds: list[Kind]
    start: list[int]
    end: list[int]
    rank: list[int]
    posted_with_memory: frozenset[Kind]

    def waits(self) -> Waits:
        kinds = self.kinds
        line = [k for k, kind in enumerate(kinds) if kind in IN_LINE]
        left: list[tuple[int, ...]] = []
        gates: dict[int, int] = {}
        leaving: list[int] = []  # posted, and not waited for in line yet
        for k, kind in enumerate(kinds):
            some: list[int] = []
            if kind in IN_LINE:
                some = [s for s in leaving if self._over(s, self.start[k], [k])]
                leaving = [s for s in leaving if s not in some]
            elif kind is Kind.FETCH:
                gates[k] = next((j for j in reversed(line) if j < k or self._over(j, self.start[k], [k])), -1)
                later = [s for s in range(k, gates[k]) if kinds[s] in _LEAVING]
                some = [s for s in (*leaving, *later) if self._over(s, self.start[k], [k])]
            elif kind in self.posted_with_memory:
                at = bisect_left(line, k)
                held_up = range(k, line[at] + 1 if at < len(line) else len(kinds))
                some = [s for s in leaving if self._over(s, self.end[line[at - 1]] if at else 0, held_up)]
            if kind in _LEAVING:
                leaving.append(k)
            left.append(tuple(some))
        return Waits(tuple(left), gates)

    def _over(self, earlier: int, moment: int, held_up: Iterable[int]) -> bool:
        """Whether it has ended by a moment, without waiting for anything that would wait for it."""
        end, rank = self.end[earlier], self.rank[earlier]
        if end != moment or self.start[earlier] < end:
            return end <= moment
        return all(self.end[j] > end or self.rank[j] > rank for j in held_up)
