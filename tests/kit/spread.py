"""Plans whose stages have replicas of their own, each in its own number: from widths, and random ones. No torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from instances import cut_evenly
from random_plans import random_cluster, random_model, tied

from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition import Block, deal, in_flight
from contraflow.planner.plan import Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.problem.workload import Workload
from contraflow.planner.search.named.listed import listed
from contraflow.planner.search.named.stash_choices import with_recomputation


def side_by_side(widths: Sequence[int], ends: Sequence[int] | None = None) -> tuple[Block, ...]:
    """Stages of so many replicas on neighbouring devices; `ends`: their last layers, by default one layer each."""
    blocks, at, first = [], 0, 0
    for width, end in zip(widths, ends or range(1, len(widths) + 1), strict=True):
        blocks.append(Block(first, end, at, width))
        at, first = at + width, end
    return tuple(blocks)


def spread(
    model: ModelGraph,
    widths: Sequence[int],
    workload: Workload,
    cluster: Cluster | None = None,
    weights: str = FLUSH,
    policy: str = "keep",
    halves: bool = False,
) -> Plan:
    """Layers dealt out evenly to stages of so many replicas, micro-batches round robin, all devices kept busy."""
    blocks = side_by_side(widths)
    devices = sum(widths)
    routes = deal(blocks, range(devices), workload.micro_batches)
    pipelines = tuple(Pipeline(route, route, tuple(mine)) for route, mine in routes.items())
    problem = Problem(model, cluster or Cluster.uniform(devices), workload)
    rows = tuple((policy,) * len(widths) for _ in pipelines)
    candidate = Candidate(problem, cut_evenly(model, len(widths)), pipelines, rows, weights)
    orders = listed(candidate, [n + 1 for n in in_flight(blocks)], [halves] * len(widths))
    return assemble(candidate, with_recomputation(candidate, orders), "spread")


def random_spread(seed: int, weights: str = FLUSH) -> Plan:
    """Up to four stages of up to four replicas, on any devices, with any costs, stash policies and ties."""
    rng = random.Random(seed)
    widths = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
    layers, devices = len(widths) + rng.randint(0, 3), sum(widths)
    model = random_model(rng, layers)
    cuts = [0, *sorted(rng.sample(range(1, layers), len(widths) - 1)), layers]
    names = [layer.name for layer in model.layers]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise(cuts))
    update = rng.randint(max(widths), 2 * max(widths))
    batches = rng.randint(max(widths), 20) if weights == FLUSH else update * rng.randint(2, 4)
    blocks, order = side_by_side(widths, cuts[1:]), rng.sample(range(devices), devices)
    pipelines = tuple(Pipeline(r, r, tuple(mine)) for r, mine in deal(blocks, order, batches).items())
    workload = Workload(batches, rng.choice(["sgd", "adam"]), update_every=None if weights == FLUSH else update)
    problem = Problem(model, random_cluster(rng, devices), workload)
    policies = rng.choice([["keep"], ["keep"], ["recompute"], ["keep", "recompute", "offload"]])
    rows = {m: tuple(rng.choice(policies) for _ in widths) for m in range(batches)}
    candidate = regroup(problem, stages, pipelines, rows, weights)
    candidate = tied(candidate, seed) if rng.random() < 0.4 else candidate
    more, split = rng.randint(0, 2), rng.random() < 0.5 and weights == FLUSH
    halves = [split and separable for separable in candidate.costs.separable]
    orders = listed(candidate, [n + more for n in in_flight(blocks)], halves)
    return assemble(candidate, with_recomputation(candidate, orders), "spread")
