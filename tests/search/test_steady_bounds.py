"""Bounds without a flush: what updates, freshness and memory ask for, by hand and against what is found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from contraflow.planner import check
from contraflow.planner.bounds import period
from contraflow.planner.plan import Problem
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.driver import plan as search

STASH = SearchSpace(asynchronous=("stash",))
KEPT = replace(STASH, recompute=False, offload=False)


def chain(times: list[tuple[float, float]], stash: int = 10) -> ModelGraph:
    """Layers of these seconds forward and backward."""
    return ModelGraph.chain(
        [Layer(f"l{k}", f, b, separable=False, stash_bytes=stash, output_bytes=1) for k, (f, b) in enumerate(times)]
    )


@pytest.mark.parametrize(("update", "least"), [(1, 10.0), (2, 5.0), (3, 10 / 3), (6, 10 / 3), (8, 3.25)])
def test_backwards_of_an_update_lie_between_two_steps(update: int, least: float) -> None:
    """Four devices take four backwards of 10 s at once; six are two rounds, and 13 s of work bound all of them."""
    problem = Problem(chain([(1, 10), (1, 1)]), Cluster.uniform(4), Workload(48, update_every=update))
    assert period(problem, STASH) == pytest.approx(least)


def test_no_replicas_help_where_every_micro_batch_is_an_update() -> None:
    found = search(
        chain([(1, 10), (1, 1)]), Cluster.uniform(4), Workload(12, update_every=1), STASH, time_limit=5, workers=1
    )
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert found.plan.forecast.period_s == pytest.approx(10.0)
    assert found.status == "optimal"


@pytest.mark.parametrize(("limit", "update", "least"), [(0, 1, 13.0), (1, 1, 10.0), (0, 2, 6.5), (None, 2, 5.0)])
def test_a_forward_that_needs_fresh_weights_waits_for_its_step(limit: int | None, update: int, least: float) -> None:
    workload = Workload(12, update_every=update, staleness_limit=limit)
    assert period(Problem(chain([(1, 10), (1, 1)]), Cluster.uniform(4), workload), STASH) == pytest.approx(least)


def test_stashes_fill_memory_for_as_long_as_they_stay() -> None:
    """10 bytes for 4 s and 10 for 2 s a micro-batch, in 20 bytes: 3 s, where the work of two devices is 2 s."""
    problem = Problem(chain([(1, 1), (1, 1)]), Cluster.uniform(2), Workload(12, memory_limit_bytes=10))
    assert period(problem, KEPT) == pytest.approx(3.0)
    assert period(problem, STASH) == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_is_faster(seed: int) -> None:
    """Random layers, links, memory, updates and staleness; what is found passes the checker."""
    rng = random.Random(seed)
    devices, update = rng.randint(2, 4), rng.choice((1, 2, 4))
    times = [(rng.uniform(0.3, 2), rng.uniform(0.3, 4)) for _ in range(rng.randint(2, 5))]
    cluster = Cluster.uniform(devices, rng.choice((25, 40, 80)), Link(rng.choice((20.0, 1000.0))))
    workload = Workload(16, update_every=update, staleness_limit=rng.choice((None, 0, 1, 2)))
    space = rng.choice((STASH, KEPT, replace(STASH, offload=False)))
    found = search(chain(times, rng.randint(2, 10)), cluster, workload, space, time_limit=1, workers=1)
    if found.plan is not None:
        assert check(found.plan) == []
        assert found.plan.forecast is not None
        assert found.plan.forecast.period_s is not None
        assert period(found.plan.problem, space) <= found.plan.forecast.period_s * (1 + 1e-9)
