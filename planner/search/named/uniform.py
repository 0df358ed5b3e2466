"""Uniform grids: equal groups of devices with equal numbers of stages, every stash kept or every one made again.

What people try by hand. A lower bound of each point is cheap, so the points are simulated in its order, few of them: a
search with little time for each way to form groups begins with no less than the best of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...basics import PlanError, ScheduleError, check_time
from ...graph import KEEP, RECOMPUTE, Candidate, StageCosts
from ...lower import assembled
from ...partition import cut
from ...plan import Kind, Op, Pipeline
from ...schedules import Layout, in_laps
from ..common import COUNT, SHARE, SIZE, TOLERANCE, Groups, Session, balanced, lacking, policies
from .widths import layouts

Cuts = tuple[int, ...]
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
        costs = self.session.chain.costs
        each = costs.backward_s + costs.forward_s * (2 if self.policy == RECOMPUTE else 1)
        return np.concatenate([[0.0], np.cumsum(each)])

    @cached_property
    def floor_s(self) -> float:
        """No cut is shorter: the work of a group on all of its devices."""
        return float(self.batches * self.done_s[-1] / self.speeds[: len(self.groups[0])].sum())

    @cached_property
    def likely_s(self) -> float:
        """A guess at the shortest step."""
        return self.least_s(self.even)

    def least_s(self, cuts: Sequence[int]) -> float:
        """No order of these stages is shorter: a device's work, after the way of a micro-batch to it."""
        size = len(self.groups[0])
        work = np.diff(self.done_s[[0, *cuts, -1]]) / self.speeds
        forward = 1 / (3 if self.policy == KEEP else 4)
        way = forward * np.concatenate([[0.0], np.cumsum(work[: size - 1])])
        return float((self.batches * work.reshape(-1, size).sum(axis=0) + way).max())

    def holds(self, costs: StageCosts) -> bool:
        """Whether every device has room for its stages' state and the stashes of what 1F1B has in flight; cheap."""
        workload, size = self.session.problem.workload, len(self.groups[0])
        stash = (costs.incoming_bytes if self.policy == RECOMPUTE else costs.stash_bytes).tolist()
        for k, d in enumerate(self.groups[0]):
            mine = range(k, len(stash), size)
            trained = sum(int(costs.parameter_bytes[s]) for s in mine)
            state = trained + workload.gradient_bytes(trained)
            state += workload.optimizer_bytes(trained) // (len(self.groups) if workload.sharded else 1)
            flying = min(size - k + (self.chunks - 1) * size, self.batches * self.chunks)
            if state + flying * min(stash[s] for s in mine) > self.session.chain.limit(d):
                return False
        return True


def run_uniform(session: Session) -> None:
    """Simulates the most promising points until no other can be better."""
    if session.space.pipelines is not None or not SIZE.exact_first < session.ops or session.registered or session.over:
        return
    with session.clock.hurried(1.0 if session.clock.fixed else SHARE.uniform, 0.0):
        simulated = 0
        for point in session.rounds.go_on_in_grid(lambda: sorted(_points(session), key=lambda one: one.likely_s)):
            worth_s = session.incumbent.worth_s * (1 - TOLERANCE.same)
            for cuts in point.cuts if point.floor_s < worth_s else ():
                if point.least_s(cuts) < worth_s and not session.over:
                    simulated += _tried(session, point, cuts)
            if session.over or simulated >= COUNT.uniform:
                return


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
    """Stages a device: all small numbers, then every fifth part more."""
    depth = 1
    while depth <= min(most, COUNT.deepest):
        yield depth
        depth = max(depth + 1, depth * 5 // 4)


def _tried(session: Session, point: Point, cuts: Cuts) -> int:
    """How many plans of a point have been simulated and offered."""
    problem, stages = session.problem, session.chain.stages(cuts)
    costs, simulated = StageCosts.of(problem.model, stages), 0
    if not point.holds(costs):
        return 0
    for layout in in_laps(len(point.groups[0]), point.batches, point.chunks):
        try:
            pipelines, orders = _on_all(point, layout)
            rows = tuple((point.policy,) * len(stages) for _ in pipelines)
            name = layout.name if len(point.groups) == 1 else f"{layout.name}, {len(point.groups)} replicas"
            found = assembled(Candidate(problem, stages, pipelines, rows), orders, name)
        except (PlanError, ScheduleError):
            continue
        simulated += 1
        if found.forecast.step_s < session.best_s and not lacking(found):
            session.offer(found.plan, name)
    return simulated


def _on_all(point: Point, layout: Layout) -> tuple[tuple[Pipeline, ...], list[list[Op]]]:
    """The layout on every group, micro-batches dealt out in turns."""
    width, batches = len(point.groups), point.session.problem.workload.micro_batches
    pipelines = list[Pipeline]()
    orders: list[list[Op]] = [[] for _ in point.session.problem.cluster.devices]
    for g, devices in enumerate(point.groups):
        for pipeline in layout.pipelines:
            mine = tuple(g + width * m for m in pipeline.micro_batches if g + width * m < batches)
            route = tuple(devices[d] for d in pipeline.forward)
            pipelines += [Pipeline(route, route, mine)] if mine else []
        for d, order in zip(devices, layout.orders, strict=True):
            for op in order:
                m = g + width * op.micro_batch
                if m < batches:
                    again = point.policy == RECOMPUTE and op.kind in (Kind.B, Kind.I)
                    orders[d] += [Op(Kind.R, op.stage, m)] if again else []
                    orders[d].append(op._replace(micro_batch=m))
    return tuple(pipelines), orders
