"""Random plans of every kind train exactly as plain torch, within their memory; the long run of it is `make soak`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from random_runs import Case, draw, plan_of, shrink, simpler
from trained import outcome

from contraflow.planner.errors import PlanError
from contraflow.planner.plan import Kind


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and ranks run with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_random_plans_train_as_plain_torch(first: int) -> None:
    """Losses, norms, held-out losses, every tensor; peaks, nothing left alive, the same bits again."""
    run = 0
    for seed in range(first, first + 8):
        case = draw(seed)
        try:
            plan = plan_of(case)
        except PlanError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = outcome(case, plan, again=seed % 4 == 0)
        assert not found.faults, f"seed {seed}: {found.faults[0].text}: {case}"
        run += not found.refused
    assert run >= 4


TWO_OWNERS = Case(
    3, "norm", 2, 1, "quick", 1, (), ((0,), (0,)), ((0,), (1,)), (1, 0, 0, 1, 0), (("keep",), ("keep",)), engine="graph"
)


def test_statistics_out_of_order_with_several_owners() -> None:
    """One device runs all forwards of a stage, in no order, two its backwards: gradients are summed, statistics not.

    The device with the forwards once waited for a sum that the other one took no part in.
    """
    plan = plan_of(TWO_OWNERS)
    forwards = [op.micro_batch for op in plan.orders[0] if op.kind is Kind.F]
    assert forwards != sorted(forwards)
    found = outcome(TWO_OWNERS, plan)
    assert not [fault for fault in found.faults if fault.kind != "above its peak"], found.faults


def test_cases_become_simpler_while_they_fail() -> None:
    """What is left has what the failure needs, and little else."""

    def fails(case: Case) -> bool:
        return "offload" in case.stash[0] and len(case.owner) > 2

    case = next(c for c in map(draw, range(500)) if c.synchronous and fails(c) and len(c.forward) > 1)
    found = shrink(case, fails)
    assert fails(found)
    assert len(found.owner) < len(case.owner)
    assert [kind for row in found.stash for kind in row].count("offload") == 1
    assert (found.cuts, found.split, found.precision, found.options) == ((), False, "fp64", ())
    assert all(not fails(other) for other in simpler(found))


def test_a_case_is_what_its_seed_says() -> None:
    """So that a failure can be repeated from its seed."""
    for seed in range(30):
        case = draw(seed)
        assert draw(seed) == case
        try:
            assert plan_of(case) == plan_of(replace(case))
        except PlanError:
            continue
