"""No device is above the peak that was planned: what the forecast might have left out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from async_plans import SCHEDULED, two_devices
from async_plans import run as run_threads
from click.testing import CliRunner
from own_models import assert_as_plain_torch, chain, ops, plan_of, two_stages, with_layers, without_stashes
from runs import Case, planned, sized, worst_excess
from torch import nn

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.options import Engine
from contraflow.executor.basics.training import Training
from contraflow.executor.measure.between import Between
from contraflow.executor.measure.layer_run import Example, LayerRun, trace_layer
from contraflow.executor.place.memory import StorageTracker
from contraflow.executor.run.launch import execute
from contraflow.executor.stage.eager import EagerProgram
from contraflow.executor.stage.statistics import StatisticsQueue
from contraflow.executor.stage.tracing import StageLayers
from contraflow.executor.state.batches import inputs_and_targets
from contraflow.executor.state.weights import StageWeights
from contraflow.executor.step.finite import Guard
from contraflow.executor.step.update import Update
from contraflow.executor.wires import Seat
from contraflow.models import Piece
from contraflow.models.attention import Attention
from contraflow.models.protocol import LayeredModel
from contraflow.planner.basics.errors import ModelError, PlanError
from contraflow.planner.graph import Candidate, StageCosts, costs_of, static_bytes
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan
from contraflow.planner.plan_file import load_plan, save_plan
from contraflow.planner.problem.cluster import Link
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.schedules import build
from contraflow.planner.simulate import simulate


def linked(plan: Plan, link: Link) -> Plan:
    """The same compute in the same order on other links."""
    (group,) = plan.problem.cluster.nodes
    cluster = replace(plan.problem.cluster, nodes=(replace(group, link=link),))
    candidate = Candidate(replace(plan.problem, cluster=cluster), plan.stages, plan.pipelines, plan.stash, plan.weights)
    line = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
    return assemble(candidate, [[op for op in order if op.kind in line] for order in plan.orders])


@pytest.mark.parametrize("link", [Link(), Link(latency_s=20e-6), Link(1e9)], ids=["free", "late", "slow"])
def test_parameters_sent_at_once_are_a_copy_all_the_same(link: Link) -> None:
    """While new parameters leave, the owner holds them twice, even if it takes no time."""
    plan = linked(two_devices("naive", 2, 1), link)
    costs = costs_of(plan)
    for device, memory in enumerate(simulate(plan).device_memory):
        assert dict(memory.peak_parts)["weight versions"] >= costs.parameter_bytes[1 - device]
    found = run_threads(plan, (10,), SCHEDULED, torch.float32)
    assert max(worst_excess(found).values()) <= 1, worst_excess(found)


# ---------------------------------------------------------------- running statistics of forwards out of order


def normalised(width: int) -> nn.Module:
    """Its statistics are what it is about."""
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())


@cache
def statistics_heavy() -> tuple[LayeredModel, ModelGraph]:
    """Where a row of statistics is no smaller than a micro-batch's stash."""
    model = chain([partial(normalised, 32)] * 3, 32)
    return model, sized(model, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("pipelines", "orders"),
    [
        (  # out of order on both devices, and in another order on each
            (Pipeline((0, 1), (0, 1), (0, 1, 2, 3)),),
            (
                "0F3 0F1 0F2 0F0 0B3 0B1 0B2 0B0",
                "1F1 1B1 1F2 1B2 1F0 1B0 1F3 1B3",
            ),
        ),
        (  # one device runs the forwards of stage 1, two its backwards
            (Pipeline((0, 1), (0, 1), (0, 3)), Pipeline((0, 1), (0, 0), (1, 2))),
            (
                "0F1 0F3 1B1 0B1 0B3 0F0 0F2 0B0 1B2 0B2",
                "1F1 1F3 1B3 1F0 1B0 1F2",
            ),
        ),
    ],
    ids=["one order each", "two owners"],
)
def test_statistics_wait_for_their_turn(pipelines: tuple[Pipeline, ...], orders: tuple[str, ...]) -> None:
    """They are those of plain torch, and what waits is in the forecast."""
    model, graph = statistics_heavy()
    plan = plan_of(graph, pipelines, [ops(order) for order in orders])
    parts = dict(simulate(plan).device_memory[0].peak_parts)
    assert parts["buffers"] >= sum(graph.layers[k].buffer_bytes for k in (0, 1))
    assert_as_plain_torch(plan, model, dtype=torch.float64)


def test_an_eager_stash_keeps_no_statistics_that_wait_for_their_turn() -> None:
    """BatchNorm saves its running statistics for the backward; of an early forward those are the live buffers."""
    module, x = normalised(4), torch.randn(2, 4)
    layers = StageLayers((module,), (0,), None, True, "layer", None)
    buffers = {f"0.{name}": buffer for name, buffer in module.named_buffers()}
    parameters = {f"0.{name}": parameter.detach() for name, parameter in module.named_parameters()}
    early = StatisticsQueue({0: module}, buffers, ("layer",)).for_forward(1)
    stash = EagerProgram(layers, x, None).forward(parameters, early, x)[1]
    kept = {tensor.untyped_storage()._cdata for tensor in stash.tensors}
    assert not kept & {early[name].untyped_storage()._cdata for name in buffers}
    assert kept & {buffer.untyped_storage()._cdata for buffer in buffers.values()}


def test_statistics_in_order_need_no_room() -> None:
    """Then there is nothing beside the buffers."""
    _, graph = statistics_heavy()
    plan = plan_of(graph, (Pipeline((0, 0), (0, 0), (0, 1)),), [ops("0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1")])
    parts = dict(simulate(plan).device_memory[0].peak_parts)
    assert parts["buffers"] == sum(layer.buffer_bytes for layer in graph.layers)


# ---------------------------------------------------------------- looking at gradients


def test_what_is_asked_of_gradients_is_no_memory_of_the_step() -> None:
    """Whether they are finite, on a device that queues, and the norm that all ranks agree on."""
    weights, queued = StageWeights({0: nn.Linear(4, 4)}, "sgd", Training(lr=0.1)), SimpleNamespace(wait=lambda: None)
    wires = SimpleNamespace(all_reduce=lambda tensor, group: queued)
    transport: Any = SimpleNamespace(rank=0, seat=Seat(0), host=wires)  # no group of all ranks between devices
    update = Update(two_stages()[1], Training(clip_norm=1.0), transport, {})
    with StorageTracker() as tracker:
        Guard(Training(), {0: weights}, ("layer",), queues=True).stepping(0)
        update.agree()
    assert update.grad_norm == 0.0
    assert tracker.peak_bytes == 0


# ---------------------------------------------------------------- the user's data


@dataclass(frozen=True)
class Resident:
    """Samples that are in memory all the time: a batch is a view of them, a copy, or numpy's."""

    kind: str
    inputs: torch.Tensor
    targets: torch.Tensor

    @property
    def name(self) -> str:
        """Of no other data set."""
        return "resident"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Dataset`."""
        place = slice(micro_batch * size, (micro_batch + 1) * size)
        if self.kind == "shuffled":  # which takes as much again for a while
            chosen = torch.randperm(len(self.inputs), generator=torch.Generator().manual_seed(step))
            return self.inputs[chosen][place].clone(), self.targets[chosen][place].clone()
        if self.kind == "numpy":
            return torch.from_numpy(self.inputs[place].numpy().copy()), self.targets[place]
        view = self.inputs[place], self.targets[place]
        return view if self.kind == "view" else (view[0].clone(), view[1].clone())


def test_a_data_set_in_memory_is_not_what_the_run_holds() -> None:
    """Whatever the data set gives, and whatever it needs to make it, the run holds its own batches at the most."""
    model = chain([partial(nn.Linear, 64, 64)] * 3, 64)
    plan = plan_of(
        sized(model, 16), (Pipeline((0, 1), (0, 1), (0, 1)),), [ops("0F0 0F1 0B0 0B1"), ops("1F0 1F1 1B0 1B1")]
    )
    inputs, targets = torch.randn(3200, 64), torch.randint(0, 4, (3200,))
    peaks = {}
    for kind in ("view", "copy", "numpy", "shuffled"):
        data = Resident(kind, inputs, targets)
        found = execute(plan, 2, model, data, transport="threads", self_check=False)
        assert max(worst_excess(found).values()) <= 1, (kind, worst_excess(found))
        peaks[kind] = found.peak_bytes
    assert peaks["copy"] == peaks["shuffled"]
    assert peaks["numpy"][0] == peaks["copy"][0]
    assert peaks["view"] == peaks["copy"]


@dataclass(frozen=True)
class Windows:
    """Inputs and targets are parts of one tensor, as those of a text are."""

    length: int

    @property
    def name(self) -> str:
        """Of no other data set."""
        return "windows"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Dataset`."""
        tokens = torch.randint(0, 4, (size, self.length + 1))
        return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("policy", ["keep", "offload", "ship>1"])
def test_parts_of_a_larger_tensor_take_what_is_planned_and_leave_their_device(policy: str) -> None:
    model = replace(chain([partial(nn.Embedding, 4, 64), *[partial(nn.Linear, 64, 64)] * 2], 64), data=Windows(8))
    lists = [ops("0F0 0F1 0B0 0B1"), ops("1F0 1F1 1B0 1B1")]
    plan = plan_of(sized(model, 2), (Pipeline((0, 1), (0, 1), (0, 1)),), lists, stash=((policy, "keep"),))
    found = execute(plan, 2, model, transport="threads", self_check=False)
    assert max(worst_excess(found).values()) <= 1
    inputs, targets = inputs_and_targets(Windows(8), 0, 0, 0, 2)
    assert isinstance(inputs, torch.Tensor)
    assert all(tensor.untyped_storage().nbytes() == 2 * 8 * 8 for tensor in (inputs, targets))


# ---------------------------------------------------------------- promises that are not kept


def test_another_micro_batch_is_refused(tmp_path: Path) -> None:
    """Another size in the file is not what the costs are of; another shape of the data is not either."""
    model, plan = two_stages()
    save_plan(plan, tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    content["problem"]["model"]["micro_batch_size"] = 2000
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanError, match=r"fingerprint .* micro-batches of 2000"):
        load_plan(tmp_path / "plan.json")
    graph = replace(plan.problem.model, micro_batch_size=6)
    with pytest.raises(RunError, match=r"input of layer 'layer0' takes 384 bytes for 6 samples .* plan has 256"):
        execute(replace(plan, problem=replace(plan.problem, model=graph)), 1, model, transport="threads")


def test_a_device_above_its_peak_is_told(tmp_path: Path) -> None:
    """Which device, in which op, both numbers, and exit code 1."""
    plan = planned(Case("1f1b", "mlp-tiny", 2, 4))
    lean = with_layers(plan, without_stashes)
    save_plan(lean, tmp_path / "lean.json")
    result = CliRunner().invoke(cli, ["execute", str(tmp_path / "lean.json"), "--steps", "2", "--transport", "threads"])
    assert result.exit_code == 1
    line = result.stderr.strip().splitlines()[-1]
    pattern = r"above the planned peak: device 0 held (\d+) bytes in 0[FB]\d, (\d+) were planned"
    (measured, most) = re.search(pattern, line).groups()  # type: ignore[union-attr]
    assert int(measured) > int(most) == lean.forecast.peak_bytes[0]  # type: ignore[union-attr]


# ---------------------------------------------------------------- frozen parameters


class Adapted(nn.Module):
    """LoRA (Hu et al. 2021, arXiv:2106.09685): a frozen layer and two trained ones of low rank beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) -> the same."""
        return torch.relu(self.base(x) + self.up(self.down(x)))


def frozen(width: int) -> nn.Module:
    """Nothing of it is trained."""
    return nn.Sequential(nn.Linear(width, width), nn.Tanh()).requires_grad_(False)


@cache
def adapted(engine: Engine) -> tuple[LayeredModel, ModelGraph]:
    """Frozen layers at the beginning and in between, adapters on the others; weights are most of the memory."""
    kinds = (frozen, frozen, Adapted, frozen, Adapted, Adapted, Adapted)
    model = chain([partial(kind, 64) for kind in kinds], 64)
    return model, sized(model, 4, engine=engine)


class Lora(NamedTuple):
    """A schedule of two devices on an engine; `apart`: every stage's backward on the other device."""

    schedule: str
    engine: Engine
    stash: str = "keep"
    apart: bool = False


LORA = [
    Lora("1f1b", "graph"),
    Lora("1f1b", "eager"),
    Lora("zb-h1", "graph"),
    Lora("zb-h1", "eager"),
    Lora("chimera", "graph"),
    Lora("1f1b", "graph", "recompute"),
    Lora("gpipe", "eager", "offload"),
    Lora("1f1b", "graph", apart=True),
]


@pytest.mark.parametrize("case", LORA, ids=lambda case: "-".join(map(str, case)))
def test_frozen_parameters_cost_no_training(case: Lora) -> None:
    """Adapters train as plain torch trains them; the forecast has no gradients and states of what is frozen."""
    model, graph = adapted(case.engine)
    layout = build(case.schedule, 2, 4)
    lists = [_remade(order, case.stash == "recompute") for order in layout.orders]
    pipelines = layout.pipelines
    if case.apart:
        pipelines = tuple(replace(p, backward=p.backward[::-1]) for p in pipelines)
        lists = [[op for order in lists for op in order if _device(op, pipelines[0]) == d] for d in range(2)]
        lists = [sorted(order, key=lambda op: (op.kind is not Kind.F, op.micro_batch, -op.stage)) for order in lists]
    stash = tuple((case.stash,) * layout.stages for _ in pipelines)
    plan = plan_of(graph, pipelines, lists, "adam", stash)
    result = assert_as_plain_torch(plan, model, case.engine)
    assert min(worst_excess(result).values()) >= 0.9, worst_excess(result)
    for device, parts in enumerate(static_bytes(plan, StageCosts.of(graph, plan.stages))):
        assert parts["gradients"] < 0.2 * parts["parameters"], device


def _remade(order: Sequence[Op], again: bool) -> list[Op]:
    return [made for op in order for made in ([op._replace(kind=Kind.R)] if again and op.kind is Kind.B else []) + [op]]


def _device(op: Op, pipeline: Pipeline) -> int:
    return (pipeline.forward if op.kind is Kind.F else pipeline.backward)[op.stage]


class Attending(nn.Module):
    """Attention with its residual, frozen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, 1, causal=False)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> the same."""
        mixed: torch.Tensor = x + self.attention(self.norm(x))
        return mixed


@pytest.mark.parametrize("engine", ["graph", "eager"])
def test_the_target_counts_while_a_layer_runs_that_keeps_nothing(engine: Engine) -> None:
    """Its stage has it by then, and no stash yet of which it is a part."""
    model, layer, x = chain([partial(Attending, 8)] * 2, 8), Attending(8), torch.randn(2, 5, 8)
    pieces = [Piece(f"layer{k}", range(k, k + 1)) for k in range(2)]
    on = Example(pieces[1], Between(model, pieces, x).part(pieces[1], trained=False), x, None)
    program = trace_layer(model, [layer], on, torch.float32, engine, check=False)
    none, small, large = (
        LayerRun(program, [layer], on, awaiting).sizes()["workspace_bytes"] for awaiting in (0, 16, 4096)
    )
    assert (small - none, large - none) == (16, 4096)


def test_frozen_layers_have_no_weight_half() -> None:
    """The profile says what is trained; before anything is, there is nothing to keep for a backward."""
    _, graph = adapted("graph")
    first, second, adapter, between = graph.layers[:4]
    assert (first.trained_bytes, second.trained_bytes, between.trained_bytes) == (0, 0, 0)
    assert 0 < adapter.trained_bytes == 4 * 64 * 4 < adapter.parameter_bytes
    assert (first.stash_bytes, second.stash_bytes) == (0, 0)
    assert between.stash_bytes > 0
    assert {first.backward_weight_s, second.backward_weight_s, between.backward_weight_s} == {0.0}
    assert ModelGraph.from_dict(graph.to_dict()) == graph


@pytest.mark.parametrize("value", [-1, 401, 1.5, "all"])
def test_trainable_bytes_are_at_most_the_parameters(value: object) -> None:
    """A file that says otherwise is refused, naming the layer."""
    layer = {"name": "head", "parameter_bytes": 400, "trainable_bytes": value}
    document = {"format": "contraflow/model", "version": 1, "layers": [layer]}
    with pytest.raises(ModelError, match=r"'head'.*trainable_bytes"):
        ModelGraph.from_dict(document)


def test_a_plan_that_trains_less_than_the_model_is_refused() -> None:
    """Its memory would have no room for the gradients."""
    model, plan = two_stages()
    with pytest.raises(RunError, match=r"'layer0': the model trains 272 of 272 numbers, the plan 8 of 1088 bytes"):
        execute(with_layers(plan, lambda layer: replace(layer, trainable_bytes=8)), 1, model, transport="threads")
