"""Named schedules whose orders are made for costs, on cuts next to their best."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check, plan
from contraflow.planner.graph import Candidate
from contraflow.planner.plan import Problem
from contraflow.planner.schedules import build
from contraflow.planner.search.common import Clock, Session, nearby_cuts
from contraflow.planner.search.named import not_split, run_named, run_nearby
from contraflow.planner.search.named.costed import made_for


def heavy(devices: int, per_device: int, batches: int, first: float, last: float, name: str) -> Session:
    """A search for a named schedule of a chain whose first and last layers take longer than the others."""
    layer = Layer("l", 1.0, 1.0, 0.75, parameter_bytes=0, stash_bytes=1, output_bytes=0)
    weights = [first, *([1.0] * (devices * per_device - 2)), last]
    layers = [
        replace(layer, name=f"l{k}", forward_s=w, backward_input_s=w, backward_weight_s=0.75 * w)
        for k, w in enumerate(weights)
    ]
    cluster = Cluster.uniform(devices, 1 << 40, Link(float("inf"), 0.1))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(batches))
    return Session(problem, SearchSpace(schedule=name), Clock(time.monotonic() + 1e6))


CASES = [("zb-h1", 5, 4, 24, 2.9, 1.0), ("zb-h2", 4, 5, 10, 1.0, 2.4), ("zb-v", 3, 4, 8, 1.0, 2.0)]


@pytest.mark.parametrize(("name", "devices", "per_device", "batches", "first", "last"), CASES)
def test_no_cut_next_to_the_one_that_is_found_has_shorter_orders(
    name: str, devices: int, per_device: int, batches: int, first: float, last: float
) -> None:
    searched, order = heavy(devices, per_device, batches, first, last, name), tuple(range(devices))
    for run in (run_named, run_nearby):
        for _ in run(searched, order):
            pass
    found_plan, layout = searched.best, build(name, devices, batches)
    assert found_plan is not None
    assert check(found_plan) == []
    for stages in nearby_cuts(found_plan, searched.best_s):
        candidate = Candidate(searched.problem, stages, layout.pipelines)
        found = made_for(candidate, layout, not_split(searched.space, candidate), (), True, float("inf"))
        assert found is None or found.forecast.step_s >= searched.best_s * (1 - 1e-9)


def test_where_an_end_decides_how_long_others_wait_the_cut_moves() -> None:
    """One F less before the second device, though another is then the busiest as long."""
    name, devices, per_device, batches, first, last = CASES[0]
    searched, order = heavy(devices, per_device, batches, first, last, name), tuple(range(devices))
    list(run_named(searched, order))
    before_s = searched.best_s
    list(run_nearby(searched, order))
    assert searched.best_s < before_s


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "v-auto"])
def test_layers_that_take_no_time_have_a_plan(name: str) -> None:
    """Their blocks have no period."""
    layers = [Layer(f"l{k}", 0.0, 0.0, 0.0, stash_bytes=1, output_bytes=1) for k in range(8)]
    made = plan(
        ModelGraph.chain(layers),
        Cluster.uniform(2, 1 << 30, Link(1e9)),
        Workload(4),
        SearchSpace(schedule=name),
        time_limit=2,
    )
    assert made.plan is not None
    assert check(made.plan) == []
