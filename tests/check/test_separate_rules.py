"""Random plans whose stages have two devices, against a naive account of memory and every rule of order."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from naive import assert_forecast
from random_plans import plans_of, random_candidate

from contraflow.planner import bounds
from contraflow.planner.check import check
from contraflow.planner.forecast.timeline import Timeline
from contraflow.planner.plan import Kind, Op, Plan
from contraflow.planner.plan_file import plan_from_dict, plan_to_dict
from contraflow.planner.simulate import evaluate, simulate


@pytest.mark.parametrize("seed", range(60))
def test_times_and_memory_equal_a_naive_account(seed: int) -> None:
    for plan in plans_of(random_candidate(seed, apart=True), seed, 2, split=seed % 2 == 0):
        assert_forecast(plan)


@pytest.mark.parametrize(
    "seed", [*range(0, 100, 4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 240, 4))]
)
def test_random_plans_keep_every_rule(seed: int) -> None:
    """Checked, unchanged by the file, every byte given back, no backward before its stash, no step below a bound."""
    for number in range(seed, seed + 4):
        candidate = random_candidate(number, apart=True)
        for plan in plans_of(candidate, number, 2, split=True):
            assert check(plan) == []
            assert plan_from_dict(json.loads(json.dumps(plan_to_dict(plan)))) == plan
            timeline = simulate(plan)
            for line in timeline.devices:
                assert line.memory.bytes[-1] == line.memory.bytes[0] == line.memory.bytes.min()
                assert sum(count for _, count in line.memory.peak_parts) == line.memory.peak_bytes
            arrive(plan, timeline)
            shares = tuple(len(p.micro_batches) for p in plan.pipelines)
            kept = replace(candidate, stash=plan.stash)
            assert bounds.candidate(kept, shares, True, [1 << 60] * len(plan.orders)) <= timeline.step_s * (1 + 1e-9)
            assert bounds.any_plan(plan.problem) <= timeline.step_s * (1 + 1e-9)


def arrive(plan: Plan, timeline: Timeline) -> None:
    """Everything is there before it is used, and parameters leave after their step and arrive within it."""
    start = {t.op: t.start_s for line in timeline.devices for t in line.ops if t.op.kind is not Kind.STEP}
    steps = {
        (d, t.op.stage): t.end_s for d, line in enumerate(timeline.devices) for t in line.ops if t.op.kind is Kind.STEP
    }
    path = {m: p for p in plan.pipelines for m in p.micro_batches}
    for m in timeline.messages:
        s, k = m.op.stage, m.op.micro_batch
        if m.op.kind is Kind.SEND_S and m.target == path[k].backward[s]:
            users = [start[o] for o in (Op(Kind.R, s, k), Op(Kind.B, s, k), Op(Kind.I, s, k)) if o in start]
            assert min(users) >= m.arrival_s - 1e-9
        if m.op.kind is Kind.SEND_P:
            assert m.start_s >= steps[m.source, s] - 1e-9
            assert timeline.step_s >= m.arrival_s - 1e-9


def test_evaluate_gives_what_assemble_said() -> None:
    for seed in range(40):
        for plan in plans_of(random_candidate(seed, apart=True), seed, 1, split=True):
            assert evaluate(plan) == plan.forecast
