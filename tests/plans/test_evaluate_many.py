"""A plan under many costs and many orders: each case is what `evaluate` says of it alone."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import uniform

from contraflow.planner import (
    Cluster,
    InputError,
    Layer,
    Link,
    ModelGraph,
    Plan,
    SearchSpace,
    Workload,
    evaluate,
    evaluate_many,
    evaluate_orders,
)
from contraflow.planner import plan as search
from contraflow.planner.basics import Loops
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType

SCHEDULES = ("1f1b", "zb-h1", "chimera", "interleaved", "pipedream")
TIGHT = 200
"""Bytes that make 1F1B recompute or offload."""


@functools.cache
def planned(schedule: str, memory: int = 10_000) -> Plan:
    """Six layers on two devices, messages and a shared host link."""
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, stash_bytes=40, weight_stash_bytes=20, output_bytes=9) for k in range(6)]
    node = NodeGroup(1, 2, DeviceType("one", memory, 2.0), Link(100.0, 0.05), None, Link(500.0, 0.01), 2)
    space = SearchSpace(schedule, asynchronous=("stash",) if schedule == "pipedream" else ())
    found = search(
        ModelGraph.chain(layers), Cluster((node,)), Workload(6), space, deterministic_limit=0.01, bound=False
    )
    assert found.plan is not None
    return found.plan


def drifted(model: ModelGraph, seconds: np.ndarray) -> ModelGraph:
    """The model with these seconds of F, I and W."""
    layers = [
        replace(layer, forward_s=row[0], backward_input_s=row[1], backward_weight_s=row[2])
        for layer, row in zip(model.layers, seconds.tolist(), strict=True)
    ]
    return replace(model, layers=tuple(layers))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("schedule", "memory"), [*((name, 10_000) for name in SCHEDULES), ("1f1b", TIGHT)])
def test_every_case_is_that_of_the_plan_alone(
    schedule: str, memory: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps and peaks, in plain Python and compiled."""
    plan = planned(schedule, memory)
    assert memory > TIGHT or {policy for row in plan.stash for policy in row} != {"keep"}
    monkeypatch.setattr(Loops, "compiled", lambda *_: compiled)
    cases = np.random.default_rng(7).uniform(0.2, 3.0, (5, 6, 3))
    found = evaluate_many(plan, cases, memory=True)
    for k, seconds in enumerate(cases):
        alone = evaluate(plan, drifted(plan.problem.model, seconds))
        assert found.step_s[k] == pytest.approx(alone.step_s, rel=1e-12)
        assert found.peak_bytes is not None
        assert tuple(found.peak_bytes[k]) == alone.peak_bytes


@settings(max_examples=20)
@given(st.floats(1e-6, 1e3), st.integers(0, 2**32))
def test_costs_in_another_unit_scale_the_compute(factor: float, seed: int) -> None:
    """Without messages a step of all costs times a factor is the step times it; and more of any cost is never less."""
    plan = search(uniform(4), Cluster.uniform(2), Workload(4), SearchSpace("gpipe"), bound=False).plan
    assert plan is not None
    base = np.random.default_rng(seed).uniform(0.1, 1.0, (1, 4, 3))
    steps = evaluate_many(plan, np.concatenate([base, factor * base, base + 0.1])).step_s
    assert steps[1] == pytest.approx(factor * steps[0])
    assert steps[2] > steps[0]


def test_orders_that_cannot_run_take_for_ever() -> None:
    """A last op first waits for what comes after it; the plan's own order is the plan's forecast."""
    plan = planned("1f1b")
    backwards = [tuple(reversed(order)) for order in plan.orders]
    found = evaluate_orders(plan, [plan.orders, backwards, plan.orders])
    assert plan.forecast is not None
    assert found.peak_bytes is not None
    assert found.step_s.tolist() == [plan.forecast.step_s, math.inf, plan.forecast.step_s]
    assert [tuple(row) for row in found.peak_bytes] == [plan.forecast.peak_bytes, (-1, -1), plan.forecast.peak_bytes]


@pytest.mark.parametrize(
    "seconds", [np.ones((2, 5, 3)), np.ones((6, 3)), np.full((1, 6, 3), np.nan), -np.ones((1, 6, 3))]
)
def test_costs_of_another_shape_or_of_no_time_are_refused(seconds: np.ndarray) -> None:
    with pytest.raises(InputError, match="seconds must"):
        evaluate_many(planned("1f1b"), seconds)
