"""Versions of weights that outlive their STEP: what columns say of them is what lists say, and copying takes time."""

from __future__ import annotations

import numpy as np
import pytest
import random_runs
from instances import machine, one_layer_a_stage, uniform

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.forecast.kept import kept_copies
from contraflow.planner.graph import Candidate
from contraflow.planner.graph.columns import Ops
from contraflow.planner.graph.versions import Versions, kept_versions
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Plan, Problem
from contraflow.planner.problem.cluster import Link
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build
from contraflow.planner.simulate import simulate


def _listed(plan: Plan, ops: Ops) -> list[tuple[int, int]]:
    found = kept_versions(plan, Versions.of(plan))
    return sorted(
        (a + k.replaced, a + k.until) for a, mine in zip(ops.first.tolist(), found, strict=True) for k in mine
    )


@pytest.mark.parametrize("block", range(4))
def test_columns_and_lists_agree_on_what_is_kept(block: int) -> None:
    """Random runs without a flush: replicas, forwards and backwards apart, versions that go to the host."""
    copies = 0
    for seed in range(100 * block, 100 * block + 100):
        case = random_runs.draw(seed)
        if case.weights == FLUSH:
            continue
        try:
            plan = random_runs.plan_of(case)
        except PlanError:
            continue
        ops = Ops.of(plan.orders, len(plan.stages))
        rows = np.array(kept_copies(plan, ops)).T.tolist()
        assert sorted(map(tuple, rows)) == _listed(plan, ops), seed
        copies += len(rows)
    assert copies > 20


@pytest.mark.parametrize(("weights", "steps"), [("stash", [5.0, 5.0, 3.0]), ("naive", [3.0, 3.0, 3.0])])
def test_a_step_copies_the_version_that_is_still_read(weights: str, steps: list[float]) -> None:
    """Steps of SGD read gradients and parameters and write these: 3 x 12 bytes at 12 a second; a copy moves 2 x 12.

    The last of three stages has one micro-batch in flight, and nothing reads what its STEP replaces.
    """
    model = uniform(3, 1.0, 2.0, parameter_bytes=12)
    layout = build("pipedream", 3, 9)
    problem = Problem(model, machine(3, 12.0, Link()), Workload(9, "sgd", update_every=1))
    plan = assemble(Candidate(problem, one_layer_a_stage(model), layout.pipelines, (), weights), layout.orders)
    assert Kind.STEP in {op.kind for op in plan.orders[0]}
    for device, timed in enumerate(simulate(plan).devices):
        third = [t for t in timed.ops if t.op.kind is Kind.STEP][2]
        assert third.end_s - third.start_s == pytest.approx(steps[device])
