"""A last micro-batch of fewer samples: as in one process, whatever the plan does with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from async_plans import SCHEDULED, assert_as_emulated, assert_exact, unflushed
from click.testing import CliRunner
from routes import MIXED, NODES_OF_THEIR_OWN, ONE_STAGE_REPLICATED, made
from runs import (
    SAMPLES,
    STEPS,
    Case,
    assert_as_planned,
    assert_same,
    in_threads,
    planned,
    run_plans_together,
)
from torch import Tensor, nn

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.emulation import emulate
from contraflow.executor.oracle.reference import ReferenceRun, train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.state.mini_batch import MiniBatch, MiniBatches
from contraflow.models import LayeredModel, build_layer, load, resolve
from contraflow.models.protocol import LayerSpec
from contraflow.planner.plan import Kind, Plan
from contraflow.planner.plan_file import save_plan


def one_less(plan: Plan) -> Training:
    """One sample less than the micro-batches hold; the last has one of two."""
    return Training(mini_batch=SAMPLES * plan.problem.workload.micro_batches - 1)


def reference(
    plan: Plan, training: Training, dtype: torch.dtype = torch.float32, data: Ending | None = None
) -> ReferenceRun:
    workload = plan.problem.workload
    return train_reference(
        resolve(plan.problem.model.name), workload.micro_batches, SAMPLES, workload.optimizer, STEPS, dtype=dtype,
        data=data, precision=workload.precision, training=training,
    )  # fmt: skip


PLANS: dict[str, partial[Plan]] = {
    "one pipeline": partial(planned, Case("1f1b", "gpt-tiny", 2, 4)),
    "both ways, batch norm, recomputed, split": partial(
        planned, Case("chimera", "resnet-tiny", 2, 4, stash="recompute", halves=True)
    ),
    "through the host, split": partial(planned, Case("gpipe", "gpt-tiny", 2, 4, stash="offload", halves=True)),
    "shipped": partial(planned, Case("1f1b", "resnet-tiny", 2, 4, stash="ship")),
    "v-shaped, split": partial(planned, Case("zb-v", "mlp-deep", 2, 4)),
    "interleaved": partial(planned, Case("interleaved", "mlp", 2, 4)),
    "own nodes, through the host": partial(made, "mlp-deep", NODES_OF_THEIR_OWN, ["offload", "offload"]),
    "own nodes, recomputed": partial(made, "gpt-tiny", NODES_OF_THEIR_OWN, ["recompute", "keep"], halves=True),
    "two owners": partial(made, "mlp-deep", MIXED, ["keep", "keep"]),
    "unequal shares, batch norm": partial(made, "resnet-tiny", ONE_STAGE_REPLICATED, ["recompute", "keep"], 5),
}
LONGER: dict[str, partial[Plan]] = {
    "recurrent": partial(planned, Case("gems", "lstm-tiny", 2, 4)),
    "dropout": partial(planned, Case("zb-v", "gpt-tiny-dropout", 2, 4)),
    "two owners, tied": partial(made, "gpt-tiny-tied", MIXED, ["keep", "keep"]),
    "masked": partial(planned, Case("dualpipe", "bert-tiny", 2, 4)),
}


@pytest.mark.parametrize("name", [*PLANS, *(pytest.param(name, marks=pytest.mark.slow) for name in LONGER)])
def test_a_smaller_last_micro_batch_equals_single_process_within_the_planned_memory(name: str) -> None:
    """Its stashes, messages and statistics are of its own size, its loss and gradients count by samples."""
    plan = (PLANS | LONGER)[name]()
    training = one_less(plan)
    assert_as_planned(in_threads(plan, training), reference(plan, training))


@pytest.mark.slow
def test_processes_equal_single_process(tmp_path: Path) -> None:
    """The same on gloo processes, where a buffer of the wrong size is an error."""
    plans = [
        planned(Case("chimera", "resnet-tiny", 2, 4)),
        planned(Case("1f1b", "mlp-deep", 2, 4, stash="ship", halves=True)),
    ]
    training = one_less(plans[0])
    for plan, result in zip(plans, run_plans_together(plans, tmp_path, training=training), strict=True):
        assert_as_planned(result, reference(plan, training))


@pytest.mark.parametrize("engine", ["graph", "eager"])
def test_both_engines_check_their_programs_of_either_size(engine: str) -> None:
    """With batch norm, and the self-check on."""
    plan = planned(Case("1f1b", "resnet-tiny", 2, 4))
    training = one_less(plan)
    assert_as_planned(in_threads(plan, training, engine=engine, self_check=True), reference(plan, training))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_with_everything_at_the_end_of_a_step(dtype: torch.dtype) -> None:
    """Clipped, dynamically scaled; held-out micro-batches stay full."""
    plan = planned(Case("zb-v", "mlp-deep", 2, 4, "adam", precision="mixed"))
    training = replace(one_less(plan), clip_norm=0.4, loss_scale="dynamic", scale_interval=2, evaluate_every=2)
    assert_as_planned(in_threads(plan, training, dtype=dtype), reference(plan, training, dtype))


def test_what_moves_is_of_the_size_of_its_micro_batch() -> None:
    """Messages and copies of the last micro-batch are half as large as the others'."""
    plan = planned(Case("gpipe", "mlp", 2, 4, stash="offload"))
    devices = in_threads(plan, one_less(plan)).trace.devices
    moved = {(r.op.kind, r.op.stage, r.op.micro_batch): r.moved_bytes for device in devices for r in device.ops}
    kinds = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B, Kind.OFFLOAD, Kind.FETCH)
    full = {key: size for key, size in moved.items() if key[0] in kinds and key[2] == 0}
    assert {kind for kind, _, _ in full} == set(kinds)
    for (kind, stage, _), size in full.items():
        assert moved[kind, stage, 2] == size
        assert size <= 2 * moved[kind, stage, 3] <= size + 8  # a loss leaves a scalar, too


# ---------------------------------------------------------------- the reference


def test_one_process_trains_as_on_the_whole_mini_batch_at_once() -> None:
    """Seven samples as micro-batches of two, two, two and one are one batch of seven."""
    model, data = resolve("mlp-tiny"), load("digits")
    layers = nn.Sequential(*(build_layer(spec, 0, index) for index, spec in enumerate(model.layers)))
    drawn = [data.batch(0, 0, m, size) for m, size in enumerate((2, 2, 2, 1))]
    inputs, targets = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    loss = model.loss(layers(inputs), targets)
    loss.backward()
    torch.optim.SGD(layers.parameters(), lr=0.1).step()
    trained = train_reference(model, 4, 2, "sgd", 1, lr=0.1, training=Training(mini_batch=7))
    assert trained.losses == pytest.approx([loss.item()], abs=1e-6)
    for spec, layer in zip(model.layers, layers, strict=True):
        for name, parameter in layer.named_parameters():
            assert_same(name, trained.state[f"parameters/{spec.name}/{name}"], parameter.detach())


# ---------------------------------------------------------------- data that ends


@dataclass(frozen=True)
class Ending:
    """Digits in epochs of `epoch` samples: the last mini-batch of every epoch has what is left."""

    epoch: int
    name: str = "digits"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        return load("digits").batch(seed, step, micro_batch, size)

    def samples(self, step: int, most: int) -> int:
        steps = -(-self.epoch // most)
        return min(most, self.epoch - step % steps * most)


def test_an_epoch_ends_within_a_mini_batch(tmp_path: Path) -> None:
    """Every other step has a sample less; a run that resumes there goes on as if nothing had happened."""
    plan, other, data = planned(Case("chimera", "mlp-tiny", 2, 4)), planned(Case("1f1b", "mlp-tiny", 2, 4)), Ending(15)
    assert [data.samples(step, 8) for step in range(4)] == [8, 7, 8, 7]
    expected = reference(plan, Training(), data=data)
    assert_as_planned(in_threads(plan, Training(), data=data), expected)
    begun = execute(plan, 3, data=data, transport="threads", self_check=False, checkpoint=tmp_path)
    rest = execute(
        other, 2, data=data, transport="threads", self_check=False, checkpoint=tmp_path, resume=True, return_state=True
    )
    assert begun.losses + rest.losses == pytest.approx(expected.losses, abs=1e-5)
    assert rest.state is not None
    for name, tensor in expected.state.items():
        assert_same(name, rest.state[name], tensor)


def test_sizes_are_those_of_the_steps_that_run() -> None:
    """The full one first, also where no last micro-batch is full."""
    assert MiniBatches(4, 3, None, None).sizes(range(5)) == (3,)
    assert MiniBatches(4, 3, 10, None).sizes(range(5)) == (3, 1)
    assert MiniBatches(4, 3, None, Ending(34)).sizes(range(2)) == (3,)
    assert MiniBatches(4, 3, None, Ending(34)).sizes(range(2, 3)) == (3, 1)
    assert [MiniBatch(4, 3, 10).size(m) for m in range(4)] == [3, 3, 3, 1]
    assert [MiniBatch(4, 3, 12).weight(m) for m in range(4)] == [1, 1, 1, 1]


# ---------------------------------------------------------------- without a flush

ASYNCHRONOUS = [
    unflushed("spectrain", 4, 2, halves=True),
    unflushed("vertical", 4, 2, stash="offload"),
    unflushed("stash", 4, 2, stash="odd ship"),
    unflushed("pipeoptim", 2, 4, stash="recompute"),
    unflushed("2bw", 2, 2, "resnet-tiny"),
]


@pytest.mark.parametrize("case", ASYNCHRONOUS, ids=lambda case: "-".join(map(str, case)))
def test_the_last_micro_batch_of_every_update_may_be_smaller(case: Case) -> None:
    """Micro-batches of both sizes, of several updates, are under way at once; an evaluation between two runs."""
    assert_as_emulated(case, (6, 3), replace(SCHEDULED, mini_batch=SAMPLES * case.update - 1))


def test_single_updates_may_have_fewer_samples() -> None:
    """An epoch ends every other update, which has one micro-batch."""
    plan, data = planned(unflushed("pipeoptim", 4)), Ending(3)
    found = in_threads(plan, SCHEDULED, data=data)
    assert_exact(found, emulate(plan, (STEPS,), data=data, training=SCHEDULED))


def test_one_device_updates_as_one_process_steps() -> None:
    """So the emulation counts samples as the reference does."""
    plan, training = planned(unflushed("stash", 1, 2, "mlp-tiny")), replace(SCHEDULED, mini_batch=3)
    found = in_threads(plan, training)
    wanted = train_reference(resolve("mlp-tiny"), 2, SAMPLES, "momentum", STEPS, training=training)
    assert found.losses == pytest.approx(wanted.losses, abs=1e-6)


# ---------------------------------------------------------------- bad input


def test_mini_batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Both numbers are named; the command says so in one line."""
    plan = planned(Case("chimera", "mlp-tiny", 2, 4))
    with pytest.raises(RunError, match="a mini-batch of 9 samples is more than 4 micro-batches of 2 hold: 8"):
        in_threads(plan, Training(mini_batch=9))
    with pytest.raises(RunError, match=r"a mini-batch of 6 samples leaves the last of 4 .* of 2 empty: .* 7"):
        in_threads(plan, Training(mini_batch=6))
    with pytest.raises(RunError, match="step 1: a mini-batch of 2 samples leaves the last of 4"):
        in_threads(plan, Training(), data=Ending(10))
    with pytest.raises(RunError, match="mini_batch must be a whole number of at least 1, got 0"):
        Training(mini_batch=0)
    save_plan(plan, tmp_path / "plan.json")
    result = CliRunner().invoke(cli, ["execute", str(tmp_path / "plan.json"), "--mini-batch", "9"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "9 samples" in result.stderr


def test_a_layer_that_cannot_take_the_smaller_micro_batch_is_named() -> None:
    """Before training: batch norm without anything to take a mean of."""
    base = resolve("mlp-tiny")
    first, *others = base.layers

    def build() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(64, affine=False), first.build())

    model = LayeredModel(base.name, (LayerSpec(first.name, build), *others), base.loss, base.data)
    plan = planned(Case("chimera", "mlp-tiny", 2, 4))
    with pytest.raises(RunError, match=r"layer 'layer0' .*\(1, 64\).*more than 1 value"):
        execute(plan, 1, model=model, transport="threads", training=Training(mini_batch=7))
