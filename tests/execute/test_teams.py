"""Plans whose devices are teams of ranks, on real processes: they train as one device does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from instances import shared
from runs import (
    Case,
    assert_same,
    assert_trained_as,
    assert_within_plan,
    planned,
    run_jobs_together,
    run_plans_together,
    truth,
)
from team_plans import Ways, team_plan

from contraflow.executor.basics import Checkpointing, RunError, Training
from contraflow.executor.run.joined import Joined
from contraflow.executor.run.launch import execute, prepare
from contraflow.executor.run.result import RunResult
from contraflow.planner.runs import load_trace, save_trace

TWO: Ways = (("tensor", 2),)
SHARDS: Ways = (("sequence", 2),)
FOUR: Ways = (("tensor", 4),)

Cases = list[tuple[Case, Ways]]
ON_FOUR_RANKS: Cases = [
    (Case("1f1b", "gpt-tiny-dropout", 2, 4), SHARDS),
    (Case("1f1b", "llama-tiny", 2, 3, optimizer="adam"), TWO),
    (Case("chimera", "gpt-tiny-tied", 2, 2), TWO),  # whose two teams a stage share its optimizer
    # a model of one's own, with its parallel plan
    (Case("1f1b", "parallel_model:build_sequence", 2, 3, halves=True), SHARDS),
]
MORE: Cases = [
    (Case("chimera", "parallel_model:build", 2, 2, optimizer="adam"), TWO),
    (Case("1f1b", "parallel_model:build", 2, 4, stash="recompute"), TWO),
    (Case("1f1b", "bert-tiny", 2, 4, stash="recompute"), TWO),
    (Case("1f1b", "llama-tiny", 2, 4, halves=True), SHARDS),
    (Case("1f1b", "mixtral-tiny", 2, 3), SHARDS),
    (Case("1f1b", "gpt-tiny", 1, 2), FOUR),
]


def trained(cases: Cases, folder: Path) -> list[RunResult]:
    """All cases in one set of processes."""
    plans = [team_plan(case, ways) for case, ways in cases]
    plans = [shared(plan) if case.schedule == "chimera" else plan for plan, (case, _) in zip(plans, cases, strict=True)]
    return run_plans_together(plans, folder, [case.dtype for case, _ in cases])


def assert_as_one_device(case: Case, result: RunResult) -> None:
    """Losses and every parameter and optimizer state, put together again; no rank above the planned peak."""
    assert_trained_as(result, truth(case.model, case.micro_batches, case.optimizer, case.dtype))
    if case.dtype is torch.float32:  # as it was profiled
        assert_within_plan(result)


@pytest.mark.long
def test_teams_train_as_one_device(tmp_path: Path) -> None:
    for (case, _), result in zip(ON_FOUR_RANKS, trained(ON_FOUR_RANKS, tmp_path), strict=True):
        assert_as_one_device(case, result)


@pytest.mark.slow
def test_other_teams_train_as_one_device(tmp_path: Path) -> None:
    for (case, _), result in zip(MORE, trained(MORE, tmp_path), strict=True):
        assert_as_one_device(case, result)


@pytest.mark.slow
def test_a_checkpoint_goes_on_in_another_team_and_in_none(tmp_path: Path) -> None:
    """Two steps on a team of 2, one on single devices, two with the sequence divided: as five of one device.

    Gradients are clipped by the norm of the whole model, which counts what all lanes have once.
    """
    case, training = Case("1f1b", "gpt-tiny", 1, 2), Training(clip_norm=0.5)
    alone = planned(Case("1f1b", "gpt-tiny", 2, 2))
    common = {"dtype": torch.float64, "training": training, "self_check": False, "return_state": True}
    runs = list[RunResult]()
    for plan, steps in ((team_plan(case, TWO), 2), (alone, 1), (team_plan(case, SHARDS), 2)):
        saving = Checkpointing(str(tmp_path / "saved"), resume=bool(runs))
        if plan is alone:
            runs.append(execute(plan, steps, transport="threads", checkpoint=saving, **common))
        else:
            (folder := tmp_path / str(len(runs))).mkdir()
            runs += run_jobs_together([prepare(plan, steps, checkpoint=saving, **common)], folder)
    expected = truth(case.model, case.micro_batches, case.optimizer, torch.float64, training)
    assert [loss for run in runs for loss in run.losses] == pytest.approx(expected.losses, abs=1e-8)
    assert [norm for run in runs for norm in run.grad_norms] == pytest.approx(expected.grad_norms, rel=1e-8)
    state = runs[-1].state
    assert state is not None
    assert expected.state.keys() <= state.keys()
    for name, tensor in expected.state.items():
        assert_same(name, state[name], tensor)
    device = runs[0].trace.devices[0]
    assert len(device.lanes) == 2
    assert device.busy_s == max(lane.busy_s for lane in device.lanes) > 0
    assert device.peak_bytes == max(lane.peak_bytes for lane in device.lanes) > 0
    save_trace(runs[0].trace, tmp_path / "run.json")
    assert load_trace(tmp_path / "run.json").devices[0].lanes == device.lanes


@pytest.mark.slow
def test_a_checkpoint_of_teams_that_share_an_optimizer_goes_on_anywhere(tmp_path: Path) -> None:
    """Two steps on teams of 2, one on single devices that share it otherwise, two with the sequence divided.

    The norm of the gradients counts every piece once.
    """
    case, training = Case("chimera", "gpt-tiny", 2, 2), Training(clip_norm=0.5)
    common = {"dtype": torch.float64, "training": training, "self_check": False, "return_state": True}
    runs = []
    for plan, steps, transport in (
        (shared(team_plan(case, TWO)), 2, "processes"),
        (shared(planned(case)), 1, "threads"),
        (shared(team_plan(case, SHARDS)), 2, "processes"),
    ):
        saving = Checkpointing(str(tmp_path), resume=bool(runs))
        runs.append(execute(plan, steps, transport=transport, checkpoint=saving, **common))
    expected = truth(case.model, case.micro_batches, case.optimizer, torch.float64, training)
    assert [loss for run in runs for loss in run.losses] == pytest.approx(expected.losses, abs=1e-8)
    assert [norm for run in runs for norm in run.grad_norms] == pytest.approx(expected.grad_norms, rel=1e-8)
    state = runs[-1].state
    assert state is not None
    for name, tensor in expected.state.items():
        assert_same(name, state[name], tensor)


def test_what_a_team_cannot_run_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, layers without a parallel form, heads that do not divide, other ways, and a wrong world size."""
    plan = team_plan(Case("1f1b", "gpt-tiny", 1, 2), TWO)
    with pytest.raises(RunError, match="teams of 2 ranks, which are processes: run with --transport processes"):
        execute(plan, 1, transport="threads")
    graph, cluster = plan.problem.model, plan.problem.cluster
    expert = replace(plan, problem=replace(plan.problem, model=replace(graph, ways=(("expert", 2),))))
    with pytest.raises(RunError, match="a team that divides layers by expert 2 is not executed"):
        prepare(expert, 1)
    three = replace(
        plan,
        problem=replace(plan.problem, model=replace(graph, ways=(("tensor", 3),)), cluster=replace(cluster, team=3)),
    )
    with pytest.raises(RunError, match=r"layer 'block0.attention': 4 heads cannot be divided among a team of 3"):
        prepare(three, 1)
    single = planned(Case("1f1b", "mlp-tiny", 2, 2))
    of_teams = replace(
        single,
        problem=replace(
            single.problem,
            model=replace(single.problem.model, ways=TWO),
            cluster=replace(single.problem.cluster, team=2),
        ),
    )
    with pytest.raises(RunError, match="layer 'layer0': Linear has no parallel form"):
        prepare(of_teams, 1)
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match="1 devices, each a team of 2 ranks, but WORLD_SIZE is 3"):
        Joined(plan, 10.0)._require_world()
