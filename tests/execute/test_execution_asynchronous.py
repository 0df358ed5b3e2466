"""Running an asynchronous plan equals a single-process emulation of its weight policy, float by float."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from async_plans import (
    SCHEDULED,
    UPDATES,
    Listed,
    assert_as_emulated,
    assert_exact,
    assert_same_floats,
    replicas,
    two_devices,
    unflushed,
)
from async_plans import run as run_threads
from instances import POLICIES
from runs import SAMPLES, STEPS, Case, planned, run_plans_together

from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.emulation import Emulation, emulate
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute, prepare
from contraflow.executor.run.rank import blueprint_of
from contraflow.executor.step.pass_ops import PassOps
from contraflow.executor.watch import Doing, Slot, Watcher
from contraflow.models import resolve
from contraflow.planner.lower.repetition import repeat
from contraflow.planner.plan import Kind
from contraflow.planner.runs.comparison import compare_run
from contraflow.planner.runs.trace_file import load_trace
from contraflow.planner.simulate import simulate

TWO_RUNS = (6, 3)
"""An evaluation, a drain, a new start, and the end."""


def _slow(*values: object) -> list[ParameterSet]:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def _least(policy: str, devices: int) -> int:
    return devices if policy == "2bw" else 1


CASES = [
    *(unflushed(policy, 4, _least(policy, 4)) for policy in POLICIES),
    unflushed("2bw", 2, 2, "gpt-tiny"),
    unflushed("spectrain", 2, 1, "resnet-tiny"),
    unflushed("spectrain", 4, stash="recompute"),
    unflushed("vertical", 4, stash="offload"),
    unflushed("stash", 4, stash="offload+weights"),
    unflushed("spectrain", 4, halves=True),
    unflushed("pipeoptim", 2, 1, optimizer="adam", precision="mixed"),
]
MORE = [
    *(unflushed(policy, 2, 2) for policy in POLICIES if policy != "naive"),
    unflushed("pipeoptim", 4, 4),
    unflushed("stash", 4, stash="recompute"),
    unflushed("stash", 4, stash="odd ship"),
    unflushed("vertical", 4, halves=True),
    unflushed("stash", 2, 1, "gpt-tiny-tied"),
]


@pytest.mark.parametrize("case", [*CASES, *_slow(*MORE)], ids=lambda case: "-".join(map(str, case)))
def test_threads_equal_the_emulation(case: Case) -> None:
    """Losses and parameters of two runs, the rate changing all the time, and memory within the plan's."""
    found = assert_as_emulated(case, TWO_RUNS)
    assert list(found.evaluations) == [TWO_RUNS[0]]
    assert len(found.step_times) == sum(TWO_RUNS)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", *_slow("nesterov", "rmsprop", "adamw")])
def test_every_optimizer_is_predicted_alike(optimizer: str) -> None:
    """With weight decay; over several updates of two micro-batches."""
    training = Training(lr=0.005, weight_decay=0.1, loss_scale=8.0)
    assert_as_emulated(unflushed("pipeoptim", 4, 2, optimizer=optimizer), TWO_RUNS, training)


TOGETHER = {
    2: [unflushed(policy, 2, _least(policy, 2)) for policy in POLICIES],
    4: [unflushed(policy, 4, _least(policy, 4)) for policy in ("stash", "2bw", "pipeoptim")],
}


@pytest.mark.parametrize("devices", [2, *_slow(4)])
def test_processes_equal_the_emulation(devices: int, tmp_path: Path) -> None:
    """The same on gloo processes, one run each."""
    plans = [planned(case) for case in TOGETHER[devices]]
    for plan, found in zip(plans, run_plans_together(plans, tmp_path, training=SCHEDULED), strict=True):
        assert_exact(found, emulate(plan, (STEPS,), training=SCHEDULED))


@pytest.mark.parametrize("policy", ["pipeoptim", *_slow("stash", "2bw")])
def test_replicas_equal_the_emulation(policy: str) -> None:
    """To round-off: gradients of two replicas are added in another order."""
    plan = replicas(policy, 4)
    found, wanted = run_threads(plan, (7,), SCHEDULED), emulate(plan, (7,), training=SCHEDULED)
    assert found.losses == pytest.approx(wanted.losses, abs=1e-6)
    assert found.state is not None
    for name, tensor in wanted.state.items():
        assert torch.allclose(found.state[name], tensor, atol=1e-6), name


@pytest.mark.parametrize(
    ("policy", "optimizer"),
    [
        ("vertical", "momentum"),
        ("pipeoptim", "sgd"),
        pytest.param("stash", "momentum", marks=pytest.mark.slow),
        pytest.param("naive", "adam", marks=pytest.mark.slow),
    ],
)
def test_forward_and_backward_on_two_devices(policy: str, optimizer: str) -> None:
    """New parameters are sent after every update, and used from where the list says that they have arrived.

    No device is above the peak that is planned for lists of these lengths.
    """
    dtype = unflushed(policy, 3, optimizer=optimizer).dtype
    plan = two_devices(policy, 3, 2, optimizer)
    wanted = Listed(blueprint_of(prepare(plan, sum(TWO_RUNS), dtype=dtype, training=SCHEDULED)))
    losses, planned = [], [0, 0, 0]
    for first, updates in ((0, TWO_RUNS[0]), (TWO_RUNS[0], TWO_RUNS[1])):
        ran = repeat(plan, 2 * updates)
        planned = list(map(max, planned, (memory.peak_bytes for memory in simulate(ran).device_memory)))
        wanted.follow(ran)
        losses += wanted.run(first, updates)
    found = run_threads(plan, TWO_RUNS, SCHEDULED, dtype)
    assert_same_floats(found, Emulation(tuple(losses), wanted.state()))
    excess = [mine / most for mine, most in zip(found.peak_bytes, planned, strict=True)]
    assert max(excess) <= 1, excess


# ---------------------------------------------------------------- where the methods meet


def _same_losses(found: tuple[float, ...], wanted: tuple[float, ...]) -> None:
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_device_trains_as_without_a_pipeline(policy: str) -> None:
    """But for the prediction that the released code makes on the last stage too."""
    if policy == "pipeoptim-lookahead":
        return
    plan = planned(unflushed(policy, 1, 2, "mlp-tiny"))
    found = run_threads(plan, TWO_RUNS, SCHEDULED)
    training = Training(**{**vars(SCHEDULED), "evaluate_every": TWO_RUNS[0]})
    wanted = train_reference(resolve("mlp-tiny"), 2, SAMPLES, "momentum", sum(TWO_RUNS), training=training)
    _same_losses(found.losses, wanted.losses)
    assert found.evaluations == pytest.approx(wanted.evaluations, abs=1e-6)


@pytest.mark.parametrize("policy", ["spectrain", *_slow(*(p for p in POLICIES if p != "spectrain"))])
def test_a_rate_near_zero_makes_all_methods_equal(policy: str) -> None:
    """Weights that do not move have one version."""
    training = Training(lr=1e-12)
    plan = planned(unflushed(policy, 4, 4))
    wanted = train_reference(resolve("mlp-deep"), 4, SAMPLES, "momentum", 6, training=training)
    _same_losses(run_threads(plan, (6,), training).losses, wanted.losses)


def test_methods_differ_where_weights_move() -> None:
    """So that the comparisons above compare something."""
    states = [emulate(planned(unflushed(policy, 4, 4)), (6,), lr=0.05).state for policy in POLICIES]
    found = {b"".join(tensor.numpy().tobytes() for tensor in state.values()) for state in states}
    assert len(found) == len(POLICIES)


@pytest.mark.parametrize("policy", ["spectrain", *_slow("naive", "vertical")])
def test_the_emulation_equals_autograd(policy: str) -> None:
    """The same stages on torch's own autograd, to round-off."""
    plan = planned(unflushed(policy, 4))
    graph, eager = (emulate(plan, (6,), training=SCHEDULED, engine=engine) for engine in ("graph", "eager"))
    _close(graph, eager)


def _close(a: Emulation, b: Emulation) -> None:
    assert a.losses == pytest.approx(b.losses, abs=1e-6)
    for name, tensor in a.state.items():
        assert torch.allclose(tensor, b.state[name], atol=1e-6), name


# ---------------------------------------------------------------- runs, traces, checkpoints


def test_a_run_is_resumed_where_the_pipeline_was_empty(tmp_path: Path) -> None:
    """Two runs with a checkpoint between them are two runs of one training."""
    case = unflushed("pipeoptim", 2, 1, optimizer="adam")
    plan, dtype = planned(case), case.dtype
    first = execute(plan, 5, dtype=dtype, transport="threads", self_check=False, checkpoint=tmp_path, lr=0.01)
    rest = execute(
        plan, 4, dtype=dtype, transport="threads", self_check=False, checkpoint=tmp_path, lr=0.01, resume=True,
        return_state=True,
    )  # fmt: skip
    wanted = emulate(plan, (5, 4), dtype=dtype, lr=0.01)
    assert first.losses + rest.losses == wanted.losses
    assert rest.state is not None
    assert all(torch.equal(rest.state[name], tensor) for name, tensor in wanted.state.items())


def test_a_trace_is_of_the_plan_as_long_as_it_ran(tmp_path: Path) -> None:
    """Every op of a run longer than the plan; the comparison simulates that run."""
    plan, seen = planned(unflushed("spectrain", 2, 2)), list[int]()
    result = execute(
        plan, UPDATES + 5, transport="threads", self_check=False, trace=tmp_path / "run.json",
        on_step=lambda step, loss, seconds: seen.append(step),
    )  # fmt: skip
    assert seen == list(range(UPDATES + 5))
    trace = load_trace(tmp_path / "run.json")
    ran = trace.require_plan(plan)
    assert ran.problem.workload.micro_batches == 2 * (UPDATES + 5)
    assert [len(device.ops) for device in trace.devices] == [len(order) for order in ran.orders]
    assert trace.step_s == pytest.approx(sum(result.step_times))
    found = compare_run(plan, trace)
    assert any(row.kind == "PREDICT" for row in found.ops)
    assert sum(cause.seconds for cause in found.causes) == pytest.approx(found.step_s - found.forecast_step_s)
    assert plan.forecast is not None
    assert plan.forecast.period_s is not None
    assert result.forecast_step_s == pytest.approx(2 * plan.forecast.period_s)


def test_a_failure_names_op_and_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches are counted from the start of the run, updates from the start of the training."""
    original = PassOps._backward

    def fail(self: PassOps, state: object, op: object, record: object) -> None:
        if op.micro_batch == 5:  # type: ignore[attr-defined]
            raise ValueError("out of luck")
        original(self, state, op, record)  # type: ignore[arg-type]

    monkeypatch.setattr(PassOps, "_backward", fail)
    wanted = r"^rank 1, stage 1, op 1B5, micro-batch 5, update 2: ValueError: out of luck$"
    with pytest.raises(ExecutionError, match=wanted):
        execute(planned(unflushed("stash", 2, 2)), 8, transport="threads", self_check=False)


def test_who_watches_names_op_and_update() -> None:
    """The place is one of the list that runs, which is not the plan's."""
    plan = planned(unflushed("stash", 2, 2))
    longer = ((), tuple(op for order in plan.orders for op in order))
    watcher = Watcher(plan, 1.0, orders_at=lambda update: longer if update == 12 else plan.orders)
    place = next(k for k, op in enumerate(longer[1]) if op.kind is Kind.STEP)
    slot = Slot(Doing.COMPUTING, 12, place, -1, 1)
    assert watcher.lost(1, 3, slot).endswith(f"in stage 0, op {longer[1][place]}, micro-batch 1, update 12")


@pytest.mark.parametrize(
    ("training", "what"),
    [(Training(clip_norm=1.0), "clipping gradients"), (Training(loss_scale="dynamic"), "a dynamic loss scale")],
)
def test_what_needs_all_gradients_at_once_is_refused(training: Training, what: str) -> None:
    """It would wait for the pipeline to run empty."""
    with pytest.raises(RunError, match=f"^{what} would drain the pipeline"):
        execute(planned(unflushed("stash", 2)), 2, transport="threads", training=training)
