"""Plans to start from: whatever is wrong with them, what comes back is a plan."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from every_kind import KINDS, of_kind
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mutations import mutated_lists

from contraflow.planner import (
    InputError,
    Layer,
    ModelGraph,
    Plan,
    SearchSpace,
    check,
    plan,
    plan_from_dict,
    plan_to_dict,
)
from contraflow.planner.basics import PlanError
from contraflow.planner.graph import Candidate
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem import FLUSH, Cluster, Link, Workload
from contraflow.planner.search.named import possible_orders
from contraflow.planner.search.named.stage_ends import _neighbours, _plainer

SEEDS = st.integers(0, 2**20)


def answered(hint: Plan, model: ModelGraph) -> Plan | None:
    """What a search with time for little else makes of a plan to start from."""
    problem = hint.problem
    space = SearchSpace() if hint.weights == FLUSH else SearchSpace(asynchronous=(hint.weights,))
    try:
        return plan(model, problem.cluster, problem.workload, space, 0.05, workers=1, hint=hint).plan
    except InputError:
        return None


@settings(max_examples=16)
@given(SEEDS, st.sampled_from(KINDS))
@example(620207, "plain")
@example(783762, "shared")
@example(817488, "tied")
@example(45067, "tied")
def test_lists_that_no_plan_can_run_are_not_the_answer(seed: int, kind: str) -> None:
    hint = of_kind(kind, seed)
    if hint is None:
        return
    document = plan_to_dict(hint)
    document["orders"] = mutated_lists(document["orders"], random.Random(seed))
    try:
        broken = plan_from_dict(document)
    except InputError:
        return
    found = answered(broken, broken.problem.model)
    assert found is None or check(found) == []


def test_an_op_of_a_micro_batch_that_is_not_there_is_told_at_once() -> None:
    """99,999,999 took gigabytes, one column for each up to it."""
    with pytest.raises(PlanError, match="an op names micro-batch 99999999, and there are 2"):
        assemble(two_replicas(), [ops("0F0 0B0 0F1 0B1 1F0 1B0 1F1 1B99999999")], "broken")


@settings(max_examples=20)
@given(SEEDS)
@example(138132)  # these three are best on another order of layers, in which their ops would take less
@example(164696)
@example(609724)
def test_halves_of_layers_that_can_no_longer_be_split_become_whole(seed: int) -> None:
    hint = of_kind("plain", seed)
    if hint is None:
        return
    model = replace(hint.problem.model, layers=tuple(map(whole, hint.problem.model.layers)))
    candidate = Candidate(replace(hint.problem, model=model), hint.stages, hint.pipelines, hint.stash)
    orders = [[op for op in order if op.kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)] for order in hint.orders]
    listed = possible_orders(candidate, orders)
    assert not any(op.kind in (Kind.I, Kind.W) for order in listed for op in order)
    found = answered(hint, model)
    assert found is None or check(found) == []


def whole(layer: Layer) -> Layer:
    """The layer, with a backward that cannot be split."""
    return replace(layer, backward_input_s=layer.backward_s, backward_weight_s=0.0, separable=False)


def test_a_whole_backward_and_halves_that_come_together_are_one_at_the_later_place() -> None:
    """Of stage 0, of its second micro-batch in the other order; of stage 1 nothing comes together."""
    mixed = ops("0F0 0I0 0B0 0W0 0F1 0B1 0I1 0W1 1F0 1I0 1W0 1F1 1B1")
    assert possible_orders(two_replicas(), [mixed]) == [ops("0F0 0B0 0F1 0B1 1F0 1I0 1W0 1F1 1B1")]


def test_stages_of_which_some_cannot_be_split_become_one() -> None:
    """Whatever ends of stages do from there, the plan is one that runs."""
    found = assemble(two_replicas(), [ops(f"0F{m} 1F{m} 1I{m} 1W{m} 0B{m}") for m in range(2)], "search")
    assert check(found) == []
    plainer = [*_plainer(found)]
    assert [one.stages for one in plainer] == [(("a", "b", "c"),)] * 2
    beside = [assemble(other, possible_orders(other, orders), "search") for other, orders in _neighbours(found)]
    assert {tuple(map(len, one.stages)) for one in beside} == {(1, 2), (2, 1), (3,), (1, 1, 1)}
    assert [check(one) for one in (*plainer, *beside)] == [[]] * (2 + len(beside))


def ops(texts: str) -> list[Op]:
    return [op_from_text(text) for text in texts.split()]


def two_replicas() -> Candidate:
    """Three layers as two stages on either device; the first cannot be split."""
    layers = [Layer("a", 1.0, 1.0, separable=False), *(Layer(name, 1.0, 1.0, 1.0) for name in "bc")]
    model = ModelGraph.chain([replace(layer, parameter_bytes=4) for layer in layers])
    problem = Problem(model, Cluster.uniform(2, 1 << 20, Link(8.0)), Workload(2))
    return Candidate(problem, (("a",), ("b", "c")), tuple(Pipeline((d, d), (d, d), (d,)) for d in range(2)))
