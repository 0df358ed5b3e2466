"""The best uniform grid of a job: data x pipeline x team x micro-batch size x layout, as a practitioner would try them.

Every point is a plan of the library, simulated: all devices in equal groups, 1F1B or interleaved, all stashes kept or
all recomputed, optimizers shared or not, stages of equally many layers or of least load, groups of neighbouring devices
or replicas side by side. Points are tried by what they take at least, which no order undercuts; the winner is checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
from jobs_cases import Job
from mechanisms_opponents import stages_of

from contraflow.planner import InputError, ModelFamily, Plan, Workload, check
from contraflow.planner.graph import KEEP, RECOMPUTE, Candidate
from contraflow.planner.lower import assembled
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.problem import StageCosts
from contraflow.planner.schedules import build
from contraflow.planner.search import points
from contraflow.planner.search.common import fits, missing
from contraflow.planner.search.joint import Chosen

CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10)
"""Stages a device; 1 is 1F1B."""
WAYS = [(policy, even) for policy in (KEEP, RECOMPUTE) for even in (True, False)]


def cut(works: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Where stages end, one for each speed, so that the slowest takes least to a part in 2^30, by bisection."""
    low, high = 0.0, sum(works) / min(speeds)
    ends = [*range(len(speeds)), len(works)]
    for _ in range(30):
        middle = (low + high) / 2
        found = _within(middle, works, speeds)
        low, high, ends = (low, middle, found) if found else (middle, high, ends)
    return ends


def _within(most_s: float, works: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Stages of at most so many seconds, as many layers in each as fit; none where there are no such stages."""
    ends = [0]
    for left, speed in zip(range(len(speeds) - 1, -1, -1), speeds, strict=True):
        end, load = ends[-1], 0.0
        while end < len(works) - left and load + works[end] <= most_s * speed:
            load += works[end]
            end += 1
        if end == ends[-1]:
            return []
        ends.append(end)
    return ends if ends[-1] == len(works) else []


@dataclass(frozen=True)
class Grid:
    """A point: `data` groups of `pipeline` devices (teams), `chunks` stages on each."""

    of: Chosen
    data: int
    pipeline: int
    chunks: int
    policy: str
    even: bool

    def __str__(self) -> str:
        size, team = self.of.point.micro_batch_size, self.of.point.team
        name = "1F1B" if self.chunks == 1 else f"interleaved-{self.chunks}"
        return f"data {self.data} x pipeline {self.pipeline} x team {team}, size {size}, {name}, {self.policy}"

    @property
    def each(self) -> int:
        """Micro-batches of a group."""
        return self.of.micro_batches // self.data

    @cached_property
    def ends(self) -> list[int]:
        """Where stages end, in the model's order of layers."""
        model, count = self.of.model, self.pipeline * self.chunks
        if self.even:
            whole, more = divmod(len(model.layers), count)
            return list(accumulate((whole + (s < more) for s in range(count)), initial=0))
        speeds = [self.of.cluster.devices[d].kind.speed for d in range(self.pipeline)] * self.chunks
        return cut(self.works, speeds)

    @cached_property
    def works(self) -> list[float]:
        """Seconds of every layer's passes for one micro-batch."""
        again = 2 if self.policy == RECOMPUTE else 1
        layers = [self.of.model.layers[k] for k in self.of.model.topological]
        return [again * x.forward_s + x.backward_s for x in layers]

    @cached_property
    def least_s(self) -> float:
        """Seconds that no order of these stages undercuts: the work of a device, and the way to it and from it."""
        sums = [0.0, *accumulate(self.works)]
        ends, p = self.ends, self.pipeline
        first = [self.of.model.layers[k] for k in self.of.model.topological[: ends[p]]]
        way = [0.0, *accumulate(x.forward_s + x.backward_s - x.backward_weight_s for x in first)]
        speed = max(device.kind.speed for device in self.of.cluster.devices)
        found = 0.0
        for d in range(p):
            work = sum(sums[ends[s + 1]] - sums[ends[s]] for s in range(d, p * self.chunks, p))
            found = max(found, (self.each * work + way[ends[d]]) / speed)
        return found


@dataclass
class Winner:
    """The fastest point that fits."""

    said: str = ""
    seconds: float = math.inf
    plan: Plan | None = None
    simulated: int = 0
    points: int = 0
    faults: list[str] = field(default_factory=list)


def grids(family: ModelFamily, job: Job) -> Iterator[Grid]:
    """All points; all devices take part."""
    for of in points(family.on(job.cluster), job.cluster, job.choice):
        devices, layers = len(of.cluster), len(of.model.layers)
        for data in (d for d in range(1, devices + 1) if devices % d == 0 and of.micro_batches % d == 0):
            pipeline = devices // data
            for chunks in CHUNKS if pipeline > 1 else (1,):
                if pipeline * chunks <= layers:
                    yield from (Grid(of, data, pipeline, chunks, *way) for way in WAYS)


def layout_of(grid: Grid, near: bool) -> tuple[tuple[Pipeline, ...], list[list[Op]]]:
    """Pipelines and orders on all devices. Raises ScheduleError where the schedule does not exist for these numbers."""
    name = "1f1b" if grid.chunks == 1 else f"interleaved-{grid.chunks}"
    layout = build(name, grid.pipeline, grid.each)
    pipelines: list[Pipeline] = []
    orders: list[list[Op]] = [[] for _ in grid.of.cluster.devices]
    for g in range(grid.data):
        place = [g * grid.pipeline + d if near else g + grid.data * d for d in range(grid.pipeline)]
        for p in layout.pipelines:
            route = tuple(place[d] for d in p.forward)
            pipelines.append(Pipeline(route, route, tuple(g + grid.data * m for m in p.micro_batches)))
        for d, order in enumerate(layout.orders):
            for kind, stage, batch, *_ in order:
                mine = g + grid.data * batch
                if grid.policy == RECOMPUTE and kind is Kind.B:
                    orders[place[d]].append(Op(Kind.R, stage, mine))
                orders[place[d]].append(Op(kind, stage, mine))
    return tuple(pipelines), orders


def holds(grid: Grid, costs: StageCosts, workload: Workload) -> bool:
    """Whether every device has room for its stages' state and the stashes in flight at once; necessary, and cheap."""
    p, v = grid.pipeline, grid.chunks
    left = costs.incoming_bytes if grid.policy == RECOMPUTE else costs.stash_bytes
    kept = np.minimum(left, costs.stash_bytes).tolist()
    most = max(workload.memory_limit(device.kind.memory_bytes) for device in grid.of.cluster.devices)
    for d in range(p):
        warm = p - d if v == 1 else (p - d - 1) * 2 + (v - 1) * p + 1
        stages = range(d, p * v, p)
        trained = sum(int(costs.parameter_bytes[s]) for s in stages)
        state = trained + workload.gradient_bytes(trained)
        state += workload.optimizer_bytes(trained) // (grid.data if workload.sharded else 1)
        held = min(warm, grid.each * v) * min(kept[s] for s in stages)
        if state + held > most:
            return False
    return True


def tried(grid: Grid, job: Job, sharing: bool, best: Winner) -> None:
    """Simulates a point in both placements, with optimizers shared where allowed, or not; takes what is better."""
    stages = stages_of(grid.of.model, grid.ends)
    costs = StageCosts.of(grid.of.model, stages)
    for sharded in (True, False) if sharing and grid.data > 1 else (False,):
        workload = replace(job.workload, micro_batches=grid.of.micro_batches, sharded=sharded)
        if not holds(grid, costs, workload):
            continue
        problem = Problem(grid.of.model, grid.of.cluster, workload)
        for near in (True, False) if 1 < grid.data < len(grid.of.cluster) else (True,):
            try:
                pipelines, orders = layout_of(grid, near)
                rows = tuple((grid.policy,) * len(stages) for _ in pipelines)
                found = assembled(Candidate(problem, stages, pipelines, rows), orders, str(grid))
            except InputError:  # this schedule does not exist for these numbers
                continue
            best.simulated += 1
            seconds = found.forecast.step_s
            if seconds < best.seconds and not any(missing(found)):
                said = f"{grid}{', optimizers shared' if sharded else ''}{'' if near else ', replicas side by side'}"
                best.said, best.seconds, best.plan = said, seconds, found.plan


def best_grid(job: Job, families: Sequence[ModelFamily], sharing: bool = True) -> Winner:
    """The fastest point of these families; all others take longer or do not fit. sharing: of optimizers, is allowed."""
    every = sorted((grid for family in families for grid in grids(family, job)), key=lambda grid: grid.least_s)
    best = Winner(points=len(every))
    for grid in every:
        if grid.least_s >= best.seconds:
            break
        tried(grid, job, sharing, best)
    if best.plan is not None:
        assert fits(best.plan)
        best.faults = [str(wrong) for wrong in check(best.plan)[:2]]
    return best
