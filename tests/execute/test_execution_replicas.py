"""Stages with replicas of their own, each in its own number: exactly as in one process, within the planned memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from async_plans import SCHEDULED, UPDATES, Listed, run
from runs import assert_as_planned, assert_within_plan, in_threads, linked, profiled, run_plans_together, truth
from spread import spread

from contraflow.executor.oracle.reference import ReferenceRun
from contraflow.executor.run.launch import prepare
from contraflow.executor.run.rank import blueprint_of
from contraflow.planner.check import check
from contraflow.planner.plan import Plan
from contraflow.planner.problem.workload import Workload


def made(model: str, *widths: int, batches: int = 6, policy: str = "keep", halves: bool = False) -> Plan:
    """With a flush, on links that take time."""
    workload, cluster = Workload(batches, "momentum"), linked(sum(widths))
    plan = spread(profiled(model, torch.float32), widths, workload, cluster, policy=policy, halves=halves)
    assert check(plan) == []
    return plan


IN_THREADS = {
    "2-1": partial(made, "mlp-deep", 2, 1),
    "3-2": partial(made, "gpt-tiny", 3, 2, batches=7, halves=True),
    "1-3": partial(made, "gpt-tiny", 1, 3, policy="recompute"),
    "4-2-1": partial(made, "mlp-deep", 4, 2, 1, batches=8),
    "2-3, tied": partial(made, "gpt-tiny-tied", 2, 3, policy="offload"),
    "3-1, batch norm": partial(made, "resnet-tiny", 3, 1, batches=5),
    "1-2, batch norm, recomputed": partial(made, "resnet-tiny", 1, 2, policy="recompute"),
}


@pytest.mark.parametrize("name", IN_THREADS)
def test_threads_equal_single_process_within_the_planned_memory(name: str) -> None:
    """Losses, parameters and buffers after five steps, and every device's peak."""
    plan = IN_THREADS[name]()
    assert_as_planned(in_threads(plan), true_of(plan))


@pytest.mark.long
@pytest.mark.parametrize("devices", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_processes_equal_single_process_within_the_planned_memory(devices: int, tmp_path: Path) -> None:
    """The same on gloo processes."""
    three = [made("mlp-deep", 2, 1), made("gpt-tiny-tied", 1, 2, halves=True)]
    plans = three if devices == 3 else [made("mlp-deep", 3, 2, batches=7)]
    for plan, result in zip(plans, run_plans_together(plans, tmp_path), strict=True):
        assert_as_planned(result, true_of(plan))


@pytest.mark.parametrize("weights", ["stash", "vertical", "2bw", "pipeoptim", "spectrain", "naive"])
@pytest.mark.parametrize(("widths", "update"), [((2, 1), 2), ((1, 2), 3), ((3, 2), 6)])
def test_without_a_flush_as_emulated(weights: str, widths: tuple[int, ...], update: int) -> None:
    """Versions, gradient sums over the replicas of each stage, and predictions; sums differ in round-off."""
    workload = Workload(UPDATES * update, "momentum", update_every=update)
    plan = spread(profiled("mlp-deep", torch.float32), widths, workload, weights=weights)
    assert check(plan) == []
    found = run(plan, (UPDATES,), SCHEDULED)
    wanted = Listed(blueprint_of(prepare(plan, UPDATES, training=SCHEDULED)))
    wanted.follow(plan)
    wanted.kept = UPDATES
    losses = wanted.run(0, UPDATES)
    assert found.losses == pytest.approx(losses, abs=1e-6)
    assert found.state is not None
    for name, tensor in wanted.state().items():
        assert torch.allclose(found.state[name], tensor, atol=1e-6), name
    assert_within_plan(found)


def true_of(plan: Plan) -> ReferenceRun:
    workload = plan.problem.workload
    return truth(plan.problem.model.name, workload.micro_batches, workload.optimizer, torch.float32)
