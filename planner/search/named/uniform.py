"""Uniform grids: equal groups of devices with equal numbers of stages, every stash kept or every one made again.

What people try by hand. A lower bound of each point is cheap, so the points are simulated in its order, few of them: a
search with little time for each way to form groups begins with no less than the best of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from ...basics import check_time
from ...graph import KEEP, SELECTIVE
from ...partition import Cuts, cut
from ...schedules import Layout, folded, in_laps, in_pieces, whole_laps
from ..common import COUNT, HOPE, SHARE, SIZE, TOLERANCE, Session, balanced, equal_groups, remaking, unknown
from .equal import Equal, Floats
from .likeliest import Likeliest
from .portfolio import Tried, depths, pieces, try_layout


@dataclass(frozen=True, eq=False)
class Point:
    """So many stages on each device of equal groups, in laps or down and up; all stashes under one policy.

    pieces: of every stage, one after the other.
    """

    of: Equal
    chunks: int
    policy: str
    folded: bool = False
    pieces: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it apart from other points of a problem."""
        return self.of.groups, self.chunks, self.policy, self.folded, self.pieces

    @cached_property
    def places(self) -> list[int]:
        """Of every stage, which device of its group it is on."""
        lap = list(range(len(self.of)))
        whole = lap + lap[::-1] if self.folded else lap * self.chunks
        return [place for place in whole for _ in range(self.pieces)]

    @cached_property
    def route(self) -> tuple[int, ...]:
        """The devices of the stages in the first group."""
        return tuple(self.of.groups[0][place] for place in self.places)

    @cached_property
    def cuts(self) -> list[Cuts]:
        """Where the layers are cut: the slowest device, or stage, takes least; work, or layers, in equal shares.

        Of the first two none where some device does not hold its share with nothing shared.
        """
        chain, route = self.of.session.chain, self.route
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
        devices = self.of.session.problem.cluster.devices
        return np.array([devices[d].kind.speed for d in self.route], dtype=np.float64)

    @cached_property
    def done_s(self) -> Floats:
        """Seconds that the layers up to each compute for a micro-batch on a device of speed 1."""
        backward = np.concatenate([[0.0], np.cumsum(self.of.session.chain.costs.backward_s)])
        return np.asarray(backward + self.of.forward_s + self.of.remake_s(self.policy))

    def bytes(self, cuts: Cuts) -> Floats:
        """Per device, at the least: the state of its stages, and stashes as 1F1B has them in flight, one of each stage
        where stages are folded; cheap."""
        size, ends = len(self.of), [0, *cuts, -1]
        flying = 2 * np.ones(size) if self.folded else (self.chunks - 1) * size + np.arange(size, 0, -1)
        left = {KEEP: self.of.stash_bytes, SELECTIVE: self.of.rest_bytes}.get(self.policy)
        one = np.full(size, math.inf)
        np.minimum.at(one, self.places, left(ends) if left else np.zeros(len(ends) - 1))
        return np.asarray(self.state(cuts) + np.minimum(flying, self.of.batches * self.chunks) * one)

    def state(self, cuts: Cuts) -> Floats:
        """Bytes of what stays on each device."""
        held = np.bincount(self.places, np.diff(self.of.state_bytes[[0, *cuts, -1]]))
        return np.asarray(held - self.of.session.chain.shared_bytes)

    @cached_property
    def worthwhile(self) -> list[Cuts]:
        """Cuts that have room, if equal shares have it on all devices together."""
        if self.bytes(self.even).sum() > self.of.limits.sum():
            return []
        return [cuts for cuts in self.cuts if (self.bytes(cuts) <= self.of.limits).all()]

    @cached_property
    def floor_s(self) -> float:
        """No cut is shorter: the work of a group on all of its devices."""
        return float(self.of.batches * self.done_s[-1] / self.speeds[: len(self.of)].sum())

    @cached_property
    def hoped_s(self) -> float:
        """A guess that takes no search: the shortest step were the work cut as evenly as its layers allow."""
        speed = self.speeds[: len(self.of)]
        heaviest_s = float(self.of.batches * np.diff(self.done_s).max() / speed.max())
        way_s = self.of.forward_s[-1] * (len(self.of) - 1) / (len(self.places) * speed.mean())
        work_s = self._waiting(float(max(self.floor_s, heaviest_s) + way_s + self.after_s))
        return max(work_s, self.held_s(self.even))

    @cached_property
    def likely_s(self) -> float:
        """The same on the cuts there are: a device's work and the gradient sums after it, or a link's messages."""
        least_s = min(map(self.least_s, self.worthwhile), default=math.inf)
        return max(self._waiting(least_s + self.after_s), self.hoped_s)

    def _waiting(self, work_s: float) -> float:
        """Seconds with what is waited for messages: the more, the fuller the busiest link is, and at the least its
        messages.
        """
        link_s = self.busiest_link_s(self.even)
        return max(work_s * (1 + HOPE.waiting * min(1.0, link_s / work_s) ** 3), link_s) if work_s else link_s

    @property
    def after_s(self) -> float:
        """Seconds of sums after a device's work: all but one may run beside the backwards of its last micro-batch."""
        sum_s = self.of.sum_s(len(self.places))
        backward_s = (self.done_s[-1] - self.of.forward_s[-1]) / self.speeds[: len(self.of)].sum()
        return float(max(sum_s, sum_s * len(self.places) / len(self.of) - backward_s))

    def least_s(self, cuts: Cuts) -> float:
        """No order of these stages is shorter: a device's work, after the forwards on the way to it."""
        size, ends = len(self.of), [0, *cuts, -1]
        around = self.of.session.chain.around_s[ends[:-1], ends[1:]]
        passes = 2 if self.policy == KEEP else 3
        work = (np.diff(self.done_s[ends]) + passes * around) / self.speeds
        forward = (np.diff(self.of.forward_s[ends]) + around) / self.speeds
        way = np.concatenate([[0.0], np.cumsum(forward[: size - 1])])
        return float((self.of.batches * np.bincount(self.places, work) + way).max())

    def held_s(self, cuts: Cuts) -> float:
        """No order that keeps its stashes is shorter: each stays from its forward to its backward, after those of all
        later stages, in what its device has beside its state; infinite where that is nothing.
        """
        if self.policy != KEEP:
            return 0.0
        ends = [0, *cuts, -1]
        way_s = (np.diff(self.of.forward_s[ends]) + np.diff(self.of.input_s[ends])) / self.speeds
        stay_s = way_s[::-1].cumsum()[::-1]
        area = self.of.batches * np.bincount(self.places, self.of.stash_bytes(ends) * stay_s)
        room, some = self.of.limits - self.state(cuts), area > 0
        return float((area[some] / room[some]).max(initial=0.0)) if (room[some] > 0).all() else math.inf

    def busiest_link_s(self, cuts: Cuts) -> float:
        """Seconds of all messages on the link that has most of them."""
        sent = self.of.session.chain.boundary_bytes[list(cuts)]
        ends = zip(self.places, self.places[1:], strict=False)
        crossed = [min(a, b) if self.folded else a for a, b in ends]  # a V's two stages on its last device: no hop
        sent = np.where(np.diff(self.places) != 0, sent, 0.0)
        hops = np.bincount(crossed, sent, len(self.of))
        batches = self.of.session.problem.workload.micro_batches / len(self.of.groups)
        return float(batches * (self.of.seconds_a_byte @ hops).max(initial=0.0))

    def layouts(self) -> Iterator[Layout]:
        """On one group."""
        return iter(_layouts(len(self.of), self.of.batches, 0 if self.folded else self.chunks, self.pieces))


@lru_cache(maxsize=COUNT.layouts)
def _layouts(devices: int, batches: int, chunks: int, pieces: int) -> tuple[Layout, ...]:
    """The same ones for other groups of as many devices, whose instants are known; `chunks`: 0 where folded."""
    if pieces > 1:
        return (in_pieces(whole_laps(devices, batches, 1), pieces),)
    return tuple(in_laps(devices, batches, chunks) if chunks else folded(devices, batches))


def run_uniform(session: Session) -> None:
    """Simulates the most promising points until no other can be better, or a share of the time is over."""
    simulated = 0
    with session.earning("uniform grids", SHARE.uniform, 1.0):
        while simulated < COUNT.uniform and not session.done and math.isfinite(next_point_s(session)):
            simulated += try_point(session)


def next_point_s(session: Session) -> float:
    """Seconds that the next point is likely to come to at the best; infinite where none is left, or there are none."""
    return _left(session).next_s()


def try_point(session: Session) -> int:
    """Simulates the next point; how many plans that were."""
    left = _left(session)
    point = left.pop()
    check_time()
    simulated, step_s = _tried(session, point)
    left.note(point, step_s)
    return simulated


def unfit(session: Session) -> set[tuple[object, ...]]:
    """Keys of the points that came to nothing: no plan of theirs fits, or none could be the best."""
    return {point.key for point in _left(session).in_vain}


def _left(session: Session) -> Likeliest[Point]:
    """The points that have not been simulated; misjudged alike are those of the same groups and direction with about as
    many stages a device.
    """
    made = partial(Likeliest[Point], like=lambda point: (point.of.groups, point.folded, point.chunks.bit_length()))
    found = session.rounds.goes_on("kept", lambda: made(grid_points(session)))
    assert isinstance(found, Likeliest)
    return found


def _tried(session: Session, point: Point) -> Tried:
    """A point with all of its orders on the first of its cuts, and with the best of them on the others."""
    worth_s = session.incumbent.worth_s * (1 - TOLERANCE.same)
    cuts = [c for c in point.worthwhile if point.least_s(c) < worth_s] if point.floor_s < worth_s else []
    layouts, simulated, best_s = list(point.layouts()) if cuts else [], 0, math.inf
    for c in cuts:
        steps = []
        for layout in layouts:
            tried = try_layout(session, layout, [c], layout.name, point.policy, point.of.groups)
            simulated += tried.simulated
            steps.append(tried.step_s)
        least_s = min(steps)
        if math.isfinite(least_s):
            layouts, best_s = [layouts[steps.index(least_s)]], min(best_s, least_s)
    return Tried(simulated, best_s)


def grid_points(session: Session) -> Iterator[Point]:
    """All points of a problem that has them: with many ops, and all that such plans use allowed."""
    space = session.space
    asked = space.schedule == "search" and space.pipelines is None and not unknown(session.problem, space)
    if asked and session.ops > SIZE.grids:
        yield from _points(session)


def _points(session: Session) -> Iterator[Point]:
    problem, space = session.problem, session.space
    devices, layers = len(problem.cluster), len(session.chain)
    one = tuple(range(devices))
    kept = (KEEP, *remaking(problem, space))
    for width in range(1, devices + 1) if space.replicas is None else (space.replicas,):
        if devices % width or problem.workload.micro_batches < width or layers < devices // width:
            continue
        for groups in equal_groups(problem, width) if width > 1 else [(one,)]:
            check_time()
            of = Equal(session, groups)
            for chunks in depths(layers // len(of)) if len(of) > 1 else (1,):
                yield from (Point(of, chunks, policy) for policy in kept)
            for count in pieces(layers // len(of)):
                yield from (Point(of, 1, policy, pieces=count) for policy in kept if policy != KEEP)
            if layers >= 2 * len(of) > 2:
                yield Point(of, 2, KEEP, folded=True)
