"""Optimizers that replicas share (ZeRO-1): times, memory, the checker's rules and files of such plans."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from editing import mutant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive import assert_forecast
from random_plans import plans_of, random_candidate, tied

from contraflow.planner import check
from contraflow.planner.basics import PlanError, WorkloadError
from contraflow.planner.graph import Candidate, holders, static_bytes
from contraflow.planner.plan import Kind, Op, Plan
from contraflow.planner.plan_file import plan_from_dict, plan_to_dict
from contraflow.planner.problem import Workload, part_bytes
from contraflow.planner.simulate import simulate

SEEDS = st.integers(0, 1 << 20)
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
"""Those whose step needs no room, which the naive account does not know."""


def candidate_of(seed: int) -> Candidate:
    """A random candidate with parameters worth sharing, some frozen, some tied, some with two devices a stage."""
    rng = random.Random(seed)
    found = random_candidate(seed, apart=seed % 3 == 0)
    layers = []
    for layer in found.problem.model.layers:
        size = rng.choice([0, 3, 64, 100, 4096])
        trained = rng.choice([None, None, size // 2, 0])
        layers.append(replace(layer, parameter_bytes=size, trainable_bytes=trained))
    workload = Workload(
        found.problem.workload.micro_batches, rng.choice(OPTIMIZERS), rng.choice(("fp32", "mixed")), sharded=True
    )
    problem = replace(found.problem, workload=workload, model=replace(found.problem.model, layers=tuple(layers)))
    found = replace(found, problem=problem)
    return tied(found, seed) if seed % 2 else found


def plans(seed: int) -> list[Plan]:
    return plans_of(candidate_of(seed), seed, 2, seed % 2 == 0)


@settings(max_examples=40)
@given(SEEDS)
@example(609)  # a TIE and a GATHER that are ready at once
@example(54543)
def test_times_and_memory_equal_a_naive_account(seed: int) -> None:
    for plan in plans(seed):
        assert_forecast(plan)
        assert not check(plan)


@pytest.mark.parametrize("seed", range(24))
def test_what_the_checker_accepts_of_edited_lists_is_accounted_for(seed: int) -> None:
    for plan in plans(seed):
        if (other := mutant(plan, random.Random(seed), 20)) is not None:
            assert_forecast(other)


@settings(max_examples=60)
@given(SEEDS)
def test_files_keep_it(seed: int) -> None:
    for plan in plans(seed):
        content = plan_to_dict(plan)
        assert content["problem"]["workload"]["sharded"] is True
        assert plan_from_dict(content) == plan


def test_old_files_are_not_sharded() -> None:
    assert Workload.from_dict({"micro_batches": 4}).sharded is False
    assert "sharded" not in Workload(4).to_dict()
    for wrong in (1, "yes", None):
        with pytest.raises(WorkloadError, match="sharded must be true or false"):
            Workload.from_dict({"micro_batches": 4, "sharded": wrong})
    with pytest.raises(WorkloadError, match="groups"):
        Workload.from_dict({"micro_batches": 4, "groups": 2})


@settings(max_examples=40)
@given(SEEDS)
def test_every_fault_around_a_gather_is_named(seed: int) -> None:
    for plan in plans(seed):
        gathers = [
            (d, k) for d, order in enumerate(plan.orders) for k, op in enumerate(order) if op.kind is Kind.GATHER
        ]
        owners = holders(plan)
        assert len(gathers) == sum(len(devices) for devices in owners.values() if len(devices) > 1)
        for d, k in gathers:
            order = list(plan.orders[d])
            gather = order.pop(k)
            codes = {violation.code for violation in check(_with(plan, d, order))}
            assert "missing-op" in codes
            order.insert(order.index(Op(Kind.STEP, gather.stage)), gather)
            assert "dependency" in {violation.code for violation in check(_with(plan, d, order))}
        for d, order in enumerate(plan.orders):
            steps = [op for op in order if op.kind is Kind.STEP and len(owners[op.stage]) == 1]
            for step in steps:
                codes = {x.code for x in check(_with(plan, d, [*order, Op(Kind.GATHER, step.stage)]))}
                assert "unexpected-op" in codes


@settings(max_examples=60)
@given(SEEDS)
def test_unsharded_plans_have_no_gather(seed: int) -> None:
    for plan in plans(seed):
        whole = replace(plan, problem=replace(plan.problem, workload=replace(plan.problem.workload, sharded=False)))
        gathers = any(op.kind is Kind.GATHER for order in plan.orders for op in order)
        found = {violation.code for violation in check(whole)}
        assert ("unexpected-op" in found) == gathers


def _with(plan: Plan, device: int, order: list[Op]) -> Plan:
    orders = list(plan.orders)
    orders[device] = tuple(order)
    return replace(plan, orders=tuple(orders))


@given(st.integers(0, 10_000), st.integers(1, 70))
def test_parts_cover_all_and_are_whole_units(trained: int, parts: int) -> None:
    size = part_bytes(trained, parts)
    assert trained <= parts * size < trained + 64 * parts
    assert part_bytes(trained, 1) == trained
    for element in (2, 4, 8):
        if trained % element == 0:
            assert size % element == 0


@settings(max_examples=60)
@given(SEEDS)
def test_optimizers_are_shared_out_and_nothing_else(seed: int) -> None:
    found = candidate_of(seed)
    whole = replace(found, problem=replace(found.problem, workload=replace(found.problem.workload, sharded=False)))
    for mine, theirs in zip(static_bytes(found, found.costs), static_bytes(whole, whole.costs), strict=True):
        assert mine.get("buffers", 0) == theirs.get("buffers", 0)
        for category in ("parameters", "gradients"):  # but for padding
            assert 0 <= mine.get(category, 0) - theirs.get(category, 0) <= 64 * 16 * len(found.stages)
        assert mine.get("optimizer", 0) <= theirs.get("optimizer", 0)


def test_without_a_flush_nothing_is_sharded() -> None:
    plan = plans(2)[0]
    wrong = replace(plan, weights="stash")
    assert {"sharded"} <= {violation.code for violation in check(wrong)}
    with pytest.raises(PlanError, match="shards optimizers"):
        simulate(wrong)
