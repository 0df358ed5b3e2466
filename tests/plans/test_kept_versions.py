"""Versions of weights that outlive their STEP: what columns say of them is what lists say."""

from __future__ import annotations

import pytest
import random_runs

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph.candidate import weights_offloaded
from contraflow.planner.graph.kept import Kept, kept_versions
from contraflow.planner.graph.versions import Versions
from contraflow.planner.plan import Kind, Plan
from contraflow.planner.problem.weight_policy import FLUSH


def _read_off(plan: Plan) -> list[list[Kept]]:
    """The same op by op: who reads which version on a device, and when it is replaced."""
    versions, away, found = Versions.of(plan), weights_offloaded(plan), list[list[Kept]]()
    for order in plan.orders:
        last, replaced, made = dict[tuple[int, int], int](), dict[tuple[int, int], int](), dict[int, int]()
        for place, op in enumerate(order):
            at = op.stage, op.micro_batch
            if op.kind in (Kind.STEP, Kind.RECV_P):
                version = made.get(op.stage, 0)
                replaced[op.stage, version], made[op.stage] = place, version + 1
            elif op.kind is Kind.F or (op.kind is Kind.OFFLOAD and at in away):
                last[op.stage, versions.forward[at]] = place
            elif op.kind in (Kind.B, Kind.I, Kind.W, Kind.R) and at not in away:
                last[op.stage, versions.backward[at]] = place
        kept = [Kept(s, v, at, last[s, v]) for (s, v), at in replaced.items() if last.get((s, v), -1) > at]
        found.append(sorted(kept, key=lambda one: one.replaced))
    return found


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
        found = kept_versions(plan)
        assert found == _read_off(plan), seed
        copies += sum(map(len, found))
    assert copies > 20
