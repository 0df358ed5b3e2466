"""Named schedules whose orders are made for costs, on cuts next to the best that they have.

Layers rarely come out even, so some device computes longest wherever stages end; which one decides how long the others
wait for it, and no sum of loads says so. So ends of stages move while orders that are made for the cut become shorter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator
from contextlib import suppress
from itertools import islice

from ... import bounds
from ...basics import PlanError
from ...graph import KEEP, Candidate
from ...lower import Assembled
from ...schedules import Layout
from ..common import COUNT, HOPE, SHARE, SIZE, Session, lacking, nearby_cuts
from .costed import adapts, made_for
from .halves import not_split
from .likely_cuts import cuts_for
from .portfolio import Order, named_layouts, place


def run_nearby(session: Session, order: Order) -> Iterator[None]:
    """Descends from the best cut of each of the layouts that are nearly the best, the best one first.

    Not where time would be up after a few cuts.
    """
    clock = session.clock
    if not clock.fixed and SHARE.nearby * clock.remaining_s < COUNT.nearby_least * clock.longest_s:
        return
    starts: list[tuple[Layout, Assembled]] = []
    end, all_end = (clock.budget(share).deadline for share in (SHARE.nearby, SHARE.all_nearby))
    for layout in _layouts(session, order):
        for found in _starts(session, layout):
            starts.append((layout, found))
            yield
            if session.done:
                return
        if time.monotonic() >= end:
            break
    starts.reverse()
    begun: set[Hashable] = set()
    for layout, found in sorted(starts, key=lambda start: start[1].forecast.step_s):
        if session.proven or found.forecast.step_s > HOPE.nearby * session.best_s or len(begun) == COUNT.nearby:
            return
        at = layout.pipelines, found.candidate.stages
        if at not in begun:  # of those alike the last takes all room, and begins
            begun.add(at)
            yield from _descend(session, layout, found, all_end)


def _layouts(session: Session, order: Order) -> Iterator[Layout]:
    """Those of one pipeline on these devices whose orders are made for costs, of problems with several cuts."""
    count, batches, layers = len(order), session.problem.workload.micro_batches, len(session.chain)
    for layout in named_layouts(session.space, count, batches, layers):
        small = 2 * batches * layout.stages <= SIZE.one_cut
        if small and layout.stages <= layers and len(layout.pipelines) == 1 and adapts(layout):
            yield place(layout, order, len(session.problem.cluster))


def _starts(session: Session, layout: Layout) -> Iterator[Assembled]:
    """What takes least of what was simulated of a layout and fits, and it on its first cuts; nothing hopeless.

    From each a descent may come to another end.
    """
    worth_s = HOPE.nearby * session.best_s
    alike = (x for x in session.seen if x.source == layout.name and x.candidate.pipelines == layout.pipelines)
    known = min((x for x in alike if _kept(x) and not lacking(x)), key=lambda x: x.forecast.step_s, default=None)
    if known is not None:
        yield known
    for cuts in islice(cuts_for(session, layout, SIZE.listed_cuts), COUNT.nearby_starts):
        candidate = Candidate(session.problem, session.chain.stages(cuts), layout.pipelines)
        new = known is None or candidate.stages != known.candidate.stages
        if new and bounds.candidate(candidate, None, session.space.split_backward) < worth_s:
            found = _made(session, candidate, layout, worth_s)
            if found is not None:
                yield found


def _kept(one: Assembled) -> bool:
    return all(policy == KEEP for row in one.candidate.stash for policy in row)


def _descend(session: Session, layout: Layout, here: Assembled, end: float) -> Iterator[None]:
    """From a plan of a layout, to the next cut on which its orders take less, as long as there is one, and time."""
    asked, improved = session.space.schedule != "search", True
    end = min(end, session.clock.budget(SHARE.nearby).deadline)
    left = min(COUNT.nearby_cuts, SIZE.nearby_ops // (3 * session.problem.workload.micro_batches * layout.stages))
    while improved:
        improved = False
        for stages in islice(nearby_cuts(here.candidate, here.forecast.step_s), left):
            if session.over or time.monotonic() >= end:
                return
            left -= 1
            candidate = Candidate(session.problem, stages, layout.pipelines, here.candidate.stash)
            other = _made(session, candidate, layout, math.inf if asked else here.forecast.step_s)
            yield
            if other is not None and other.forecast.step_s < here.forecast.step_s:
                session.offer(other.plan, layout.name)
                here, improved = other, True
                break


def _made(session: Session, candidate: Candidate, layout: Layout, worth_s: float) -> Assembled | None:
    """The layout with its orders made for a cut; None where little speaks for less than `worth_s` seconds."""
    blocks = session.space.schedule != "search" or layout.takes_all_room
    with suppress(PlanError), session.clock.simulating():
        return made_for(candidate, layout, not_split(session.space, candidate), (), blocks, worth_s)
    return None
