"""plan(): seeds, progress, Ctrl-C, hints, time limits, and proofs within seconds."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace

import pytest
from instances import step_of, uniform

from contraflow.planner.basics.deadline import OutOfTime, check_time, until
from contraflow.planner.basics.errors import InputError
from contraflow.planner.check import check
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.driver import Progress, plan

TWO = SearchSpace(pipelines=2)
ONE = SearchSpace(pipelines=1)
PATIENCE_S = 20
"""What a call may take beyond its limit where other tests have most of the machine."""
KEEP_ALL = SearchSpace(offload=False, recompute=False)


def share_problem(
    devices: int, batches: int, shares: float, costs: tuple[float, float, float, float], chunks: int = 2
) -> tuple[ModelGraph, Cluster, Workload]:
    """A uniform chain: F, I, W and latency a device, a memory limit in shares: stashes of one device's layers."""
    forward, inputs, weights = (x / chunks for x in costs[:3])
    layers = [
        Layer(f"l{k}", forward, inputs, weights, stash_bytes=16, weight_stash_bytes=8) for k in range(devices * chunks)
    ]
    cluster = Cluster.uniform(devices, int(16 * chunks * shares), Link(latency_s=costs[3]))
    return ModelGraph.chain(layers), cluster, Workload(batches)


UNEVEN = (10, 12, 8, 0.5)
TWO_WAYS = replace(KEEP_ALL, pipelines=2)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_seed_gives_the_same_plan(workers: int) -> None:
    """With a deterministic limit and time enough: exact search, order search and windows all had their turn."""
    problem, found, phases = share_problem(4, 10, 2, UNEVEN), [], set()
    for _ in range(2):
        result = plan(
            *problem, TWO_WAYS, 300, seed=7, workers=workers, deterministic_limit=0.6,
            on_progress=lambda progress: phases.add(progress.phase),
        )  # fmt: skip
        assert result.plan is not None
        assert check(result.plan) == []
        found.append(result)
    assert found[0].plan.orders == found[1].plan.orders
    assert found[0].plan.stages == found[1].plan.stages
    assert found[0].plan.stash == found[1].plan.stash
    assert found[0].bound_s == found[1].bound_s
    assert found[0].plan.provenance.source == "search"
    assert {"exact search", "order search", "windows"} <= phases


@pytest.mark.long
def test_other_seeds_give_other_plans() -> None:
    """Where nothing is proven, seeds lead to plans of their own; all valid, within the same bound."""
    problem, orders = share_problem(4, 10, 2, UNEVEN), []
    for seed in (1, 2):
        result = plan(*problem, TWO_WAYS, 300, seed=seed, workers=2, deterministic_limit=0.3)
        assert result.plan is not None
        assert check(result.plan) == []
        assert result.status == "feasible"
        orders.append(result.plan.orders)
    assert orders[0] != orders[1]


def test_results_can_be_pickled_and_progress_is_reported() -> None:
    """Results travel between processes; the best only falls, the bound only rises, and never above the best."""
    seen: list[Progress] = []
    result = plan(uniform(4, 1, 2), Cluster.uniform(4, 4), Workload(8), TWO, 10, on_progress=seen.append)
    assert pickle.loads(pickle.dumps(result)) == result
    assert seen
    assert all(p.best_step_s is None or p.bound_s <= p.best_step_s for p in seen)
    rows: list[Progress] = []
    problem = share_problem(4, 8, 2, UNEVEN)
    result = plan(*problem, KEEP_ALL, 300, workers=1, deterministic_limit=0.1, on_progress=rows.append)
    steps = [p.best_step_s for p in rows if p.best_step_s is not None]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == step_of(result)
    assert [p.bound_s for p in rows] == sorted(p.bound_s for p in rows)
    assert rows[-1].bound_s <= result.bound_s
    assert [p.seconds for p in rows] == sorted(p.seconds for p in rows)
    assert len({p.phase for p in rows}) > 3


def test_ctrl_c_returns_the_best_plan_so_far() -> None:
    """KeyboardInterrupt during the search is an answer."""

    def stop(progress: Progress) -> None:
        if progress.best_step_s is not None:
            raise KeyboardInterrupt

    result = plan(uniform(4, 1, 2), Cluster.uniform(4, 4), Workload(8), TWO, 10, on_progress=stop)
    assert result.plan is not None
    assert check(result.plan) == []


def test_a_hint_is_never_lost() -> None:
    """With no time for its own search beyond the hint, the result is at least as good."""
    problem = (uniform(4, 1, 2), Cluster.uniform(4, 4), Workload(8))
    best = plan(*problem, TWO, 10)
    again = plan(*problem, TWO, 10, hint=best.plan, deterministic_limit=0)
    assert step_of(again) <= step_of(best)


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "batches", "seconds"), [(8, 32, 3), pytest.param(32, 128, 12, marks=pytest.mark.slow)]
)
def test_time_limits_are_kept(devices: int, batches: int, seconds: float) -> None:
    """A plan that fits, within the time and what a busy machine adds."""
    problem = share_problem(devices, batches, devices / 2, UNEVEN)
    started = time.monotonic()
    result = plan(*problem, KEEP_ALL, seconds)
    assert time.monotonic() - started <= seconds + PATIENCE_S
    assert result.plan is not None
    assert check(result.plan) == []
    assert result.bound_s <= step_of(result)


@pytest.mark.long
@pytest.mark.parametrize("name", ["v-min", "zb-h1"])
def test_never_worse_than_a_named_schedule_that_fits(name: str) -> None:
    """At half of 1F1B's memory, where few of them do."""
    problem = share_problem(8, 32, 4 if name == "v-min" else 8, UNEVEN)
    named = plan(*problem, replace(KEEP_ALL, schedule=name), 30)
    assert step_of(plan(*problem, KEEP_ALL, 300, workers=1, deterministic_limit=0.1)) <= step_of(named) * (1 + 1e-9)


@pytest.mark.long
def test_large_problems_get_a_named_plan_without_a_solver() -> None:
    """64 stages and 512 micro-batches: a plan that fits within the limit."""
    model = uniform(128, 1, 2, stash_bytes=10)
    started = time.monotonic()
    result = plan(model, Cluster.uniform(64, 64 * 20), Workload(512), ONE, 7)
    assert time.monotonic() - started < 7 + PATIENCE_S
    assert result.plan is not None
    assert step_of(result) >= result.bound_s > 0


@pytest.mark.parametrize(("devices", "batches"), [(4, 8), (8, 16), (8, 32)])
def test_one_stage_a_device_at_1f1b_memory_is_proven(devices: int, batches: int) -> None:
    """ZB-H1's length, N (F + I + W) + (p - 1) F, is optimal (arXiv:2401.10241)."""
    problem = share_problem(devices, batches, devices, (100, 100, 100, 0), 1)
    result = plan(*problem, replace(KEEP_ALL, pipelines=1), 30)
    assert result.status == "optimal"
    assert step_of(result) == pytest.approx(300 * batches + 100 * (devices - 1))


@pytest.mark.slow
def test_half_of_1f1b_memory_to_the_optimum() -> None:
    """Four devices, eight micro-batches, two shares: 2775, where peers take 2950, is the bound of all placements of
    stages on one device each; of stages on two devices less is proven."""
    result = plan(*share_problem(4, 8, 2, (100, 100, 100, 0), 4), replace(KEEP_ALL, pipelines=1), 180)
    assert step_of(result) == pytest.approx(2775)
    assert result.plan is not None
    assert result.plan.provenance.among_bound_s == pytest.approx(2775)


@pytest.mark.parametrize("space", [SearchSpace(), SearchSpace("chimera"), SearchSpace(asynchronous=("stash",))])
def test_what_has_been_begun_is_given_up_when_time_is_over(space: SearchSpace) -> None:
    """64 stages and 512 micro-batches: one simulation takes longer than the limit, and the bounds before it."""
    started = time.process_time()
    result = plan(uniform(64, 1, 2), Cluster.uniform(64), Workload(512), space, 0.05)
    assert result.plan is None or check(result.plan) == []
    assert result.bound_s > 0
    assert time.process_time() - started < 3


@pytest.mark.long
def test_more_passes_than_can_be_planned_are_refused_with_the_numbers() -> None:
    """At once, and well above 2,048 stages with 512 micro-batches."""
    with pytest.raises(InputError, match="1000000 micro-batches through 4 stages are 4000000 forward passes"):
        plan(uniform(4), Cluster.uniform(4), Workload(1_000_000))
    assert plan(uniform(2048), Cluster.uniform(2048), Workload(512), time_limit=0).status == "unknown"
    with pytest.raises(InputError, match="5000 layers; at most 4096"):
        plan(uniform(5000), Cluster.uniform(4), Workload(4))


def test_a_deadline_holds_for_the_work_inside_it_and_is_the_earliest() -> None:
    now = time.monotonic()
    with until(now + 100), until(now - 1), until(now + 200), pytest.raises(OutOfTime):
        check_time()
    check_time()
