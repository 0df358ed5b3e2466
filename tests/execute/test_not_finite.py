"""NaN and infinity stop a run where they arise, or leave a step out; data that is not what was asked for is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from async_plans import unflushed
from instances import named
from runs import SAMPLES, STEPS, Case, assert_same, in_threads, planned, same_tensors, sized, steps_saved
from torch import Tensor, nn

from contraflow.executor.basics.checkpointing import Checkpointing
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.state.batches import DataError, inputs_and_targets, targets_alone
from contraflow.models import load, resolve
from contraflow.models.protocol import LayeredModel, LayerSpec

PLAN = Case("1f1b", "mlp-tiny", 2, 4)
TWO_WAYS = Case("chimera", "mlp-tiny", 2, 4)
AT = (1, 2)
"""Step and micro-batch in which something happens."""


class Odd:
    """The digits, but for what is done to one micro-batch."""

    name = "odd"

    def __init__(self, change: Callable[[Tensor, Tensor], Any], at: tuple[int, int] = AT, base: str = "digits") -> None:
        self._change, self._at, self._base = change, at, load(base)

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self._base.batch(seed, step, micro_batch, size)
        found: tuple[Tensor, Tensor] = (inputs, targets)
        return self._change(inputs, targets) if (step, micro_batch) == self._at else found


def nan(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing that can be learned from."""
    return inputs * math.nan, targets


# ---------------------------------------------------------------- stop


@pytest.mark.parametrize("case", [PLAN, TWO_WAYS, Case("zb-h1", "mlp-tiny", 2, 4)], ids=lambda case: case.schedule)
def test_a_loss_that_is_nan_ends_the_run_where_it_arises(case: Case, tmp_path: Path) -> None:
    """Stage, micro-batch and step are named; checkpoints of steps before stay, and there is none after it."""
    with pytest.raises(ExecutionError, match=r"stage 1, op 1F2, micro-batch 2, step 2: NotFinite: the loss is nan"):
        in_threads(case, steps=4, checkpoint=Checkpointing(str(tmp_path), every=1), data=Odd(nan, (2, 2)))
    assert steps_saved(tmp_path) in ([1], [1, 2])


def test_so_does_an_asynchronous_one() -> None:
    """Its update is named."""
    plan = planned(unflushed("stash", 2, 2))
    with pytest.raises(ExecutionError, match=r"op 1F3, micro-batch 3, update 1: NotFinite: the loss is nan"):
        execute(plan, 4, transport="threads", self_check=False, data=Odd(nan, (1, 1)))


@torch.library.custom_op("contraflow_tests::burst", mutates_args=())
def burst(x: Tensor) -> Tensor:
    """The identity; of a gradient that is large, infinity."""
    return x.clone()


burst.register_fake(torch.empty_like)
burst.register_autograd(lambda _, gradient: torch.where(gradient.abs().max() > 1e3, gradient * math.inf, gradient))


class Bursting(nn.Module):
    """A linear layer whose gradient bursts at its input, or behind it."""

    def __init__(self, wide: int, out: int, inside: bool) -> None:
        super().__init__()
        self.linear, self._inside = nn.Linear(wide, out), inside

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = burst(self.linear(x)) if self._inside else self.linear(burst(x))
        return found


def heavy(output: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is as large as the targets say."""
    return (output.mean(1) * targets.to(output.dtype)).mean()


def loud(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A large target."""
    return inputs, targets * 0 + 10**9


@pytest.mark.parametrize(("bursting", "where"), [(0, "stage 0, op 0B2"), (1, "stage 1, op 1B2")])
def test_a_gradient_that_is_infinite_is_named_too(bursting: int, where: str) -> None:
    """With the stage and the micro-batch whose backward made it, of the first stage as well."""

    layers = (
        LayerSpec("first", lambda: Bursting(64, 8, True) if bursting == 0 else nn.Linear(64, 8)),
        LayerSpec("second", lambda: Bursting(8, 10, False) if bursting == 1 else nn.Linear(8, 10)),
    )
    model = LayeredModel("bursting", layers, heavy, "digits")
    plan = named("1f1b", 2, 4, model=sized(model))
    with pytest.raises(ExecutionError, match=rf"{where}, micro-batch 2, step 1: NotFinite: its gradient is not finite"):
        execute(plan, 3, model, transport="threads", self_check=False, data=Odd(loud))


# ---------------------------------------------------------------- skip


@pytest.mark.parametrize(
    ("case", "training"),
    [
        (PLAN, Training(on_nan="skip")),
        (TWO_WAYS._replace(optimizer="adam"), Training(on_nan="skip", clip_norm=0.4, lr=0.01)),
        (Case("chimera", "resnet-tiny", 2, 4), Training(on_nan="skip")),
        (PLAN, Training(on_nan="skip", loss_scale="dynamic")),
    ],
    ids=["one-way", "replicas-adam-clipped", "batchnorm", "dynamic-scale"],
)
def test_a_step_that_is_left_out_leaves_no_trace(case: Case, training: Training) -> None:
    """As in one process: not in parameters, optimizer or running statistics, on any rank; it is counted."""
    data = Odd(nan, base="digits-images" if case.model == "resnet-tiny" else "digits")
    result = in_threads(case, data=data, training=training)
    expected = train_reference(
        resolve(case.model), 4, SAMPLES, case.optimizer, STEPS, data=data, training=training, dtype=case.dtype
    )
    assert result.left_out == (1,)
    assert math.isnan(result.losses[1])
    assert [loss for k, loss in enumerate(result.losses) if k != 1] == pytest.approx(
        [loss for k, loss in enumerate(expected.losses) if k != 1], rel=1e-5
    )
    assert result.state is not None
    for name, reference in expected.state.items():
        assert_same(name, result.state[name], reference)


def test_a_resumed_run_counts_the_steps_left_out(tmp_path: Path) -> None:
    """Adam's bias correction goes on from the steps that were taken."""
    case, training = PLAN._replace(optimizer="adam"), Training(on_nan="skip", lr=0.01)
    options: dict[str, Any] = {"training": training, "data": Odd(nan), "dtype": case.dtype}
    whole = in_threads(case, steps=4, **options)
    in_threads(case, steps=2, checkpoint=Checkpointing(str(tmp_path)), **options)
    rest = in_threads(case, steps=2, checkpoint=Checkpointing(str(tmp_path), resume=True), **options)
    assert rest.losses == whole.losses[2:]
    assert same_tensors(rest, whole)


def test_an_asynchronous_plan_leaves_nothing_out() -> None:
    """All ranks would have to wait for one another."""
    with pytest.raises(RunError, match="leaving steps out would drain the pipeline"):
        execute(planned(unflushed("stash", 2)), 2, transport="threads", training=Training(on_nan="skip"))


# ---------------------------------------------------------------- data


def ended(inputs: Tensor, targets: Tensor) -> Any:
    """No more."""
    raise StopIteration


DATA: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "fewer": (lambda x, y: (x[:1], y[:1]), "gives 1 samples where 2 were asked for"),
    "more": (lambda x, y: (torch.cat([x, x]), torch.cat([y, y])), "gives 4 samples where 2 were asked for"),
    "shape": (lambda x, y: (x[:, :60], y), r"gives inputs of \(2, 60\) where those before were \(2, 64\)"),
    "targets": (lambda x, y: (x, y[:1]), r"gives targets of \(1,\) where those before were \(2,\)"),
    "type": (lambda x, y: (x, y.int()), "gives targets of torch.int32 where those before were torch.int64"),
    "none": (lambda x, y: None, "gives a NoneType, not inputs and targets"),
    "ends": (ended, r"it has ended \(StopIteration\)"),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_that_is_not_what_was_asked_for_ends_the_run(kind: str) -> None:
    """With one line that names the data set, step and micro-batch, and both numbers."""
    change, line = DATA[kind]
    with pytest.raises(ExecutionError, match=f"data set 'odd', step 1, micro-batch 2: {line}") as caught:
        execute(planned(PLAN), 3, transport="threads", self_check=False, data=Odd(change))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_what_has_no_memory_of_its_own_to_pass_is_refused(layout: torch.layout) -> None:
    change = Odd(lambda x, y: (x.to_sparse(layout=layout), y))
    with pytest.raises(DataError, match=f"micro-batch 2: gives a tensor of layout {str(layout)[6:]}; only dense ones"):
        inputs_and_targets(change, 0, 1, 2, 2)


@pytest.mark.parametrize("kind", ["none", "fewer", "more", "ends"])
def test_whoever_asks_for_targets_alone_is_told_the_same(kind: str) -> None:
    """The last stage may be the first to ask."""
    change, line = DATA[kind]
    with pytest.raises(DataError, match=f"data set 'odd', step 1, micro-batch 2: {line}"):
        targets_alone(Odd(change), 0, 1, 2, 2)


@pytest.mark.parametrize("kind", DATA)
def test_or_is_bad_input_where_it_is_so_from_the_start(kind: str) -> None:
    """Unless there is nothing to compare it with yet."""
    change, line = DATA[kind]
    if kind in ("shape", "targets", "type"):
        return
    with pytest.raises(RunError, match=f"data set 'odd', step 0, micro-batch 0: {line}"):
        execute(planned(PLAN), 3, transport="threads", self_check=False, data=Odd(change, (0, 0)))
