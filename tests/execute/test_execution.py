"""Running a plan equals single-process training with gradient accumulation, whatever the plan."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
from runs import SAMPLES, STEPS, Case, assert_equals_reference, assert_same, planned, run_together, truth

from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.run.launch import execute
from contraflow.executor.step.pass_ops import PassOps
from contraflow.planner.schedules import SCHEDULES as EVERY_SCHEDULE

SCHEDULES = ("gpipe", "1f1b", "interleaved", "gems", "chimera", "search")
MODELS = ("mlp-tiny", "gpt-tiny", "resnet-tiny")
OTHERS = tuple(name for name in EVERY_SCHEDULE if name not in SCHEDULES)
LANGUAGE = ("bert-tiny", "lstm-tiny", "gpt-tiny-tied")

IN_THREADS = [
    *(Case(schedule, model, 2, 4) for schedule in SCHEDULES for model in MODELS),
    *(Case(schedule, "mlp-tiny", 4, 4) for schedule in SCHEDULES if schedule != "interleaved"),
    Case("chimera", "gpt-tiny", 4, 8),
    Case("chimera", "resnet-tiny", 4, 4),
    Case("interleaved", "mlp", 2, 4),
    Case("interleaved", "mlp-deep", 4, 4),
    Case("gems", "gpt-tiny", 2, 4, "adam"),
    Case("chimera", "resnet-tiny", 2, 4, "adamw"),
    Case("1f1b", "mlp-tiny", 2, 4, "sgd"),
    Case("chimera", "gpt-tiny-dropout", 2, 4),
    Case("gpipe", "mlp-tiny", 1, 4),
    *(Case(schedule, "mlp-deep", 4, 8) for schedule in OTHERS),
]


@pytest.mark.parametrize("case", IN_THREADS, ids=str)
def test_threads_equal_single_process(case: Case) -> None:
    """Losses, parameters and buffers after five steps, devices as threads."""
    check = case.schedule == "1f1b"  # one self-check per model is enough
    result = execute(planned(case), STEPS, dtype=case.dtype, transport="threads", self_check=check, return_state=True)
    assert_equals_reference(case, result)


TOGETHER = {
    2: [
        *(Case(schedule, "gpt-tiny", 2, 4) for schedule in ("1f1b", "interleaved")),
        Case("chimera", "resnet-tiny", 2, 4),
        Case("gems", "mlp-tiny", 2, 4, "adamw"),
    ],
    4: [
        Case("1f1b", "mlp-tiny", 4, 4, "adam"),
        Case("chimera", "mlp-tiny", 4, 4),
        Case("interleaved", "mlp-deep", 4, 4, "adamw"),
    ],
}
REST = {
    2: [
        *(Case(schedule, "gpt-tiny", 2, 4) for schedule in SCHEDULES if schedule not in ("1f1b", "interleaved")),
        Case("1f1b", "resnet-tiny", 2, 4, "adam"),
    ],
    4: [
        Case("gems", "gpt-tiny", 4, 4),
        Case("chimera", "resnet-tiny", 4, 4),
        Case("search", "mlp-tiny", 4, 4),
        Case("gpipe", "mlp-tiny", 4, 4),
    ],
}


@pytest.mark.slow
def test_every_other_schedule_on_processes_equals_single_process(tmp_path: Path) -> None:
    """Over BERT, LSTM and a GPT with tied parameters."""
    cases = [Case(schedule, LANGUAGE[k % 3], 2, 4) for k, schedule in enumerate(OTHERS)]
    for case, result in zip(cases, run_together(cases, tmp_path), strict=True):
        assert_equals_reference(case, result)


@pytest.mark.long
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_equal_single_process(devices: int, tmp_path: Path) -> None:
    """The same on gloo processes."""
    cases = TOGETHER[devices]
    for case, result in zip(cases, run_together(cases, tmp_path), strict=True):
        assert_equals_reference(case, result)


@pytest.mark.slow
@pytest.mark.parametrize("devices", REST)
def test_more_processes_equal_single_process(devices: int, tmp_path: Path) -> None:
    """Every other schedule of the first six, and more models."""
    cases = REST[devices]
    for case, result in zip(cases, run_together(cases, tmp_path), strict=True):
        assert_equals_reference(case, result)


@pytest.mark.long
def test_execute_spawns_and_leaves_a_trace_and_a_checkpoint(tmp_path: Path) -> None:
    """Spawned processes; the checkpoint then goes on under another plan, as if nothing had happened."""
    first, second = Case("chimera", "mlp-tiny", 2, 4, "adam"), Case("1f1b", "mlp-tiny", 2, 4, "adam")
    seen: list[int] = []
    begun = execute(
        planned(first),
        3,
        dtype=first.dtype,
        on_step=lambda step, loss, seconds: seen.append(step),
        trace=tmp_path / "run.json",
        checkpoint=tmp_path / "saved",
    )
    assert seen == [0, 1, 2]
    assert (tmp_path / "run.json").read_text().startswith('{"format":"contraflow/run","version":1')
    rest = execute(
        planned(second),
        STEPS - 3,
        dtype=second.dtype,
        transport="threads",
        checkpoint=tmp_path / "saved",
        resume=True,
        return_state=True,
    )
    assert rest.first_step == 3
    expected = truth(second.model, 4, "adam", second.dtype)
    assert begun.losses + rest.losses == pytest.approx(expected.losses, abs=1e-5)
    assert rest.state is not None
    for name, reference in expected.state.items():
        assert_same(name, rest.state[name], reference)


# ---------------------------------------------------------------- the comparison notices what it must


BROKEN = Case("chimera", "mlp-tiny", 2, 4)


def _run_broken() -> None:
    result = execute(planned(BROKEN), STEPS, transport="threads", return_state=True)
    assert_equals_reference(BROKEN, result)


def test_a_wrongly_scaled_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gradient a tenth of a per cent too large."""
    original = PassOps.__init__

    def wrong(self: PassOps, *args: object, **rest: object) -> None:
        original(self, *args, **rest)  # type: ignore[arg-type]
        self._scale *= 1.001

    monkeypatch.setattr(PassOps, "__init__", wrong)
    with pytest.raises(AssertionError, match=r"differs|loss of step"):
        _run_broken()


def test_a_dropped_micro_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of micro-batch 1 never reach the accumulators of stage 0."""
    original = PassOps._backward

    def wrong(self: PassOps, state: object, op: object, record: object) -> None:
        accumulators = self._worker.replicas[op.stage].weights.gradients  # type: ignore[attr-defined]
        before = [flat.clone() for flat in accumulators]
        original(self, state, op, record)  # type: ignore[arg-type]
        if (op.stage, op.micro_batch) == (0, 1):  # type: ignore[attr-defined]
            for flat, old in zip(accumulators, before, strict=True):
                flat.copy_(old)

    monkeypatch.setattr(PassOps, "_backward", wrong)
    with pytest.raises(AssertionError, match=r"differs|loss of step"):
        _run_broken()


# ---------------------------------------------------------------- failures and bad input


def test_a_failing_rank_stops_all_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names rank, stage, op and micro-batch."""

    def fail(self: PassOps, state: object, op: object, record: object) -> None:
        raise ValueError("out of luck\nsecond line")

    monkeypatch.setattr(PassOps, "_backward", fail)
    with pytest.raises(ExecutionError, match=r"^rank \d, stage \d, op \dB\d, micro-batch \d.*out of luck$"):
        execute(planned(BROKEN), 1, transport="threads")


def test_another_model_is_refused_naming_the_layer() -> None:
    """The fingerprint is the layers' names, bytes and shapes."""
    with pytest.raises(RunError, match="layer"):
        execute(planned(BROKEN), 1, model="mlp", transport="threads")
    with pytest.raises(RunError, match="'layer0'"):
        execute(planned(Case("1f1b", "gpt-tiny", 2, 4)), 1, model="mlp-tiny", transport="threads")


def test_resume_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Before anything starts."""
    with pytest.raises(RunError, match="no checkpoint"):
        execute(planned(BROKEN), 1, transport="threads", checkpoint=tmp_path, resume=True)


def test_torchrun_with_another_world_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both numbers are named."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match=r"^the plan is for 2 devices, but WORLD_SIZE is 1"):
        execute(planned(BROKEN), 1)


def test_dropout_depends_on_the_seed_not_on_the_plan() -> None:
    """Two plans of one model with dropout give the same losses."""
    torch.manual_seed(17)
    losses = [
        execute(planned(Case(schedule, "gpt-tiny-dropout", 2, 4)), 2, transport="threads").losses
        for schedule in ("gpipe", "gems")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert planned(Case("gems", "gpt-tiny-dropout", 2, 4)).problem.model.micro_batch_size == SAMPLES
