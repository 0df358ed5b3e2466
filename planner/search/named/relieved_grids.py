"""Uniform grids whose stashes do not all fit: copied to the host or made again as far as they must be, no further.

Interleaved stages hardly wait, but hold most; every stash made again costs a third more. Between the two lie the plans
in which what a device lacks is copied while it computes, and only the rest is made again. An order is fitted on one
group and laid on all, which takes up to a second; so a guess says which points come first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...basics import check_time
from ...graph import KEEP, OFFLOAD, POLICIES, RECOMPUTE, SELECTIVE
from ...plan import Kind
from ...schedules import Layout
from ..common import COUNT, HOPE, SHARE, SIZE, TOLERANCE, Session, policies
from .equal import Equal
from .laying import splits, ways_to_lay
from .likeliest import Likeliest
from .relieved import try_relieved, ways
from .uniform import Point, grid_points, unfit
from .widths import Width, offered, width_of


@dataclass(frozen=True, eq=False)
class Relieved:
    """A uniform point with every stash kept that its devices cannot hold, and what its stashes may become."""

    kept: Point
    allowed: Collection[str]
    unfit: bool = False

    @cached_property
    def likely_s(self) -> float:
        """A guess at its step: the kept point's, filled and drained, and what is made again beyond what can be copied;
        infinite where the parameters alone do not fit, or nothing is too much, unless its plans came to nothing.
        """
        point, of = self.kept, self.kept.of
        ends = [0, *point.even, -1]
        stashes = of.batches * np.bincount(point.places, of.stash_bytes(ends))
        state = point.state(point.even)
        held, lacks = point.bytes(point.even) - state, point.bytes(point.even) - of.limits
        if not (self.unfit or (lacks > 0).any()) or (state > of.limits).any():
            return math.inf
        moved = stashes * np.clip(lacks / np.maximum(held, 1.0), 0.0, 1.0)
        forward = np.bincount(point.places, np.diff(of.forward_s[ends]) / point.speeds)
        work = np.bincount(point.places, np.diff(point.done_s[ends]) / point.speeds)
        whole_s = max(point.least_s(point.even), point.busiest_link_s(point.even))
        again = np.maximum(0.0, moved - self._copied_bytes(whole_s)) / np.maximum(stashes, 1.0)
        if again.any() and RECOMPUTE not in self.allowed:
            return math.inf
        again_s = again * forward
        if SELECTIVE in self.allowed:  # first what takes least time; what it drops is not dropped by the other
            kept = of.batches * np.bincount(point.places, of.rest_bytes(ends))
            partly = np.bincount(point.places, np.diff(of.remake_s(SELECTIVE)[ends]) / point.speeds)
            share = np.minimum(1.0, again * stashes / np.maximum(stashes - kept, 1.0))
            whole = np.maximum(0.0, 1 - (1 - again) * stashes / np.maximum(kept, 1.0))
            again_s = np.minimum(again_s, (1 - whole) * share * partly + whole * forward)
        drained_s = float((work - forward)[:-1].sum()) / point.chunks
        laid = (Equal(of.session, groups) for groups in ways_to_lay(of.session.problem, of.groups))
        sum_s = min(on.sum_s(len(point.places)) for on in laid)
        return whole_s + float((of.batches * again_s).max()) + drained_s + sum_s

    def _copied_bytes(self, seconds: float) -> float:
        """What a device's share of its host link takes in so many seconds."""
        nodes = self.kept.of.session.problem.cluster.nodes
        links = (group.host_link.bandwidth / group.host_link_shared_by for group in nodes)
        return HOPE.copied * min(links) * seconds if OFFLOAD in self.allowed else 0.0

    @property
    def hoped_s(self) -> float:
        """The same: it takes no search."""
        return self.likely_s

    @cached_property
    def layout(self) -> Layout | None:
        """Its order with whole backwards: of split ones the halves for weights hold stashes that came back."""
        layouts = (x for x in self.kept.layouts() if not any(op.kind is Kind.W for line in x.orders for op in line))
        return next(layouts, None)


def run_relieved_grids(session: Session) -> None:
    """Fits the most promising points, until no other is likely to be better or a share of the time is over."""
    fitted = 0
    with session.earning("relieved grids", SHARE.relieved_grids, 1.0):
        while fitted < COUNT.relieved_grids and not session.done and next_relieved_s(session) < session.best_s:
            fitted += try_relieved_point(session)


def next_relieved_s(session: Session) -> float:
    """Seconds that the next point is likely to come to; infinite where none is left, or there are none."""
    return _left(session).next_s()


def try_relieved_point(session: Session) -> int:
    """Fits the next point on one group by every set of what stashes may become, and lays the best on all groups.

    Returns how often it was fitted.
    """
    left = _left(session)
    point = left.pop()
    check_time()
    layout, worth_s = point.layout, session.incumbent.worth_s * (1 - TOLERANCE.same)
    if layout is None or point.kept.floor_s >= worth_s:
        return 0
    width = _width(session, point)
    inner, before = width.session, width.session.rounds.simulations
    inner.incumbent.start_from(None)
    inner.incumbent.limit(worth_s)
    allowed = [some for some in ways(inner) if not any(POLICIES[name].names_device for name in some)]
    with session.part(inner, 1.0, 0.0):
        steps = [try_relieved(inner, layout, cuts, allowed) for cuts in point.kept.cuts]
        left.note(point, min(steps, default=math.inf))
    session.clock.heed(inner.clock)
    if inner.best is not None and inner.best_s < worth_s:
        offered(session, width, inner.best)
    return inner.rounds.simulations - before


def _width(session: Session, point: Relieved) -> Width:
    """The search on one of the point's groups, which its points share."""
    known, groups = session.rounds.relieved_on, point.kept.of.groups
    if groups not in known:
        known[groups] = width_of(session, groups)
    found = known[groups]
    assert isinstance(found, Width)
    return found


def _left(session: Session) -> Likeliest[Relieved]:
    """The points that have not been fitted; misjudged alike are those of the same groups."""

    def made() -> Likeliest[Relieved]:
        allowed = list(dict.fromkeys((*policies(session.problem, session.space), *session.registered)))
        points = _points(session, allowed) if allowed else ()
        return Likeliest(points, like=lambda point: point.kept.of.groups, hope=HOPE.relieved)

    found = session.rounds.goes_on("relieved", made)
    assert isinstance(found, Likeliest)
    return found


def _points(session: Session, allowed: Collection[str]) -> Iterator[Relieved]:
    batches, groups = session.problem.workload.micro_batches, set(splits(session.problem, session.space))
    in_vain = unfit(session)
    for kept in grid_points(session):
        if len(kept.of.groups) > 1 and kept.of.groups not in groups:  # laid together with those that are
            continue
        passes = 2 * batches // len(kept.of.groups) * len(kept.places)
        if kept.policy == KEEP and not kept.folded and len(kept.of) > 1 and passes <= SIZE.one_cut:
            point = Relieved(kept, allowed, kept.key in in_vain)
            if math.isfinite(point.likely_s):
                yield point
