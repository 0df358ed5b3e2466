"""Clipping, schedules, loss scaling and evaluation: as in one process, whatever the plan."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from runs import (
    SAMPLES,
    STEPS,
    Case,
    assert_equals_reference,
    assert_same,
    in_threads,
    planned,
    run_together,
    truth,
    worst_excess,
)
from torch import Tensor

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.training import INITIAL_SCALE, Training
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run import threaded
from contraflow.executor.step import course, evaluation
from contraflow.executor.step.deferral import DeferredList, deferred
from contraflow.executor.step.evaluation import evaluation_seed, forward_plan, one_by_one
from contraflow.executor.step.waits import Waits, waits
from contraflow.executor.wires import threads
from contraflow.models import load, resolve
from contraflow.planner.check import check
from contraflow.planner.forecast.timeline import simulate_orders
from contraflow.planner.graph import costs_of
from contraflow.planner.plan import Kind, Op, Plan
from contraflow.planner.simulate import simulate

TWO_WAYS = Case("chimera", "mlp-tiny", 2, 4)
ONE_WAY = Case("1f1b", "mlp-tiny", 2, 4)
V_SHAPED = Case("zb-v", "mlp-deep", 2, 4)
CLIPPED = Training(clip_norm=0.4, schedule="cosine", warmup_steps=2, lr_floor=1e-3, weight_decay=0.01)


@pytest.mark.parametrize(
    ("case", "training"),
    [
        (TWO_WAYS, CLIPPED),
        (V_SHAPED, replace(CLIPPED, schedule="linear", momentum=0.8)),
        (TWO_WAYS, Training(loss_scale="dynamic", scale_interval=2)),
        (TWO_WAYS._replace(optimizer="adamw"), Training(loss_scale=256.0, betas=(0.8, 0.9), eps=1e-6)),
        (ONE_WAY._replace(optimizer="nesterov"), Training(weight_decay=0.1, momentum=0.8)),
        (ONE_WAY._replace(optimizer="rmsprop"), Training(weight_decay=0.1, smoothing=0.9, eps=1e-4)),
    ],
    ids=[
        "replicas-clipped-cosine",
        "v-clipped-linear",
        "replicas-dynamic",
        "constant-scale-adamw",
        "nesterov",
        "rmsprop",
    ],
)
def test_training_options_equal_single_process(case: Case, training: Training) -> None:
    """Losses, parameters, norms and scales after five steps; clipping does clip."""
    result = in_threads(case, training)
    assert_equals_reference(case, result, training)
    if training.clip_norm is not None:
        assert max(result.grad_norms) > training.clip_norm
    assert all(share <= 1 for share in worst_excess(result).values())


@pytest.mark.long
def test_processes_clip_scale_and_evaluate_as_one_process(tmp_path: Path) -> None:
    """Everything at once on two gloo processes: with replicas, with two stages a device, in mixed precision."""
    training = replace(CLIPPED, loss_scale="dynamic", scale_interval=2, evaluate_every=2)
    cases = [TWO_WAYS, V_SHAPED._replace(precision="mixed")]
    for case, result in zip(cases, run_together(cases, tmp_path, training), strict=True):
        assert_equals_reference(case, result, training)
        assert list(result.evaluations) == [2, 4]


# ---------------------------------------------------------------- overflow


@dataclass(frozen=True)
class Bursting:
    """The digits; micro-batch 2 of step 1 is so large that scaled gradients are not finite, but the loss is."""

    name: str = "digits"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        inputs, targets = load("digits").batch(seed, step, micro_batch, size)
        return inputs * (1e36 if (step, micro_batch) == (1, 2) else 1), targets


@pytest.mark.parametrize("clip_norm", [None, 0.4])
def test_a_step_that_overflows_is_left_out_by_every_rank(clip_norm: float | None) -> None:
    """As torch.amp.GradScaler does in one process: nobody steps, Adam does not count it, the scale is halved."""
    training = Training(loss_scale="dynamic", scale_interval=3, clip_norm=clip_norm)
    plan = planned(TWO_WAYS)
    result = in_threads(plan, training, data=Bursting())
    expected = train_reference(resolve("mlp-tiny"), 4, SAMPLES, "momentum", STEPS, data=Bursting(), training=training)
    assert not math.isfinite(result.grad_norms[1])
    half = INITIAL_SCALE / 2
    assert result.loss_scales == expected.loss_scales == (INITIAL_SCALE, INITIAL_SCALE, half, half, half)
    assert result.losses == pytest.approx(expected.losses, rel=1e-5)
    assert result.state is not None
    for name, reference in expected.state.items():
        assert_same(name, result.state[name], reference)


# ---------------------------------------------------------------- steps that a plan lists early


def _early_step() -> Plan:
    """Two stages a device; the last one's STEP right behind its last backward, whose gradient is sent after it."""
    plan = planned(Case("interleaved", "mlp", 2, 4))
    last = len(plan.stages) - 1
    orders = []
    for order in plan.orders:
        listed = [op for op in order if op != Op(Kind.STEP, last)]
        if len(listed) < len(order):
            backward = max(k for k, op in enumerate(listed) if op.kind is Kind.B and op.stage == last)
            listed.insert(backward + 1, Op(Kind.STEP, last))
        orders.append(tuple(listed))
    early = replace(plan, orders=tuple(orders))
    return early.with_forecast(simulate(early).forecast())


def test_a_step_listed_before_other_backwards_is_deferred() -> None:
    """The plan is legal, its STEP is in the middle of the list, and clipping equals one process all the same."""
    plan = _early_step()
    assert check(plan) == []
    order = next(order for order in plan.orders if Op(Kind.STEP, 3) in order)
    assert any(op.kind is Kind.B for op in order[order.index(Op(Kind.STEP, 3)) :])
    assert_equals_reference(Case("interleaved", "mlp", 2, 4), in_threads(plan, CLIPPED), CLIPPED)


def test_without_deferral_ranks_would_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agreeing at the first STEP of the list: its rank has not sent the gradient that the other waits for."""

    def in_place(order: tuple[Op, ...], waits: Waits) -> DeferredList:
        first = next(k for k, op in enumerate(order) if op.kind is Kind.STEP)
        return DeferredList(order, waits, first, tuple(range(len(order))))

    monkeypatch.setattr(course, "deferred", in_place)
    monkeypatch.setattr(threaded, "Hub", partial(threads.Hub, timeout_s=2))
    with pytest.raises(ExecutionError, match="nothing arrived"):
        in_threads(_early_step(), Training(clip_norm=0.4), 1)


def test_deferral_keeps_what_ops_wait_for() -> None:
    """When an op starts, whatever had left the device by then in the plan's list has left; STEPs alone have moved."""
    plan = _early_step()
    for order, listed in zip(plan.orders, waits(plan), strict=True):
        late = deferred(order, listed)
        assert [op for op in order if op.kind is not Kind.STEP] == list(late.order[: late.late])
        assert {op.kind for op in late.order[late.late :]} == {Kind.STEP}
        for place in range(late.late):
            gone = _gone(order, listed, order.index(late.order[place]))
            assert _gone(late.order, late.waits, place) == gone


def _gone(order: tuple[Op, ...], listed: Waits, place: int) -> set[Op]:
    """What has been waited for when the op at this place starts."""
    return {order[s] for some in listed.left[: place + 1] for s in some}


# ---------------------------------------------------------------- schedules


def test_rates_are_a_function_of_the_step() -> None:
    """Warmup to the rate, then half of a cosine (arXiv:1608.03983, equation 5) or a line down to the floor."""
    cosine = Training(lr=1.0, schedule="cosine", warmup_steps=4, decay_steps=12, lr_floor=0.2)
    assert [cosine.rate(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [cosine.rate(step) for step in (4, 8, 12, 99)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    linear = replace(cosine, schedule="linear")
    assert [linear.rate(step) for step in (4, 6, 8, 12, 99)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])
    assert Training(lr=0.5, warmup_steps=1).rate(7) == 0.5


def test_a_resumed_run_goes_on_with_schedule_and_loss_scale(tmp_path: Path) -> None:
    """Two steps and three under another plan are five; the step that was left out stays uncounted."""
    training = Training(
        schedule="cosine", warmup_steps=2, decay_steps=STEPS, loss_scale="dynamic", scale_interval=3, clip_norm=0.4
    )
    first = in_threads(planned(TWO_WAYS), training, 2, data=Bursting(), checkpoint=tmp_path)
    other = planned(Case("1f1b", "mlp-tiny", 2, 4))
    rest = in_threads(other, training, 3, data=Bursting(), checkpoint=tmp_path, resume=True)
    expected = train_reference(resolve("mlp-tiny"), 4, SAMPLES, "momentum", STEPS, data=Bursting(), training=training)
    assert first.loss_scales + rest.loss_scales == expected.loss_scales
    assert first.losses + rest.losses == pytest.approx(expected.losses, rel=1e-5)
    assert rest.state is not None
    for name, reference in expected.state.items():
        assert_same(name, rest.state[name], reference)
    with pytest.raises(RunError, match="how long"):
        in_threads(other, replace(training, decay_steps=None), 1, checkpoint=tmp_path, resume=True)


# ---------------------------------------------------------------- evaluation


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [Case("chimera", "resnet-tiny", 2, 4), Case("zb-v", "gpt-tiny-dropout", 2, 4)], ids=["batchnorm", "dropout"]
)
def test_held_out_losses_equal_single_process_and_disturb_nothing(case: Case) -> None:
    """Running statistics are used and kept, dropout is off; training's losses are those without evaluation, bit by bit.

    Devices stay within the planned memory.
    """
    training = Training(evaluate_every=2, evaluate_steps=2)
    result = in_threads(planned(case), training)
    assert_equals_reference(case, result, training)
    assert list(result.evaluations) == [2, 4]
    assert result.losses == in_threads(planned(case)).losses
    assert all(share <= 1 for share in worst_excess(result).values())


def test_held_out_data_is_another_stream() -> None:
    """And the same at every evaluation."""
    training, held_out = (load("digits").batch(seed, 0, 0, 4)[0] for seed in (0, evaluation_seed(0)))
    assert not torch.equal(training, held_out)


SCHEDULES = ("gpipe", "1f1b", "interleaved", "chimera", "zb-v")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_forwards_alone_stay_legal_and_within_the_plans_memory(schedule: str) -> None:
    """Every forward and message of the plan, none in a circle, no device above its planned peak."""
    plan = planned(Case(schedule, "mlp-deep", 2, 8))
    forward, _ = forward_plan(plan)
    wanted = {op for order in plan.orders for op in order if op.kind in (Kind.F, Kind.SEND_F, Kind.RECV_F)}
    assert plan.forecast is not None
    for orders in (forward.orders, one_by_one(plan)):
        assert {op for order in orders for op in order} == wanted
        peaks = [m.peak_bytes for m in simulate_orders(forward, costs_of(forward), orders).device_memory]
        assert all(peak <= limit for peak, limit in zip(peaks, plan.forecast.peak_bytes, strict=True))


def test_micro_batches_go_one_by_one_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a forecast below anything that several in flight take, the same held-out losses."""
    plan = planned(V_SHAPED)
    assert plan.forecast is not None
    short = replace(plan.forecast, devices=tuple(replace(d, peak_bytes=1) for d in plan.forecast.devices))
    assert forward_plan(plan.with_forecast(short))[0].orders == one_by_one(plan)
    training = Training(evaluate_every=2)
    monkeypatch.setattr(evaluation, "forward_plan", lambda given: forward_plan(given.with_forecast(short)))
    result = in_threads(plan, training, 2)
    expected = truth(V_SHAPED.model, 4, V_SHAPED.optimizer, V_SHAPED.dtype, training)
    assert result.evaluations[2] == pytest.approx(expected.evaluations[2], abs=1e-5)
    assert all(a <= b for a, b in zip(result.peak_bytes, plan.forecast.peak_bytes, strict=True))


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "step"}, "unknown learning-rate schedule 'step'"),
        ({"clip_norm": 0.0}, "clip_norm must be finite and above 0, got 0.0"),
        ({"lr": 0.1, "lr_floor": 0.2}, "floor 0.2 is above the rate 0.1"),
        ({"warmup_steps": 5, "decay_steps": 5}, "ends at step 5, within 5 steps of warmup"),
        ({"loss_scale": "static"}, "loss_scale must be a number, got 'static'"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] must be at least 0 and below 1, got 1.0"),
        ({"evaluate_every": -1}, "evaluate_every must be a whole number of at least 0, got -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    """One line that names the option and its value."""
    with pytest.raises(RunError, match=message):
        Training(**options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_trains_in_mixed_precision_with_all_of_it(tmp_path: Path) -> None:
    """Profile in bf16, plan for it, train: clipped, scheduled, evaluated; within the planned memory."""
    model, plan = tmp_path / "model.json", tmp_path / "plan.json"
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('[[nodes]]\ndevices = 2\ndevice = "cpu"\n')

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    run("profile", "mlp-tiny", "--micro-batch-size", 2, "--precision", "bf16", "-o", model)
    options = ["--cluster", cluster, "--micro-batches", 4, "--precision", "mixed", "--optimizer", "momentum"]
    run("plan", model, *options, "--schedule", "chimera", "-o", plan)
    schedule = ["--lr", 0.02, "--lr-schedule", "cosine", "--warmup", 2, "--lr-floor", 0.001, "--weight-decay", 0.01]
    more = ["--clip-norm", 0.4, "--evaluate-every", 2, "--steps", STEPS, "--transport", "threads", "--json"]
    result = json.loads(run("execute", plan, *schedule, *more))
    training = replace(CLIPPED, evaluate_every=2)
    expected = train_reference(resolve("mlp-tiny"), 4, SAMPLES, "momentum", STEPS, precision="mixed", training=training)
    assert result["losses"] == pytest.approx(expected.losses, abs=1e-3)
    assert result["grad_norms"] == pytest.approx(expected.grad_norms, rel=0.02)
    assert [float(loss) for loss in result["evaluations"].values()] == pytest.approx(
        list(expected.evaluations.values()), abs=1e-3
    )
    assert list(result["evaluations"]) == ["2", "4"]
    assert all(a <= b for a, b in zip(result["peak_bytes"], result["forecast_peak_bytes"], strict=True))
