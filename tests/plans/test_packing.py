"""How much the fullest device computes at the least: whole layers on devices."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from contraflow.planner import SearchSpace, bounds
from contraflow.planner.bounds.packing import fullest
from contraflow.planner.plan import Problem
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, Workload


@pytest.mark.parametrize("seed", range(30))
def test_no_assignment_is_lower(seed: int) -> None:
    """All of them are listed; of few sizes on equal devices the answer is the best one."""
    rng = random.Random(seed)
    devices, few = rng.randint(1, 3), rng.random() < 0.7
    sizes = [rng.choice([1.0, 1.5, 0.4]) if few else rng.uniform(0.3, 2) for _ in range(rng.randint(1, 7))]
    speeds = np.array([1.0] * devices if rng.random() < 0.6 else [rng.choice([1.0, 2.0]) for _ in range(devices)])
    best = min(
        max(
            sum(size for size, d in zip(sizes, to, strict=True) if d == device) / speeds[device]
            for device in range(devices)
        )
        for to in product(range(devices), repeat=len(sizes))
    )
    found = fullest(np.array(sizes), speeds)
    assert found <= best * (1 + 1e-9)
    if few and (speeds == 1).all():
        assert found >= best * (1 - 1e-5)


def test_a_heavy_head_leaves_the_others_no_equal_shares() -> None:
    """Profiled costs on 8 devices, 24 micro-batches, 4 layers a device, the first of 0.6 and the last of 2.6 layers."""
    scale = [0.6, *[1.0] * 30, 2.6]
    layers = [
        Layer(f"l{k}", 18522 * x / 4, 18086 * x / 4, 9337 * x / 4, separable=True, stash_bytes=1 << 20)
        for k, x in enumerate(scale)
    ]
    cluster = Cluster.uniform(8, 1 << 50, Link(latency_s=601))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(24, memory_limit_bytes=8 << 22))
    space = SearchSpace(pipelines=1, offload=False, recompute=False, separate_backward=False)
    assert bounds.space(problem, space) == pytest.approx(1268082, rel=1e-5)
    assert bounds.load(problem) == pytest.approx(1144030.5)


def test_layers_of_no_time_take_none() -> None:
    """And one layer on many devices takes its own time."""
    assert fullest(np.zeros(3), np.ones(2)) == 0
    assert fullest(np.array([2.0]), np.ones(4)) == 2
