"""Versions of weights that outlive their STEP: what columns say of them is what lists say."""

from __future__ import annotations

import numpy as np
import pytest
import random_runs

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.forecast.kept import kept_copies
from contraflow.planner.graph.columns import Ops
from contraflow.planner.graph.versions import Versions, kept_versions
from contraflow.planner.plan import Plan
from contraflow.planner.problem.weight_policy import FLUSH


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
