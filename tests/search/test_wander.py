"""Walks over cuts: arrays put together from known stages, and orders that find better cuts than the even one."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from random_plans import random_model

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Pipeline, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.search.orders.arm import Arm
from contraflow.planner.search.orders.arrays import build
from contraflow.planner.search.orders.shifted import Shifted
from contraflow.planner.search.orders.wander import wander

GO = np.zeros(1, dtype=np.int64)


def structure(seed: int, chain: bool) -> Candidate:
    """A random one of up to four devices, three stages each, stashes kept, made again or copied to the host."""
    rng = random.Random(seed)
    devices, chunks, batches = rng.randint(2, 4), rng.randint(1, 3), rng.choice([4, 6])
    stages = devices * chunks
    count = stages * rng.randint(2, 4)
    layers = [
        Layer(
            f"l{k}", rng.random() + 0.1, rng.random(), rng.random(), parameter_bytes=rng.randrange(90),
            stash_bytes=rng.randrange(100), weight_stash_bytes=rng.randrange(20), workspace_bytes=rng.randrange(30),
            output_bytes=rng.randrange(20),
        )
        for k in range(count)
    ]  # fmt: skip
    model = ModelGraph.chain(layers) if chain else random_model(rng, count)
    kind = DeviceType("d", 10**6, speed=rng.choice([1.0, 0.5]), memory_bandwidth=rng.choice([None, 1e3]))
    node = NodeGroup(1, devices, kind, Link(rng.choice([1e2, 1e4]), rng.random() / 10), None, Link(50.0))
    problem = Problem(model, Cluster((node,), Link(1e3)), Workload(batches, rng.choice(["sgd", "adam"])))
    route = tuple(range(devices)) * chunks
    pipelines = [Pipeline(route, route, tuple(range(batches)))]
    if rng.random() < 0.5:
        back = route[::-1]
        pipelines = [Pipeline(r, r, tuple(range(k, batches, 2))) for k, r in enumerate((route, back))]
    names = [model.layers[k].name for k in model.topological]
    ends = [0, *sorted(rng.sample(range(1, count), stages - 1)), count]
    policies = ["keep", "recompute", "offload"] if seed % 2 else ["keep"]
    rows = tuple(tuple(rng.choice(policies) for _ in range(stages)) for _ in pipelines)
    return Candidate(problem, tuple(tuple(names[a:b]) for a, b in pairwise(ends)), tuple(pipelines), rows)


@pytest.mark.parametrize("chain", [True, False])
def test_arrays_from_known_stages_are_those_of_the_candidate(chain: bool) -> None:
    """Also where layers form a graph: then they are made from the candidate each time."""
    put_together = 0
    for seed in range(20):
        candidate, rng = structure(seed, chain), random.Random(seed)
        shifted = Shifted(Arm(candidate, True, False, seed))
        cut = np.cumsum([0, *map(len, candidate.stages)])
        for _ in range(40):
            other = cut.copy()
            other[rng.randrange(1, len(cut) - 1)] += rng.choice([-1, 1])
            if (np.diff(other) <= 0).any():
                continue
            cut = other
            spans = zip(shifted.known, pairwise(cut.tolist()), strict=True)
            put_together += all(span in known for known, span in spans)
            found, wanted = shifted.at(cut), build(shifted.candidate(cut), True)
            for name in wanted._fields:
                assert np.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-12), (seed, name)
    assert put_together > 100 or not chain


def heavy_first() -> Candidate:
    """Twelve devices, there and back, as many micro-batches, four layers a device, the first 3.5 times the others."""
    layers = [
        Layer(f"l{k}", *(3.5 * x if k == 0 else x for x in (1.85, 1.9, 0.9)), stash_bytes=2, output_bytes=1)
        for k in range(48)
    ]
    route = (*range(12), *reversed(range(12)))
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(12, 1 << 20, Link(20.0)), Workload(12))
    cut = [0, *range(1, 47, 2)[:23], 48]
    stages = tuple(tuple(layer.name for layer in layers[a:b]) for a, b in pairwise(cut))
    return Candidate(problem, stages, (Pipeline(route, route, tuple(range(12))),))


def annealed(candidate: Candidate) -> Arm:
    arm = Arm(candidate, True, False, 3)
    arm.start(12, 0.0, GO)
    arm.improve(300, 0.0, GO)
    return arm


def test_a_walk_finds_a_better_cut_and_its_order_is_a_plan() -> None:
    """As long as the simulator says, on the cut that it names; the same walk again ends at the same."""
    ends = []
    for _ in range(2):
        arm = annealed(heavy_first())
        before, stages = arm.seconds, arm.candidate.stages
        spent = wander(arm, 0.004, lambda runs: runs / 2e7, 0.0, GO)
        assert 2e7 <= spent < 3e7
        assert arm.seconds < 0.97 * before
        assert arm.candidate.stages != stages
        plan = assemble(arm.candidate, arm.ops_by_device(), "search")
        assert not check(plan)
        assert plan.forecast is not None
        assert plan.forecast.step_s <= arm.seconds * (1 + 1e-9)
        ends.append((arm.seconds, arm.candidate.stages))
    assert ends[0] == ends[1]


def test_a_walk_ends_where_there_is_nowhere_to_go() -> None:
    """One layer a stage; and a target that is reached already."""
    arm = annealed(heavy_first())
    stages, order = arm.candidate.stages, arm.order
    assert wander(arm, 0.001, lambda runs: runs / 1e12, arm.seconds, GO) == 0
    assert arm.candidate.stages == stages
    assert arm.order is order
    layers = [Layer(f"l{k}", 1.0, 2.0) for k in range(4)]
    route = (0, 1, 2, 3)
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(4), Workload(4))
    fixed = annealed(Candidate(problem, tuple((x.name,) for x in layers), (Pipeline(route, route, route),)))
    assert wander(fixed, 0.001, lambda runs: runs / 1e12, 0.0, GO) < 1e7
