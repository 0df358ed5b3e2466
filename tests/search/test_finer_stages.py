"""Data parallelism with several stages a device: sums of gradients run beside the backwards that are left."""

from __future__ import annotations

import pytest
from instances import step_of

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.search import plan
from contraflow.planner.search.named.finer import finer
from contraflow.planner.search.named.stage_ends import _neighbours


def planned(layers: int, batches: int, space: SearchSpace = SearchSpace()) -> tuple[float, int]:  # noqa: B008
    """Step and stages of the plan for two devices that sum 4 bytes a layer at 4 bytes a second."""
    model = ModelGraph.chain(
        [Layer(f"l{k}", 1.0, 1.0, separable=False, parameter_bytes=4, output_bytes=400) for k in range(layers)]
    )
    cluster = Cluster.uniform(2, 1 << 20, Link(4.0))
    found = plan(model, cluster, Workload(batches), space, 10, deterministic_limit=0.2)
    assert found.plan is not None
    assert check(found.plan) == []
    assert found.bound_s <= step_of(found) * (1 + 1e-9)
    return step_of(found), len(found.plan.stages)


def test_sums_overlap_the_backwards_that_are_left() -> None:
    """Two layers: in one stage 4 s of passes and 2 of sums; in two the first sum runs beside the second backward."""
    assert planned(2, 2) == (5.0, 2)


def test_of_three_layers_only_the_first_ones_sum_comes_last() -> None:
    assert planned(3, 4)[0] == pytest.approx(13.0)


def test_a_plan_of_single_layers_has_no_finer_one() -> None:
    model = ModelGraph.chain([Layer(f"l{k}", 1.0, 1.0, parameter_bytes=4) for k in range(2)])
    found = plan(model, Cluster.uniform(2, 1 << 20, Link(4.0)), Workload(2), SearchSpace("1f1b"), 5)
    assert found.plan is not None
    assert finer(found.plan, 2) is None


def steps_around(found: Plan) -> list[float]:
    return [other.forecast.step_s for other in _neighbours(found) if other.forecast is not None]


def test_ends_of_stages_on_one_device_move_come_and_go() -> None:
    """Every neighbour is a plan of the same layers; from one stage a device the way leads to sums that overlap."""
    model = ModelGraph.chain([Layer(f"l{k}", 1.0, 1.0, 1.0, parameter_bytes=4 + k, output_bytes=400) for k in range(6)])
    problem = Problem(model, Cluster.uniform(2, 1 << 20, Link(8.0)), Workload(4))
    layers = tuple(layer.name for layer in model.layers)
    pipelines = tuple(Pipeline((d,), (d,), (d, d + 2)) for d in range(2))
    orders = [[Op(kind, 0, m) for m in (d, d + 2) for kind in (Kind.F, Kind.I, Kind.W)] for d in range(2)]
    found = assemble(Candidate(problem, (layers,), pipelines), orders, "search")
    visited = [found.forecast.step_s] if found.forecast is not None else []
    while True:
        around = list(_neighbours(found))
        assert all(check(other) == [] for other in around)
        assert all(sum(other.stages, ()) == layers for other in around)
        best = min(around, key=lambda other: other.forecast.step_s if other.forecast else 0.0)
        assert best.forecast is not None
        if best.forecast.step_s >= visited[-1]:
            break
        found = best
        visited.append(best.forecast.step_s)
    assert len(visited) > 1
    assert visited[-1] <= min(steps_around(found))
    sizes = [len(stage) for stage in found.stages]
    assert len(sizes) > 1
    merged = next(other for other in _neighbours(found) if len(other.stages) < len(sizes))
    assert sum(map(len, merged.stages)) == len(layers)
