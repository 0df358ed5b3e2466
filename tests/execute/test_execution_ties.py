"""Training with tied parameters equals single-process training in which they are one tensor, whatever the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from instances import named
from runs import (
    SAMPLES,
    STEPS,
    Case,
    assert_as_planned,
    assert_equals_reference,
    assert_same,
    measured,
    planned,
    run_together,
    sized,
    truth,
    worst_excess,
)
from torch import Tensor, nn

from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute, prepare
from contraflow.executor.state.replica import Blueprint
from contraflow.executor.state.validate import find_data, match_model
from contraflow.executor.wires.groups import reduce_groups
from contraflow.executor.wires.threads import ThreadTransport
from contraflow.models import LayeredModel, LayerSpec, Tie, resolve
from contraflow.models.loss import cross_entropy
from contraflow.planner.plan import Kind
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import SCHEDULES

MODEL = "gpt-tiny-tied"
KEY = "parameters/embedding/token.weight"

OTHERWISE = {
    "interleaved": ("adam", "keep", False),
    "gems": ("adamw", "recompute", False),
    "chimera-doubling": ("sgd", "recompute", True),
    "looped-bfs": ("adam", "odd offload", False),
}
"""Optimizer, stash policy and split backwards of some schedules; the others: momentum, keep, as they are."""

IN_THREADS = [
    *(Case(schedule, MODEL, 2, 4, *OTHERWISE.get(schedule, ())) for schedule in (*SCHEDULES, "search")),
    Case("1f1b", MODEL, 4, 4),
    Case("chimera", MODEL, 4, 4, "adam"),
]


@pytest.mark.parametrize("case", IN_THREADS, ids=str)
def test_threads_equal_single_process(case: Case) -> None:
    """Losses and parameters after five steps; no device needs more memory than planned, and nearly as much."""
    check = case.schedule == "interleaved"
    result = execute(planned(case), STEPS, dtype=case.dtype, transport="threads", self_check=check, return_state=True)
    assert_equals_reference(case, result)
    if case.stash == "keep":
        assert all(0.9 <= share <= 1 for share in worst_excess(result).values()), worst_excess(result)
    assert all(share <= 1 for share in worst_excess(result).values()), worst_excess(result)


@pytest.mark.slow
def test_processes_equal_single_process(tmp_path: Path) -> None:
    """The same on gloo: one direction, two, and both ends on one device."""
    cases = [Case("1f1b", MODEL, 2, 4), Case("chimera", MODEL, 2, 4), Case("zb-v", MODEL, 2, 4)]
    for case, result in zip(cases, run_together(cases, tmp_path), strict=True):
        assert_equals_reference(case, result)


# ---------------------------------------------------------------- the comparison has teeth


def test_without_the_sum_the_copies_come_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding and head, each updated from its own gradient: found after the first step."""
    original = ThreadTransport.all_reduce

    def none(self: ThreadTransport, tensor: Tensor, group: str) -> object:
        return original(self, tensor.clone() if group.startswith("tie") else tensor, group)

    monkeypatch.setattr(ThreadTransport, "all_reduce", none)
    with pytest.raises(ExecutionError, match=r"ranks 0 and 1 have different .*embedding/token\.weight after step 1"):
        execute(planned(Case("1f1b", MODEL, 2, 4)), STEPS, transport="threads", self_check=False)


def test_without_the_tie_training_differs() -> None:
    """The reference itself: an untied head is another model."""
    tied = resolve(MODEL)
    free = LayeredModel("free", tied.layers, tied.loss, tied.data)
    expected, other = (train_reference(m, 1, SAMPLES, "sgd", 1) for m in (tied, free))
    assert "parameters/head/out.weight" not in expected.state
    assert not torch.equal(expected.state[KEY], other.state[KEY])


@pytest.mark.parametrize("schedule", ["1f1b", "chimera", "v-half"])
def test_the_summed_gradient(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After TIE every device has the gradient that plain autograd gives one tensor used in both places."""
    from contraflow.executor.state.weights import StageWeights

    seen: list[Tensor] = []
    step = StageWeights.step

    def watched(self: StageWeights, rate: float, settings: Mapping[str, Any]) -> None:
        seen.extend(flat.clone() for flat in self.tied_gradients.values())
        step(self, rate, settings)

    monkeypatch.setattr(StageWeights, "step", watched)
    found = planned(Case(schedule, MODEL, 2, 4))
    execute(found, 1, transport="threads", self_check=False)
    holders = 1 if schedule == "v-half" else 2
    expected = _gradient(resolve(MODEL), 4)
    assert len(seen) == holders
    for flat in seen:
        assert_same("gradient", flat.view_as(expected), expected)
    assert_same("copies", seen[0], seen[-1])
    assert len(reduce_groups(found)) == {"1f1b": 1, "chimera": 3, "v-half": 0}[schedule]


def _gradient(model: LayeredModel, micro_batches: int) -> Tensor:
    """Of the first member's parameter in the first step, by functional calls of plain modules."""
    from contraflow.models import build_layer

    data = find_data(model, None)
    layers = [build_layer(spec, 0, index) for index, spec in enumerate(model.layers)]
    weight = layers[0].get_parameter("token.weight")
    for m in range(micro_batches):
        x, target = data.batch(0, 0, m, SAMPLES)
        for layer in layers[:-1]:
            x = layer(x)
        output = nn.functional.linear(layers[-1].get_submodule("ln")(x), weight)
        (model.loss(output, target) / micro_batches).backward()
    assert weight.grad is not None
    return weight.grad


# ---------------------------------------------------------------- what a rank holds


@pytest.mark.parametrize("schedule", ["chimera", "zb-v"])
def test_a_rank_keeps_one_tensor(schedule: str) -> None:
    """Value, gradient and state once for a device that runs both ends; the second stage uses the first one's."""
    found = planned(Case(schedule, MODEL, 2, 4, "adam"))
    dtype = torch.float64
    model = resolve(MODEL)
    data = find_data(model, None)
    training = Training().of_run("adam", 1)
    blueprint = Blueprint(found, model, data, match_model(found, model, data, dtype), 0, training, dtype)
    last = len(found.stages) - 1
    first = blueprint.build(0, 0, False)
    head = blueprint.build(0, last, False, [first])
    token, out = "0.token.weight", f"{len(model.layers) - 1}.out.weight"
    assert head.weights.parameters[out] is first.weights.parameters[token]
    assert head.weights.accumulators[out] is first.weights.accumulators[token]
    state = [name for r in (first, head) for name in r.weights.named_state(blueprint.layer_names)]
    assert len(state) == len(set(state))
    assert sum("head/out.weight" in name for name in state) == 0
    assert sum("embedding/token.weight" in name for name in state) == 3  # the parameter and Adam's two moments
    lone = blueprint.build(1, last, False)
    assert torch.equal(lone.weights.parameters[out], first.weights.parameters[token])
    assert KEY in lone.weights.named_state(blueprint.layer_names)


# ---------------------------------------------------------------- other partitions, other ties


def test_a_checkpoint_goes_on_under_another_partition(tmp_path: Path) -> None:
    """From two copies to one and to four devices."""
    chain = [Case("1f1b", MODEL, 2, 4, "adam"), Case("zb-v", MODEL, 2, 4, "adam"), Case("chimera", MODEL, 4, 4, "adam")]
    losses: tuple[float, ...] = ()
    for k, (case, steps) in enumerate(zip(chain, (2, 1, 2), strict=True)):
        run = execute(
            planned(case), steps, dtype=case.dtype, transport="threads", self_check=False,
            checkpoint=tmp_path, resume=k > 0, return_state=True,
        )  # fmt: skip
        losses += run.losses
    expected = truth(MODEL, 4, "adam", torch.float64)
    assert losses == pytest.approx(expected.losses, abs=1e-5)
    assert run.state is not None
    assert_same(KEY, run.state[KEY], expected.state[KEY])


class Square(nn.Module):
    """(batch, 64) -> the same, through a weight and a scale that others may share."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.T if self.transposed else self.weight
        return torch.tanh(x @ weight) * self.scale


def squares(members: tuple[int, ...], scales: tuple[int, ...] = ()) -> LayeredModel:
    """Six layers, then ten logits; these share their weights, and these their scales."""
    layers = (
        *(LayerSpec(f"layer{k}", partial(Square, k % 2 == 1)) for k in range(6)),
        LayerSpec("head", partial(nn.Linear, 64, 10)),
    )
    groups = ((members, "weight"), (scales, "scale"))
    ties = tuple(Tie(tuple((f"layer{k}", name) for k in ks)) for ks, name in groups if ks)
    return LayeredModel(f"squares{members}{scales}", layers, cross_entropy, "digits", ties)


@cache
def squares_graph(members: tuple[int, ...], scales: tuple[int, ...]) -> ModelGraph:
    return sized(squares(members, scales))


@pytest.mark.parametrize(
    ("schedule", "members", "scales"),
    [
        ("chimera", (0, 1), ()),
        ("1f1b", (0, 2, 5), ()),
        ("interleaved", (4, 0, 1, 2, 3, 5), ()),
        ("chimera", (5, 0), (1, 2, 3)),
        ("interleaved", (1, 2), (0, 5)),
    ],
)
def test_any_members(schedule: str, members: tuple[int, ...], scales: tuple[int, ...]) -> None:
    """Inside a stage, across stages, three and six members, the first member not the first layer, two groups."""
    model, graph = squares(members, scales), squares_graph(members, scales)
    found = named(schedule, 2, 4, model=graph, workload=Workload(4, "momentum"))
    result = execute(found, 3, model=model, transport="threads", self_check=False, return_state=True)
    assert_as_planned(result, train_reference(model, 4, SAMPLES, "momentum", 3))


# ---------------------------------------------------------------- models, profiles, errors


def test_gpt2_is_tied_as_published() -> None:
    """124,439,808 parameters, the token embedding's counted once; nothing is allocated."""
    model = resolve("gpt2-tied")
    with torch.device("meta"):
        modules = [spec.build() for spec in model.layers]
    total = sum(p.numel() for module in modules for p in module.parameters())
    (tie,) = model.ties
    shared = modules[-1].get_parameter(tie.members[1][1]).numel()
    assert total - shared == 124_439_808


def test_a_profile_says_what_is_shared() -> None:
    """64 values of 4 bytes for each of 256 tokens; the layers' own bytes include them."""
    assert measured(MODEL)["shared"] == [{"layers": ["embedding", "head"], "bytes": 4 * 64 * 256}]
    assert "shared" not in measured("mlp-tiny")


def test_another_models_ties_are_refused() -> None:
    """A plan for an untied model does not run a tied one, nor the other way round."""
    tied = resolve(MODEL)
    free = LayeredModel(MODEL, tied.layers, tied.loss, tied.data)
    with pytest.raises(RunError, match=r"ties nothing, the plan embedding, head \(65536 bytes\)"):
        prepare(planned(Case("1f1b", MODEL, 2, 4)), model=free)
    with pytest.raises(RunError, match=r"ties embedding, head \(65536 bytes\), the plan nothing"):
        prepare(planned(Case("1f1b", "gpt-tiny", 2, 4)), model=tied)


def linears(*widths: tuple[int, int]) -> LayeredModel:
    layers = tuple(LayerSpec(f"l{k}", partial(nn.Linear, *shape)) for k, shape in enumerate(widths))
    ties = (Tie(tuple((layer.name, "weight") for layer in layers)),)
    return LayeredModel("linears", layers, cross_entropy, "digits", ties)


def test_members_must_be_alike() -> None:
    """Other shapes and missing parameters are named; so are layers that do not exist or are named twice."""
    with pytest.raises(ValueError, match=r"layer 'l1': weight is \(10, 64\).*l0.weight, which is \(64, 64\)"):
        profile_model(linears((64, 64), (64, 10)), SAMPLES, rounds=1)
    base = linears((64, 64), (64, 64))
    absent = LayeredModel("m", base.layers, base.loss, "digits", (Tie((("l0", "weight"), ("l1", "w"))),))
    with pytest.raises(ValueError, match="layer 'l1' has no parameter 'w'"):
        profile_model(absent, SAMPLES, rounds=1)
    for members, fault in (
        ((("l0", "weight"),), "two or more"),
        ((("l0", "weight"), ("l0", "bias")), "two or more"),
        ((("l0", "weight"), ("l9", "weight")), "'l9', which does not exist"),
    ):
        with pytest.raises(ValueError, match=fault):
            LayeredModel("m", base.layers, base.loss, "digits", (Tie(members),))
    twice = Tie((("l0", "weight"), ("l1", "weight")))
    with pytest.raises(ValueError, match="tied twice"):
        LayeredModel("m", base.layers, base.loss, "digits", (twice, twice))


def shared_object() -> list[nn.Module]:
    """Two linears with one weight, as plain torch code ties them."""
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return [first, second, nn.Linear(64, 10)]


def test_a_parameter_that_is_one_object_in_two_layers_is_tied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that returns modules needs to say nothing."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    function: Callable[[], list[nn.Module]] = shared_object
    model = resolve(f"{Path(__file__).stem}:{function.__name__}")
    assert model.ties == (Tie((("layer0", "weight"), ("layer1", "weight"))),)


def test_a_sum_is_posted_once_a_step() -> None:
    """In the trace of 1F1B each of the two ends has one TIE, before its STEP."""
    found = planned(Case("1f1b", MODEL, 2, 4))
    result = execute(found, 1, transport="threads", self_check=False)
    for device in result.trace.devices:
        kinds = [record.op.kind for record in device.ops]
        assert kinds.count(Kind.TIE) == 1
        assert kinds.index(Kind.TIE) < kinds.index(Kind.STEP)
