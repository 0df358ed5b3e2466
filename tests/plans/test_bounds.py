"""Bounds are bounds: nothing simulated is ever faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from instances import one_layer_a_stage, uniform
from random_plans import random_problem

from contraflow.planner import bounds
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition.chain import Chain, compositions
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, NodeGroup
from contraflow.planner.problem.layer import Layer
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import variants
from contraflow.planner.simulate import evaluate


def test_one_way_bound_is_1f1b_at_unit_costs() -> None:
    """N (F + B) + (D - 1)(F + B): 1F1B with F=1, B=2, D=N=8 reaches its bound, 45."""
    problem = Problem(uniform(8, 1, 2), Cluster.uniform(8), Workload(8))
    route = tuple(range(8))
    candidate = Candidate(problem, one_layer_a_stage(problem.model), (Pipeline(route, route, tuple(range(8))),))
    assert bounds.candidate(candidate) == pytest.approx(45)


def test_load_bound_is_all_work_over_all_speeds() -> None:
    """8 layers of 3 s, 4 micro-batches, 2 devices: 48 s."""
    problem = Problem(uniform(8, 1, 2), Cluster.uniform(2), Workload(4))
    assert bounds.load(problem) == pytest.approx(48)
    assert bounds.critical_path(problem) == pytest.approx(24)


@pytest.mark.parametrize("sharded", [False, True])
def test_optimizer_steps_are_work_too(sharded: bool) -> None:
    """SGD moves parameters both ways and gradients once: on one device, on both, or half of them on each."""
    model = ModelGraph.chain([Layer("l", 1.0, 2.0, parameter_bytes=128)])
    kind, traffic_s = DeviceType("d", 1 << 20, memory_bandwidth=96.0), 3 * 128 / 96
    for devices in (1, 2):
        problem = Problem(model, Cluster((NodeGroup(1, devices, kind),)), Workload(4, sharded=sharded))
        bound_s = (4 * 3 + traffic_s) / devices
        assert bounds.work(problem) == pytest.approx(bound_s)
        shares = [tuple(range(d, 4, devices)) for d in range(devices)]
        pipelines = tuple(Pipeline((d,), (d,), share) for d, share in enumerate(shares))
        orders = [[Op(kind, 0, m) for m in share for kind in (Kind.F, Kind.B)] for share in shares]
        step_s = evaluate(assemble(Candidate(problem, (("l",),), pipelines), orders)).step_s
        assert step_s == pytest.approx(bound_s if sharded or devices == 1 else bound_s + traffic_s / 2)


@pytest.mark.parametrize("seed", range(60))
def test_no_named_schedule_is_faster_than_any_bound(seed: int) -> None:
    """Every variant on every cut of a random instance, against each bound that speaks for it."""
    model, cluster, workload = random_problem(seed)
    problem = Problem(model, cluster, workload)
    chain = Chain.of(problem)
    devices = min(len(chain), len(cluster))
    floor = bounds.any_plan(problem)
    for _, layout in variants(devices, workload.micro_batches, len(chain)):
        for cuts in (compositions(len(chain), layout.stages, 100) or [])[:12]:
            candidate = Candidate(problem, chain.stages(cuts), layout.pipelines)
            split = any(op.kind == Kind.W for order in layout.orders for op in order)
            if split and not all(candidate.costs.separable):
                continue
            forecast = evaluate(assemble(candidate, layout.orders))
            step_s, peaks = forecast.step_s * (1 + 1e-9), forecast.peak_bytes
            assert floor <= step_s
            assert (
                bounds.candidate(candidate, tuple(len(p.micro_batches) for p in layout.pipelines), split, peaks)
                <= step_s
            )
            assert bounds.candidate(candidate, None, split, peaks) <= step_s


def test_split_backwards_shorten_the_longest_path() -> None:
    """8 layers of F = I = W = 1: one micro-batch on 8 devices takes 8 F, 8 I and the last W, 17 s and not 24."""
    layers = [replace(layer, separable=True, backward_weight_s=1.0) for layer in uniform(8, 1, 1).layers]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(8), Workload(1))
    assert bounds.critical_path(problem) == pytest.approx(17)
    assert bounds.critical_path(problem, split=False) == pytest.approx(24)
