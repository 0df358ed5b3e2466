"""Uniform grids: equal groups of devices with equal numbers of stages, every stash kept or every one made again.

What people try by hand. A lower bound of each point is cheap, so the points are simulated in its order, few of them: a
search with little time for each way to form groups begins with no less than the best of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...basics import check_time
from ...graph import KEEP, RECOMPUTE
from ...partition import Cuts, cut
from ...schedules import Layout, in_laps
from ..common import COUNT, SHARE, SIZE, TOLERANCE, Groups, Session, balanced, policies
from .portfolio import try_layout
from .widths import dealt, layouts

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Point:
    """So many stages on each device of equal groups; all stashes under one policy."""

    session: Session
    groups: Groups
    chunks: int
    policy: str

    @property
    def batches(self) -> int:
        """Micro-batches of the group that has most."""
        return -(-self.session.problem.workload.micro_batches // len(self.groups))

    @cached_property
    def cuts(self) -> list[Cuts]:
        """Where the layers are cut: the slowest device, or stage, takes least; work, or layers, in equal shares.

        Of the first two none where some device does not hold its share with nothing shared.
        """
        chain, route = self.session.chain, self.groups[0] * self.chunks
        count, layers = len(route), len(chain)
        listed = tuple(layers * k // count for k in range(1, count))
        found = (balanced(chain, route), cut(chain, route, [0] * count, buffers=0), self.even, listed)
        return list(dict.fromkeys(cuts for cuts in found if cuts is not None))

    @cached_property
    def even(self) -> Cuts:
        """Where they are cut at equal shares of the work, which takes no search."""
        count, layers = len(self.speeds), len(self.done_s) - 1
        asked = self.done_s[-1] * np.cumsum(self.speeds)[:-1] / self.speeds.sum()
        number = np.arange(1, count)
        ends = np.maximum.accumulate(np.maximum(np.searchsorted(self.done_s, asked) - number, 0)) + number
        return tuple(np.minimum(ends, layers - count + number).tolist())

    @cached_property
    def speeds(self) -> Floats:
        """Of the devices of the stages."""
        devices = self.session.problem.cluster.devices
        return np.array([devices[d].kind.speed for d in self.groups[0]] * self.chunks, dtype=np.float64)

    @cached_property
    def done_s(self) -> Floats:
        """Seconds that the layers up to each compute for a micro-batch on a device of speed 1."""
        backward = np.concatenate([[0.0], np.cumsum(self.session.chain.costs.backward_s)])
        return np.asarray(backward + self.forward_s * (2 if self.policy == RECOMPUTE else 1))

    @cached_property
    def forward_s(self) -> Floats:
        """The same, of the forwards alone."""
        return np.concatenate([[0.0], np.cumsum(self.session.chain.costs.forward_s)])

    def bytes(self, cuts: Cuts) -> Floats:
        """Per device, at the least: the state of its stages, and stashes as 1F1B has them in flight; cheap."""
        chain, size, ends = self.session.chain, len(self.groups[0]), [0, *cuts, -1]
        state, stash = self._sizes
        flying = (self.chunks - 1) * size + np.arange(size, 0, -1)
        one = np.diff(stash[ends]).reshape(-1, size).min(axis=0) if self.policy == KEEP else 0.0
        held = np.diff(state[ends]).reshape(-1, size).sum(axis=0) - chain.shared_bytes
        return np.asarray(held + np.minimum(flying, self.batches * self.chunks) * one)

    @cached_property
    def _sizes(self) -> tuple[Floats, Floats]:
        """Bytes that stay, and of stashes, of the layers up to each."""
        chain = self.session.chain
        state, stash = chain.held_bytes(len(self.groups)), chain.costs.stash_bytes
        return np.concatenate([[0.0], np.cumsum(state)]), np.concatenate([[0.0], np.cumsum(stash)])

    @cached_property
    def limits(self) -> Floats:
        """Bytes of the devices of a group."""
        return np.array([self.session.chain.limit(d) for d in self.groups[0]], dtype=np.float64)

    @cached_property
    def worthwhile(self) -> list[Cuts]:
        """Cuts that have room, if equal shares have it on all devices together."""
        if self.bytes(self.even).sum() > self.limits.sum():
            return []
        return [cuts for cuts in self.cuts if (self.bytes(cuts) <= self.limits).all()]

    @cached_property
    def floor_s(self) -> float:
        """No cut is shorter: the work of a group on all of its devices."""
        return float(self.batches * self.done_s[-1] / self.speeds[: len(self.groups[0])].sum())

    @cached_property
    def likely_s(self) -> float:
        """A guess at the shortest step."""
        return self.least_s(self.even)

    def least_s(self, cuts: Cuts) -> float:
        """No order of these stages is shorter: a device's work, after the forwards on the way to it."""
        size, ends = len(self.groups[0]), [0, *cuts, -1]
        work = np.diff(self.done_s[ends]) / self.speeds
        forward = np.diff(self.forward_s[ends]) / self.speeds
        way = np.concatenate([[0.0], np.cumsum(forward[: size - 1])])
        return float((self.batches * work.reshape(-1, size).sum(axis=0) + way).max())

    def layouts(self) -> Iterator[Layout]:
        """On every group, micro-batches dealt out in turns."""
        problem, width = self.session.problem, len(self.groups)
        for one in in_laps(len(self.groups[0]), self.batches, self.chunks):
            routed, orders = dealt(problem, self.groups, one.pipelines, one.orders)
            name = one.name if width == 1 else f"{one.name}, {width} replicas"
            pipelines = tuple(pipeline for pipeline, _, _ in routed)
            most = one.most if width == 1 else None  # orders are made for the costs of one pipeline
            yield replace(one, name=name, pipelines=pipelines, orders=tuple(map(tuple, orders)), most=most)


def run_uniform(session: Session) -> None:
    """Simulates the most promising points until no other can be better, or a share of the time is over."""
    simulated = 0
    with session.clock.hurried(1.0 if session.clock.fixed else SHARE.uniform, 0.0):
        while simulated < COUNT.uniform and not session.done and math.isfinite(next_point_s(session)):
            simulated += try_point(session)


def next_point_s(session: Session) -> float:
    """Seconds that the next point is likely to come to at the best; infinite where none is left, or there are none."""
    return session.rounds.listed_grid(lambda: _listed(session))[-1][0]


def try_point(session: Session) -> int:
    """Simulates the next point; how many plans that were."""
    point = session.rounds.listed_grid(lambda: _listed(session)).pop()[1]
    assert isinstance(point, Point)
    check_time()
    worth_s = session.incumbent.worth_s * (1 - TOLERANCE.same)
    cuts = [c for c in point.worthwhile if point.least_s(c) < worth_s] if point.floor_s < worth_s else []
    layouts = point.layouts() if cuts else ()
    return sum(try_layout(session, layout, cuts, layout.name, point.policy) for layout in layouts)


def _listed(session: Session) -> list[tuple[float, Point | None]]:
    """The points of a problem that has them, the most promising last; before them the end."""
    space, end = session.space, (math.inf, None)
    asked = space.schedule == "search" and space.pipelines is None and not session.registered
    if not asked or session.ops <= SIZE.exact_first:
        return [end]
    points = sorted(_points(session), key=lambda point: -point.likely_s)
    return [end, *((point.likely_s, point) for point in points)]


def _points(session: Session) -> Iterator[Point]:
    problem, space = session.problem, session.space
    devices, layers = len(problem.cluster), len(session.chain)
    one = tuple(range(devices))
    kept = (KEEP, RECOMPUTE) if RECOMPUTE in policies(problem, space) else (KEEP,)
    for width in range(1, devices + 1) if space.replicas is None else (space.replicas,):
        if devices % width or problem.workload.micro_batches < width or layers < devices // width:
            continue
        for groups in layouts(problem, width) if width > 1 else [(one,)]:
            check_time()
            for chunks in _depths(layers // len(groups[0])) if len(groups[0]) > 1 else (1,):
                yield from (Point(session, groups, chunks, policy) for policy in kept)


def _depths(most: int) -> Iterator[int]:
    """Stages a device: all small numbers, then each a quarter more."""
    depth = 1
    while depth <= min(most, COUNT.deepest):
        yield depth
        depth = max(depth + 1, depth * 5 // 4)
