"""plan(): known optima, random instances against named schedules, infeasible answers."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from instances import nothing_better, solved, step_of, uniform
from random_plans import plans_of, random_candidate, random_problem

from contraflow.planner.basics.errors import InputError
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition.chain import Chain, compositions
from contraflow.planner.plan import Kind, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.schedules import SCHEDULES, variants
from contraflow.planner.search.common.fit import excess
from contraflow.planner.search.driver import plan
from contraflow.planner.search.named.portfolio import device_orders, place

TWO = SearchSpace(pipelines=2)
ONE = SearchSpace(pipelines=1)
KEEP_ALL = SearchSpace(offload=False, recompute=False)


@pytest.mark.parametrize(
    ("devices", "limit", "space", "expected"),
    [(8, 8, TWO, 36), (4, 4, TWO, 28), (4, 5, TWO, 27), (4, 8, TWO, 27), (8, 8, ONE, 45)],
)
def test_known_optima_are_found_and_proven(devices: int, limit: int, space: SearchSpace, expected: int) -> None:
    """F=1, B=2, N=8, no communication: D=8 both ways 36, one way 45; D=4 with 4 stashes 28, with more 27.

    Optimal among plans with one stage a device; with as many stages as devices that go anywhere, nobody knows.
    """
    result = plan(uniform(devices, 1, 2), Cluster.uniform(devices, limit), Workload(8), space, 60)
    assert nothing_better(result)
    assert step_of(result) == pytest.approx(expected)
    assert result.plan is not None
    assert check(result.plan) == []


def rivals(problem: Problem, seed: int, most: int) -> Iterator[Plan]:
    """Named schedules on cuts and device orders drawn at random, those that fit the memory."""
    chain, rng = Chain.of(problem), random.Random(seed)
    devices = min(len(chain), len(problem.cluster))
    orders = device_orders(problem, devices)
    layouts = [layout for _, layout in variants(devices, problem.workload.micro_batches, len(chain))]
    for _ in range(most if layouts else 0):
        layout = rng.choice(layouts)
        placed = place(layout, rng.choice(orders), len(problem.cluster))
        cuts = compositions(len(chain), layout.stages, 10_000)
        assert cuts is not None
        candidate = Candidate(problem, chain.stages(rng.choice(cuts)), placed.pipelines)
        split = any(op.kind == Kind.W for order in layout.orders for op in order)
        if split and not all(candidate.costs.separable):
            continue
        found = assemble(candidate, placed.orders, placed.name)
        if not any(excess(found)):
            yield found


@pytest.mark.long
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 6))])
def test_never_worse_than_a_named_schedule_that_fits(block: int) -> None:
    """Five random instances a block: valid plans, no named schedule on any cut better, or below the bound."""
    for seed in range(5 * block, 5 * block + 5):
        problem = random_problem(seed)
        result = plan(*problem, time_limit=30, seed=seed, deterministic_limit=0.05)
        if result.plan is not None:
            assert check(result.plan) == [], seed
            assert not any(excess(result.plan)), seed
            assert result.bound_s <= step_of(result), seed
        for rival in rivals(Problem(*problem), seed, 40):
            assert rival.forecast is not None
            assert result.plan is not None, (seed, rival.provenance.source)
            assert step_of(result) <= rival.forecast.step_s * (1 + 1e-9), (seed, rival.provenance.source)
            assert result.bound_s <= rival.forecast.step_s * (1 + 1e-9), (seed, rival.provenance.source)


@pytest.mark.parametrize("seed", [7, 33, 78])
def test_never_worse_than_any_named_schedule_planned_alone(seed: int) -> None:
    """Each with its own best cut."""
    problem = random_problem(seed)
    result = plan(*problem, time_limit=30, seed=seed, deterministic_limit=0.05)
    for name in SCHEDULES:
        try:
            rival = plan(*problem, SearchSpace(name), 30)
        except InputError:
            continue
        if rival.plan is not None:
            assert step_of(result) <= step_of(rival) * (1 + 1e-9), name
            assert result.bound_s <= step_of(rival) * (1 + 1e-9), name


@pytest.mark.long
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, 2, 3))])
def test_no_plan_of_any_shape_is_below_the_bound(block: int) -> None:
    """Random routes, stash policies and orders, under a limit that they just fit: none beats the bound."""
    for seed in range(4 * block, 4 * block + 4):
        candidate = random_candidate(seed)
        for found in plans_of(candidate, seed, 2, True):
            assert found.forecast is not None
            limit = max(found.forecast.peak_bytes)
            workload = replace(found.problem.workload, memory_limit_bytes=limit)
            result = plan(found.problem.model, found.problem.cluster, workload, time_limit=30, deterministic_limit=0.02)
            assert result.status != "infeasible", seed
            assert result.bound_s <= found.forecast.step_s * (1 + 1e-9), seed


@pytest.mark.long
def test_the_search_bound_holds_for_plans_found_with_more_time() -> None:
    """A quick search's bound is below what a longer search finds, and bounds only rise."""
    for seed in (3, 17, 23):
        problem = random_problem(seed)
        quick, slow = plan(*problem, time_limit=0.3), plan(*problem, time_limit=300, workers=1, deterministic_limit=0.1)
        if slow.plan is not None:
            assert quick.bound_s <= step_of(slow) * (1 + 1e-9)


def test_nothing_is_called_infeasible_that_is_not() -> None:
    """Stashes of 3, 3, 1, 1 on two devices of 4: no cut in two fits, two stages a device do, given the time."""
    model = ModelGraph.chain([Layer(f"l{k}", 1, 1, 1, stash_bytes=s) for k, s in enumerate((3, 3, 1, 1))])
    for seconds in (0, 0.02, 0.2, 20):
        result = plan(model, Cluster.uniform(2, 4), Workload(4), KEEP_ALL, seconds)
        assert result.status in (("optimal", "feasible") if seconds == 20 else ("optimal", "feasible", "unknown"))


def test_infeasible_is_what_fits_no_placement() -> None:
    """Devices of 4 and 3 bytes: as the layers lie, they fit in two stages, in three, or on no devices at all."""
    model = ModelGraph.chain([Layer(f"l{k}", 1, 1, 1, stash_bytes=s) for k, s in enumerate((3, 2, 2))])
    kinds = [DeviceType("large", 4), DeviceType("small", 3)]
    cluster = Cluster(tuple(NodeGroup(1, 1, kind) for kind in kinds))
    together = replace(KEEP_ALL, separate_backward=False)
    assert nothing_better(solved(model, cluster, Workload(3), together))
    model = ModelGraph.chain([Layer(f"l{k}", 1, 1, 1, stash_bytes=s) for k, s in enumerate((2, 3, 2))])
    # the first and the last layer on the large device: what is not searched is not ruled out either
    assert solved(model, cluster, Workload(3), together).status == "unknown"
    model = ModelGraph.chain([Layer(f"l{k}", 1, 1, 1, stash_bytes=s) for k, s in enumerate((3, 2, 3))])
    assert solved(model, cluster, Workload(3), together).status == "infeasible"


def test_a_limit_below_one_stash_is_infeasible_and_says_by_how_much() -> None:
    """Four layers of 10 bytes on two devices need 20 bytes each; 15 are 5 short."""
    result = solved(uniform(4, stash_bytes=10), Cluster.uniform(2, 15), Workload(4), KEEP_ALL)
    assert result.status == "infeasible"
    assert result.plan is None
    assert [(v.device, v.over_bytes) for v in result.violations] == [(0, 5), (1, 5)]
    assert "5 B over" in str(result.violations[0])


def test_one_micro_batch_in_flight_is_enough_for_a_plan() -> None:
    """A limit of one stash a device is feasible: one micro-batch at a time, N (F + B) D."""
    result = solved(uniform(3, 1, 2), Cluster.uniform(3, 1), Workload(4), ONE)
    assert nothing_better(result)
    assert step_of(result) == pytest.approx(36)


def test_no_time_gives_unknown() -> None:
    """Nothing is claimed without time."""
    assert plan(uniform(4), Cluster.uniform(2), Workload(4), time_limit=0).status == "unknown"


@pytest.mark.parametrize(
    ("layers", "devices", "batches"), [(1, 1, 1), (1, 4, 3), (3, 5, 2), (4, 1, 4), (4, 2, 1), (2, 2, 2)]
)
def test_corner_cases_have_plans(layers: int, devices: int, batches: int) -> None:
    """One layer, one device, one micro-batch, more devices than layers."""
    result = solved(uniform(layers, 1, 2), Cluster.uniform(devices), Workload(batches))
    assert result.plan is not None
    assert check(result.plan) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"time_limit": float("nan")},
        {"time_limit": -1},
        {"time_limit": "60"},
        {"seed": -1},
        {"workers": 0},
        {"workers": 1.5},
        {"deterministic_limit": float("inf")},
        {"space": SearchSpace("zigzag")},
        {"space": "search"},
        {"hint": "a plan"},
    ],
)
def test_bad_input_is_a_value_error(bad: dict[str, object]) -> None:
    """Wrong types and numbers raise InputError with one line."""
    with pytest.raises(InputError) as caught:
        plan(uniform(2), Cluster.uniform(2), Workload(2), **bad)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_importing_the_planner_imports_neither_torch_nor_a_solver() -> None:
    """The planner runs on a login node: a bare import is light, and plan() is there on first use."""
    code = (
        "import sys, contraflow.planner as p\n"
        "heavy = {'torch', 'ortools', 'numba', 'networkx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "p.plan\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_named_schedule_brings_its_own_number_of_pipelines() -> None:
    """Two directions are two pipelines unless more are allowed: D = N = 8, F = 1, B = 2 gives 36, then 28 and 24."""
    model, cluster, workload = uniform(8, 1, 2), Cluster.uniform(8), Workload(8)
    for limit, pipelines, step_s in ((None, 2, 36), (2, 2, 36), (3, 2, 36), (4, 4, 28), (8, 8, 24)):
        found = plan(model, cluster, workload, SearchSpace("chimera", pipelines=limit), time_limit=20).plan
        assert found is not None
        assert found.forecast is not None
        assert (len(found.pipelines), found.forecast.step_s) == (pipelines, step_s)
