"""A stash policy is one row of a table: what is added there is planned, checked, bounded, simulated and executed."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from instances import one_layer_a_stage, uniform
from naive import assert_forecast
from random_plans import Greedy, random_candidate

from contraflow.executor.basics import RunError
from contraflow.executor.state import register_leaving
from contraflow.planner import bounds
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.graph import (
    INCOMING,
    POLICIES,
    STASH,
    Candidate,
    Content,
    Hold,
    StashPolicy,
    Where,
    messages,
    register,
)
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import COPIES, Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem import Cluster, Link, Workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "new_stash_policy.py"
AWAY = Content("half", "stashes", lambda costs: costs.stash_bytes // 2)
REST = Content("other half", "stashes", lambda costs: costs.stash_bytes - costs.stash_bytes // 2)
HALF = StashPolicy(
    "half",
    COPIES,
    (
        Hold(Kind.F, Kind.B, REST),
        Hold(Kind.F, Kind.OFFLOAD, AWAY),
        Hold(Kind.OFFLOAD, Kind.FETCH, AWAY, Where.HOST),
        Hold(Kind.FETCH, Kind.B, AWAY),
    ),
)
CHECKPOINT = StashPolicy(
    "offload+recompute",
    COPIES | {Kind.R},
    (
        Hold(Kind.F, Kind.OFFLOAD, INCOMING),
        Hold(Kind.OFFLOAD, Kind.FETCH, INCOMING, Where.HOST),
        Hold(Kind.FETCH, Kind.R, INCOMING),
        Hold(Kind.R, Kind.B, STASH),
    ),
)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two policies more, for one test."""
    for row in (HALF, CHECKPOINT):
        monkeypatch.setitem(POLICIES, row.name, row)


def plan_with(row: StashPolicy, seed: int) -> Plan:
    """A random plan in which about two in three stashes have this policy."""
    kept, rng = random_candidate(seed), random.Random(seed)
    stash = tuple(tuple(row.name if rng.random() < 0.7 else "keep" for _ in policies) for policies in kept.stash)
    kept = replace(kept, stash=tuple(("keep",) * len(policies) for policies in stash))
    orders = Greedy(kept, random.Random(seed), True).orders()
    candidate = replace(kept, stash=stash)
    again = {
        (stage, m)
        for pipeline, policies in zip(kept.pipelines, stash, strict=True)
        for stage, policy in enumerate(policies)
        for m in pipeline.micro_batches
        if POLICIES[policy].remade
    }
    return assemble(candidate, [_remade(order, again) for order in orders])


def _remade(order: list[Op], again: set[tuple[int, int]]) -> list[Op]:
    found = []
    for op in order:
        if op.kind in (Kind.B, Kind.I) and (op.stage, op.micro_batch) in again:
            found.append(Op(Kind.R, op.stage, op.micro_batch))
        found.append(op)
    return found


def bound_s(plan: Plan, split: bool = True) -> float:
    return bounds.candidate(Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash), split=split)


@pytest.mark.parametrize("row", [HALF, CHECKPOINT], ids=lambda row: row.name)
def test_plans_with_a_new_policy_are_sound_and_no_shorter_than_their_bound(row: StashPolicy) -> None:
    used = 0
    for seed in range(60):
        plan = plan_with(row, seed)
        assert plan.forecast is not None
        assert check(plan) == []
        assert bound_s(plan) <= plan.forecast.step_s * (1 + 1e-9), seed
        used += any(op.kind is Kind.FETCH for order in plan.orders for op in order)
    assert used > 40


@pytest.mark.parametrize("row", [HALF, CHECKPOINT], ids=lambda row: row.name)
def test_times_and_memory_of_a_new_policy_are_those_of_the_naive_account(row: StashPolicy) -> None:
    """Which knows the policy by its name, not by its row."""
    for seed in range(30):
        assert_forecast(plan_with(row, seed))


def test_what_a_new_policy_lacks_is_missed() -> None:
    """The checker asks for the ops of the row."""
    for row in (HALF, CHECKPOINT):
        plan = next(p for p in (plan_with(row, seed) for seed in range(9)) if "FETCH" in str(p.orders))
        for kind in sorted(row.ops):
            short = tuple(tuple(op for op in order if op.kind is not kind) for order in plan.orders)
            codes = {violation.code for violation in check(replace(plan, orders=short))}
            assert codes == {"missing-op"}, kind


def test_a_half_that_stays_cannot_have_its_backward_elsewhere() -> None:
    model = uniform(2, 1.0, 2.0, output_bytes=1)
    problem = Problem(model, Cluster.uniform(2, 100, Link(10.0)), Workload(1))
    line = Pipeline((0, 1), (1, 1), (0,))
    plan = Plan(problem, one_layer_a_stage(model), (line,), ((), ()), (("half", "keep"),))
    assert ["keeps a part of its stash" in violation.message for violation in check(plan)] == [True]
    with pytest.raises(PlanError, match="devices differ"):
        assemble(Candidate(problem, plan.stages, (line,), plan.stash), ((Op(Kind.F, 0, 0),), ()))


FAULTY = {
    "no op of a stash": ({Kind.SEND_F}, (Hold(Kind.F, Kind.B, STASH),)),
    "its ops are not": ({Kind.R}, (Hold(Kind.F, Kind.B, STASH),)),
    "comes back": ({Kind.OFFLOAD}, (Hold(Kind.F, Kind.OFFLOAD, STASH), Hold(Kind.OFFLOAD, Kind.B, STASH))),
    "before its beginning": (set(), (Hold(Kind.B, Kind.F, STASH),)),
    "finds nothing": (set(), ()),
}


@pytest.mark.parametrize("reason", FAULTY)
def test_a_row_that_does_not_add_up_is_refused(reason: str) -> None:
    ops, holds = FAULTY[reason]
    with pytest.raises(PlanError, match=reason):
        StashPolicy("broken", frozenset(ops), holds)


def test_names_are_taken_once() -> None:
    for name in ("keep", "half", "a>b", ""):
        with pytest.raises(PlanError, match="policy"):
            register(replace(HALF, name=name))
    with pytest.raises(RunError, match="already"):
        register_leaving("offload", lambda alive, key, layout: layout.pack(alive.stashes[key]))


def test_every_row_gives_the_backward_a_whole_stash() -> None:
    """And every message brings what the row says that leaves."""
    candidate = random_candidate(5)
    for row in POLICIES.values():
        *_, last = row.held_bytes(candidate.costs)
        assert (last[2] == candidate.costs.stash_bytes).all(), row.name
    assert all(message.bytes >= 0 for message in messages(candidate, candidate.costs))


@pytest.mark.slow
def test_the_example_runs() -> None:
    """It trains like one process, within the planned memory; it says so itself."""
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "parameters differ by" in done.stdout
