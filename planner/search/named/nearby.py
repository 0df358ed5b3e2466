"""Named schedules whose orders are made for costs, on cuts next to the best that they have.

Layers rarely come out even, so some device computes longest wherever stages end; which one decides how long the others
wait for it, and no sum of loads says so. So ends of stages move while orders that are made for the cut become shorter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from ...basics import PlanError
from ...graph import KEEP, Candidate
from ...lower import Assembled
from ...plan import Pipeline
from ...schedules import Layout
from ..common import COUNT, HOPE, SHARE, SIZE, Session, lacking, nearby_cuts
from .costed import adapts, made_for
from .halves import not_split
from .portfolio import Order, named_layouts, place


def run_nearby(session: Session, order: Order) -> Iterator[None]:
    """Descends from the best cut of each of the layouts that are nearly the best, the best one first."""
    layouts = {x.name: x for x in named_layouts(session.space, len(order), _batches(session), len(session.chain))}
    descended = 0
    for found in _best_first(session):
        if found.forecast.step_s > HOPE.nearby * session.best_s or descended == COUNT.nearby or session.proven:
            return
        layout = layouts.get(found.source)
        if layout is None or not adapts(layout) or 2 * _batches(session) * layout.stages > SIZE.one_cut:
            continue
        placed = place(layout, order, len(session.problem.cluster))
        if placed.pipelines == found.candidate.pipelines and len(placed.pipelines) == 1:
            descended += 1
            yield from _descend(session, placed, found)


def _descend(session: Session, layout: Layout, here: Assembled) -> Iterator[None]:
    """From a plan of a layout, to the next cut on which its orders take less, as long as there is one, and time."""
    asked, improved = session.space.schedule != "search", True
    share = 1.0 if session.clock.fixed else SHARE.nearby
    end = time.monotonic() + share * max(0.0, session.remaining_s)
    left = min(COUNT.nearby_cuts, SIZE.nearby_ops // (3 * _batches(session) * layout.stages))
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
                session.remember(other)
                session.offer(other.plan, layout.name)
                here, improved = other, True
                break


def _made(session: Session, candidate: Candidate, layout: Layout, worth_s: float) -> Assembled | None:
    """The layout with its orders made for a cut; None where little speaks for less than `worth_s` seconds."""
    blocks = session.space.schedule != "search" or layout.takes_all_room
    with suppress(PlanError), session.clock.simulating():
        return made_for(candidate, layout, not_split(session.space, candidate), (), blocks, worth_s)
    return None


def _batches(session: Session) -> int:
    return session.problem.workload.micro_batches


def _best_first(session: Session) -> list[Assembled]:
    """Of every layout and its routes, what took least of what was simulated with all stashes kept, and fits."""
    found: dict[tuple[str, tuple[Pipeline, ...]], Assembled] = {}
    for one in session.seen:
        of, kept = (one.source, one.candidate.pipelines), all(p == KEEP for row in one.candidate.stash for p in row)
        known = found.get(of)
        if kept and (known is None or one.forecast.step_s < known.forecast.step_s) and not lacking(one):
            found[of] = one
    return sorted(found.values(), key=lambda one: one.forecast.step_s)
