"""What programs around the planner rely on, on random problems and plans of every kind."""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_kind import KINDS, of_kind
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_plans import random_model, random_problem

from contraflow.planner import (
    Cluster,
    InputError,
    Layer,
    ModelFamily,
    ModelGraph,
    Plan,
    Progress,
    SearchSpace,
    Workload,
    check,
    evaluate,
    evaluate_many,
    evaluate_orders,
    frontier,
    plan,
    plan_from_dict,
    plan_to_dict,
    simulate,
)
from contraflow.planner.plan import Problem
from contraflow.planner.search.common import Clock, Session, fits
from contraflow.planner.search.driver import with_flush
from contraflow.planner.search.steady import search_steady

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
embed: Any = importlib.import_module("embed")

SEEDS = st.integers(0, 2**20)
SPACES = (
    SearchSpace(),
    SearchSpace(),
    SearchSpace(pipelines=1),
    SearchSpace(replicas=2),
    SearchSpace(offload=False, recompute=False),
    SearchSpace(asynchronous=("stash",)),
    SearchSpace(asynchronous=("2bw", "spectrain")),
)
SHORT: dict[str, Any] = {"time_limit": 0.15, "workers": 1}
"""What must hold does so whenever a search ends."""


def with_seconds(model: ModelGraph, seconds: np.ndarray) -> ModelGraph:
    """The model with these seconds of F, I and W; both halves are one where a backward cannot be split."""
    layers = []
    for layer, (forward, inputs, weights) in zip(model.layers, seconds.tolist(), strict=True):
        halves = (inputs, weights) if layer.separable else (inputs + weights, 0.0)
        layers.append(replace(layer, forward_s=forward, backward_input_s=halves[0], backward_weight_s=halves[1]))
    return replace(model, layers=tuple(layers))


def drifted(model: ModelGraph, rng: random.Random, share: float) -> ModelGraph:
    """Every layer's seconds within such a share of what they were."""
    times = [[x.forward_s, x.backward_input_s, x.backward_weight_s] for x in model.layers]
    factors = [[rng.uniform(1 - share, 1 + share)] * 3 for _ in model.layers]
    return with_seconds(model, np.array(times) * np.array(factors))


def answered(model: ModelGraph, cluster: Cluster, workload: Workload, space: SearchSpace, **more: Any) -> Plan | None:
    """The plan of a small search; None where there is none, or not even such a space."""
    try:
        return plan(model, cluster, workload, space, **(SHORT | more)).plan
    except InputError:
        return None


def objective(made: Plan) -> float:
    """What a search minimises."""
    return simulate(made).forecast().objective_s


@pytest.mark.long
@settings(max_examples=25)
@given(st.sampled_from(KINDS), SEEDS)
def test_batches_are_one_plan_at_a_time(kind: str, seed: int) -> None:
    """Costs and orders in a batch, and the plan from its file: what each comes to alone."""
    made = of_kind(kind, seed)
    if made is None:
        return
    rng = np.random.default_rng(seed)
    cases = rng.uniform(0.0, 3.0, (3, len(made.problem.model.layers), 3))
    many = evaluate_many(made, cases, memory=True)
    assert many.peak_bytes is not None
    for k, seconds in enumerate(cases):
        alone = evaluate(made, with_seconds(made.problem.model, seconds))
        assert many.step_s[k] == pytest.approx(alone.step_s, rel=1e-9)
        assert tuple(many.peak_bytes[k]) == alone.peak_bytes
    other = [tuple(order[::-1]) for order in made.orders]
    orders = evaluate_orders(made, [made.orders, other])
    assert orders.peak_bytes is not None
    assert orders.step_s[0] == evaluate(made).step_s
    assert tuple(orders.peak_bytes[0]) == evaluate(made).peak_bytes
    assert math.isinf(orders.step_s[1]) == (orders.peak_bytes[1].min() < 0)
    read = plan_from_dict(json.loads(json.dumps(plan_to_dict(made))))
    assert read == made
    assert check(read) == check(made)


def test_a_hint_without_a_flush_is_not_lost_where_time_is_up_before_the_search_begins() -> None:
    """On a busy machine it may be."""
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, stash_bytes=1) for k in range(4)]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(2, 1 << 30), Workload(4))
    space = SearchSpace(asynchronous=("stash",))
    hint = plan(problem.model, problem.cluster, problem.workload, space, 5).plan
    assert hint is not None
    found = search_steady(Session(problem, space, Clock(time.monotonic() - 1.0)), hint, with_flush)
    assert found.plan is not None
    assert objective(found.plan) == objective(hint)


@pytest.mark.long
@settings(max_examples=8)
@given(SEEDS, st.sampled_from(SPACES), st.sampled_from((0.05, 0.3)))
@example(1008769, SearchSpace(), 0.3)
def test_a_hint_is_never_lost(seed: int, space: SearchSpace, drift: float) -> None:
    """After a drift the answer is no worse than the old orders, where these are still in the space and fit."""
    model, cluster, workload = random_problem(seed)
    old = answered(model, cluster, workload, space)
    if old is None:
        return
    now = drifted(model, random.Random(seed), drift)
    moved = replace(old, problem=replace(old.problem, model=now))
    again = answered(now, cluster, workload, space, hint=old)
    assert fits(moved)
    assert again is not None
    assert not check(again)
    assert objective(again) <= objective(moved) * (1 + 1e-9)


@settings(max_examples=14)
@given(SEEDS, st.sampled_from((*SPACES, SearchSpace("1f1b"), SearchSpace("pipedream"))), st.integers(1, 3))
def test_a_listener_hears_better_plans_and_may_end_the_call(seed: int, space: SearchSpace, most: int) -> None:
    """Steps never grow; the call ends with the best heard, soon."""
    heard: list[Progress] = []

    def hear(event: Progress) -> bool:
        if event.best_step_s is not None and (not heard or event.best_step_s != heard[-1].best_step_s):
            heard.append(event)
        return len(heard) >= most

    made = answered(*random_problem(seed), space, on_progress=hear)
    steps = [event.best_step_s for event in heard]
    assert steps == sorted(steps, reverse=True)
    if heard:
        assert made is not None
        assert not check(made)
        assert objective(made) <= steps[-1] * (1 + 1e-9)


@settings(max_examples=4)
@given(SEEDS)
@example(13512)  # where time allows, free placement is asked for and has no cut to begin with
def test_every_limit_has_its_nearest_plan(seed: int) -> None:
    """Of a frontier: what fits there, and nothing that fits is faster; rows are points."""
    asked = random_problem(seed)
    found = frontier(*asked, count=3, **SHORT)
    limits = [point.limit_bytes for point in found]
    assert limits == sorted(set(limits))
    for made in found.plans:
        assert not check(made)
    for limit in [*limits, *(size + 1 for size in limits), 0]:
        nearest = found.nearest(limit)
        lean = [one for one in found.plans if max(evaluate(one).peak_bytes) <= limit]
        assert (nearest is None) == (not lean)
        if nearest is not None:
            assert max(evaluate(nearest).peak_bytes) <= limit
            assert objective(nearest) == min(map(objective, lean))
    steps = [point.forecast.step_s for point in found if point.forecast]
    assert steps == sorted(steps, reverse=True)
    pytest.importorskip("pandas", reason="pip install 'contraflow[frames]'")
    table = found.to_dataframe()
    assert list(table["limit_bytes"]) == limits
    assert [step for step in table["step_s"] if not math.isnan(step or math.nan)] == steps


@settings(max_examples=40)
@given(SEEDS)
def test_sizes_between_two_that_were_measured_lie_between_them(seed: int) -> None:
    """Of every figure of every layer; the measured ones are themselves, whatever else was measured."""
    rng = random.Random(seed)
    base = random_model(rng, rng.randint(1, 6))
    sizes = sorted(rng.sample(range(1, 40), rng.randint(2, 4)))
    members = tuple(_at_size(base, size, rng) for size in sizes)
    family = ModelFamily(tuple(rng.sample(members, len(members))))
    assert ModelFamily.from_dict(json.loads(json.dumps(family.to_dict()))) == family
    for size in range(sizes[0], sizes[-1] + 1):
        made = family.rescale(size)
        assert made.micro_batch_size == size
        assert ModelGraph.from_dict(json.loads(json.dumps(made.to_dict()))) == made
        above = next(k for k, one in enumerate(sizes) if one >= size)
        if sizes[above] == size:
            assert made == members[above]
            continue
        for low, layer, high in zip(members[above - 1].layers, made.layers, members[above].layers, strict=True):
            for key in ("forward_s", "backward_s", "stash_bytes", "output_bytes", "parameter_bytes", "workspace_bytes"):
                ends = sorted((getattr(low, key), getattr(high, key)))
                assert ends[0] * (1 - 1e-9) <= getattr(layer, key) <= ends[1] * (1 + 1e-9)
    for size in (sizes[0] - 1, sizes[-1] + 1):
        with pytest.raises(InputError, match="not between them"):
            family.rescale(size)


def _at_size(base: ModelGraph, size: int, rng: random.Random) -> ModelGraph:
    """The model in micro-batches of so many samples: times and bytes grow about as these."""

    def layer(x: Layer) -> Layer:
        times = {key: getattr(x, key) * size * rng.uniform(0.8, 1.2) for key in ("forward_s", "backward_input_s")}
        grown = {key: getattr(x, key) * size for key in ("stash_bytes", "weight_stash_bytes", "output_bytes")}
        given = {"input_bytes": x.input_bytes * size} if x.input_bytes is not None else {}
        return replace(x, **times, **grown, **given, workspace_bytes=x.workspace_bytes + size)

    return replace(base, layers=tuple(map(layer, base.layers)), micro_batch_size=size)


def test_the_benchmark_draws_problems_that_have_plans() -> None:
    """Tight ones among them; its rows have a cell a title, and the same seed draws the same problems."""
    asked = embed.problems(3, 2)
    assert asked == embed.problems(3, 2)
    assert any(not one.roomy for one in asked)
    first = embed.at_once(asked, "search")
    assert first[1].endswith("of 3")
    assert len(first) == 3 + len(embed.LIMITS)
    assert [row[1] for row in embed.memory(asked, 10)] == ["1", "5", "10"]
