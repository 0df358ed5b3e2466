"""Plans from all over the space of small problems: whatever the checker accepts, whoever may find it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from random_plans import Costs, Greedy, random_layers

from contraflow.planner import Cluster, Link, ModelGraph, SearchSpace, Workload, check
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition.chain import compositions
from contraflow.planner.plan import Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.overhead import Overhead
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search.common import fits, including

SPACES = (
    SearchSpace(),
    SearchSpace(pipelines=1),
    SearchSpace(pipelines=2, split_backward=False),
    SearchSpace(recompute=False, offload=False),
    SearchSpace(pipelines=1, recompute=False, offload=False),
    SearchSpace(separate_backward=False),
    SearchSpace(pipelines=1, recompute=False, offload=False, separate_backward=False),
    SearchSpace(pipelines=1, recompute=False, offload=False, separate_backward=False, split_backward=False),
    SearchSpace(offload=False, separate_backward=False),
)
"""What callers ask for."""
MOST_ORDERS = 3
COSTS = Costs(
    (1, 2, 3, 4), (1, 2, 3), 0.5, range(1, 7), (1, 0.5), held_more=0, output=(0, 1, 2), parameters=(0, 0, 2),
    workspace=(0,), input=(None,),
)  # fmt: skip
Route = tuple[int, ...]


def small_problem(rng: random.Random) -> Problem:
    """Two or three devices, layers and micro-batches; random costs, links with and without a price, no memory limit."""
    layers, devices, batches = rng.randint(2, 3), rng.randint(2, 3), rng.randint(2, 3)
    found = random_layers(rng, layers, COSTS)
    link, host = rng.choice([Link(), Link(4.0), Link(8.0, 0.2)]), rng.choice([Link(), Link(6.0)])
    kinds = [DeviceType(f"d{k}", 1 << 30, rng.choice([1.0, 1.0, 2.0])) for k in range(devices)]
    if rng.random() < 0.6:
        nodes: tuple[NodeGroup, ...] = (NodeGroup(1, devices, kinds[0], link, None, host),)
    else:
        nodes = tuple(NodeGroup(1, 1, kind, link, None, host) for kind in kinds)
    overhead = rng.choice([None, Overhead(0.5), Overhead(0.25, 0.25, 0.5, 0.25), Overhead(1.0, 0.5, 1.0)])
    return Problem(ModelGraph.chain(found), Cluster(nodes, link, overhead=overhead), Workload(batches))


def route(stages: int, devices: int, rng: random.Random) -> tuple[Route, Route]:
    """Any forward devices for so many stages; the same ones backward, or any others."""
    forward = tuple(rng.randrange(devices) for _ in range(stages))
    return forward, rng.choice([forward, tuple(rng.randrange(devices) for _ in range(stages))])


def row(devices: tuple[Route, Route], cluster: Cluster, rng: random.Random) -> tuple[str, ...]:
    """Any stash policy for every stage of a route."""
    found = []
    for forward, back in zip(*devices, strict=True):
        ships = [f"ship>{d}" for d in range(len(cluster)) if d != forward] if forward == back else []
        host = ["offload"] if cluster.same_node(forward, back) else []
        found.append(rng.choice(["keep", "recompute", *host, *ships]))
    return tuple(found)


def candidates(problem: Problem, rng: random.Random, count: int) -> Iterator[Candidate]:
    """Random structures, evenly over cuts and pipelines: one, or two, with rows for every micro-batch at times."""
    layers, batches = len(problem.model.layers), problem.workload.micro_batches
    names = [layer.name for layer in problem.model.layers]
    cuts = [c for n in range(1, layers + 1) for c in compositions(layers, n, 100) or []]
    for _ in range(count):
        ends = (0, *rng.choice(cuts), layers)
        stages = tuple(tuple(names[a:b]) for a, b in zip(ends, ends[1:], strict=False))
        chosen = [route(len(stages), len(problem.cluster), rng) for _ in range(rng.choice([1, 1, 2, batches]))]
        owner = [rng.randrange(len(chosen)) for _ in range(batches)]
        taken = [tuple(m for m in range(batches) if owner[m] == k) for k in range(len(chosen))]
        pipelines = [Pipeline(*r, t) for r, t in zip(chosen, taken, strict=True) if t]
        row_of = {m: row(chosen[owner[m]], problem.cluster, rng) for m in range(batches)}
        if rng.random() < 0.7:  # one row a pipeline
            first = {k: m for m, k in reversed(list(enumerate(owner)))}
            row_of = {m: row_of[first[owner[m]]] for m in range(batches)}
        keep = rng.random() < 0.4
        yield regroup(problem, stages, pipelines, {} if keep else row_of)


def plans(problem: Problem, rng: random.Random, count: int) -> list[Plan]:
    """Plans of random structures in random orders that the checker accepts, whatever memory they take."""
    found = []
    for candidate in candidates(problem, rng, count):
        for _ in range(MOST_ORDERS):
            try:
                plan = assemble(candidate, Greedy(candidate, rng, rng.random() < 0.7).orders())
            except PlanError:
                continue
            if check(plan) == []:
                found.append(plan)
    return found


def limited(problem: Problem, found: Sequence[Plan], limit: int | None) -> tuple[Problem, list[Plan]]:
    """The problem with a memory limit, and the plans that keep it, as plans of this problem."""
    tight = replace(problem, workload=replace(problem.workload, memory_limit_bytes=limit))
    moved = [replace(plan, problem=tight) for plan in found]
    return tight, [plan for plan in moved if fits(plan)]


def allowed(space: SearchSpace, found: Sequence[Plan]) -> list[Plan]:
    """The plans that a space has."""
    return [plan for plan in found if including(space, plan) == space]


def seconds(plan: Plan) -> float:
    """What the search makes small."""
    assert plan.forecast is not None
    return plan.forecast.objective_s
