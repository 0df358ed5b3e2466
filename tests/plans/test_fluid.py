"""The bound by a linear programme over instants is one, and is near the best order where others are far from it."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from random_plans import plans_of, random_candidate, random_cluster, random_model

from contraflow.planner import SearchSpace, bounds, plan
from contraflow.planner.basics import until
from contraflow.planner.graph import Candidate
from contraflow.planner.plan import Pipeline, Problem
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload

COARSE = (500,)
"""Variables of programmes that take a few hundredths of a second."""
SHARE = 1 << 22
"""Bytes of a stash."""


def one_stage_a_device(seed: int) -> Candidate:
    rng = random.Random(seed)
    devices = rng.randint(1, 4)
    model, cluster = random_model(rng, devices), random_cluster(rng, devices)
    batches, route = rng.randint(1, 9), tuple(rng.sample(range(devices), devices))
    stages = tuple((layer.name,) for layer in model.layers)
    return Candidate(Problem(model, cluster, Workload(batches)), stages, (Pipeline(route, route, (*range(batches),)),))


@pytest.mark.parametrize("seed", range(12))
def test_no_random_order_is_faster(seed: int) -> None:
    """Whatever step it may look for: that of the plan is not known to it."""
    candidate = one_stage_a_device(seed) if seed % 4 else random_candidate(seed, policies=["keep"])
    for made in plans_of(candidate, seed, 1, seed % 3 > 0):
        assert made.forecast is not None
        least = replace(made.problem.workload, memory_limit_bytes=max(made.forecast.peak_bytes))
        limited = replace(candidate, problem=replace(candidate.problem, workload=least))
        found = bounds.fluid(limited, 3 * made.forecast.step_s, seed % 3 > 0, COARSE)
        assert found is not None
        assert found <= made.forecast.step_s * (1 + 1e-7)


def chain(devices: int, seconds: tuple[float, float, float], latency_s: float, batches: int, stashes: float) -> Problem:
    """One layer a device, of which W holds half a stash; memory for so many stashes."""
    forward, inputs, weights = seconds
    layers = [
        Layer(f"l{k}", forward, inputs, weights, separable=True, stash_bytes=SHARE, weight_stash_bytes=SHARE // 2)
        for k in range(devices)
    ]
    cluster = Cluster.uniform(devices, 1 << 50, Link(latency_s=latency_s))
    return Problem(ModelGraph.chain(layers), cluster, Workload(batches, memory_limit_bytes=int(stashes * SHARE)))


def in_order(problem: Problem) -> Candidate:
    route = tuple(range(len(problem.cluster)))
    stages = tuple((layer.name,) for layer in problem.model.layers)
    return Candidate(problem, stages, (Pipeline(route, route, (*range(problem.workload.micro_batches),)),))


def test_it_is_nearer_than_a_closed_form_where_memory_is_tight() -> None:
    """4 devices, 6 micro-batches, F/I/W of 100/120/80, half of 1F1B's memory: the best order takes 3340."""
    candidate = in_order(chain(4, (100, 120, 80), 5, 6, 2))
    assert bounds.candidate(candidate) <= 3020
    found = bounds.fluid(candidate, 3340, sizes=(2500,))
    assert found is not None
    assert 3250 <= found <= 3340


@pytest.mark.parametrize("seed", range(4))
def test_it_is_no_more_than_the_best_order(seed: int) -> None:
    """What the search finds of random costs, one stage a device, from half to all of 1F1B's memory."""
    rng = random.Random(seed)
    devices, batches = rng.randint(2, 4), rng.randint(2, 6)
    seconds = rng.randint(5, 15), rng.randint(5, 15), rng.randint(5, 15)
    problem = chain(devices, seconds, rng.choice([0, 3]), batches, rng.choice([2, devices]))
    space = SearchSpace(pipelines=1, replicas=1, offload=False, recompute=False, cut=in_order(problem).stages)
    made = plan(problem.model, problem.cluster, problem.workload, space, 30, workers=1, deterministic_limit=0.5)
    assert made.plan is not None
    found = bounds.fluid(in_order(problem), 2 * made.plan.forecast.step_s, sizes=COARSE)
    assert found is not None
    assert found <= made.plan.forecast.step_s * (1 + 1e-7)


def test_it_says_nothing_of_what_it_does_not_describe() -> None:
    """Stashes that are not kept, and backwards on other devices."""
    candidate = in_order(chain(2, (1, 1, 1), 0, 2, 2))
    assert bounds.fluid(replace(candidate, stash=(("keep", "recompute"),)), 10) is None
    apart = (Pipeline((0, 1), (1, 0), (0, 1)),)
    assert bounds.fluid(replace(candidate, pipelines=apart), 10) is None


def test_it_ends_with_the_time_of_its_context() -> None:
    """With hardly any time left it says what the closed form does, or a little more."""
    candidate = in_order(chain(8, (100, 121, 83), 5, 24, 4))
    started = time.monotonic()
    with until(started + 0.3):
        found = bounds.fluid(candidate, 20000)
    assert found is not None
    assert bounds.candidate(candidate) <= found < 20000
    assert time.monotonic() - started < 10
