"""A plan in torch's own pipeline runtime trains to the losses it has in ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import Case, in_threads, planned
from torch_runs import losses_of_torch

from contraflow.executor import torch_schedule
from contraflow.planner import InterchangeError

CASES = [Case(name, "gpt-tiny", 2, 4) for name in ("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v")]
"""Whole and split backwards, one and two stages a rank, round and in a V."""


@pytest.mark.parametrize("cases", [[Case("zb-v", "mlp-tiny", 2, 4)], pytest.param(CASES, marks=pytest.mark.slow)])
def test_torch_runs_our_orders_to_our_losses(cases: list[Case], tmp_path: Path) -> None:
    """Five steps each, with momentum: their gradients are ours, too."""
    found = losses_of_torch(cases, tmp_path)
    for case, losses in zip(cases, found, strict=True):
        assert losses == pytest.approx(in_threads(case).losses, abs=1e-5), case


def test_actions_are_those_of_the_plan_alone() -> None:
    """Compute in its order; what torch cannot express is refused by its name."""
    plan = planned(CASES[2])
    for rank, actions in torch_schedule(plan).items():
        assert [str(action) for action in actions] == [
            str(op) for op in plan.orders[rank] if op.kind.name in ("F", "B", "I", "W")
        ]
    with pytest.raises(InterchangeError, match="R0 on device 0 cannot be expressed: torch's schedule has no recomp"):
        torch_schedule(planned(CASES[0]._replace(stash="recompute")))
