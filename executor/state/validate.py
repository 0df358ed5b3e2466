"""Is this plan something the executor runs, and is this the model it was made for? One clear line if not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn

from ...models import Dataset, LayeredModel, LayerSpec, Piece, UnknownModel, load, pieces_named, resolve
from ...models.data import UnknownData
from ...models.lanes import Lane, NoParallelForm
from ...models.loaders import DataFault, Feed, Source, as_dataset
from ...models.protocol import build_shapes
from ...models.registry import names
from ...models.wiring import DATA, Value, named, outputs_of
from ...planner.basics import one_line
from ...planner.check import Violation, check
from ...planner.graph import STASH, stash_policies, stash_policy, update_size
from ...planner.plan import Kind, Plan
from ...planner.problem import Layer, ModelGraph, SharedParameters
from ...planner.rules import structure
from ..basics import RunError, Training
from ..stage import HALVES, autocasting, build_lowered, half_of, lower, output_like, own_random_state
from .batches import inputs_and_targets
from .departures import leaving
from .passing import planned_edges, stage_ids
from .ties import match_ties, tied_bytes
from .weights import STATE_NAMES


def require_executable(plan: Plan, device: str = "cpu") -> None:
    """Raises RunError naming the first thing in the plan that the checker or the executor refuses."""
    _require_no(list(structure(plan)))
    if device != "cpu":
        _require_no_shared_host_copies(plan, device)
    _require_separable(plan)
    _require_stashes(plan)
    if plan.problem.workload.optimizer not in STATE_NAMES:
        raise RunError(f"optimizer {plan.problem.workload.optimizer!r} cannot be executed")
    _require_no(check(plan))


def _require_no(violations: Sequence[Violation]) -> None:
    if violations:
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise RunError(f"the plan fails its check: {one_line(str(violations[0]), 240)}{more}")


def _require_no_shared_host_copies(plan: Plan, device: str) -> None:
    for index, (pipeline, row) in enumerate(zip(plan.pipelines, plan.stash, strict=True)):
        for stage, policy in enumerate(row):
            if stash_policy(policy).hosted and pipeline.forward[stage] != pipeline.backward[stage]:
                raise RunError(
                    f"pipeline {index}, stage {stage}: a stash that goes from one device to another through the host "
                    f"is not executed on {device} yet: plan with --no-offload"
                )


def _require_stashes(plan: Plan) -> None:
    """Somebody must say what goes to the host, and only whole stashes go to another device that way."""
    for row in stash_policies(plan):
        if row.hosted:
            leaving(row.name)
    for index, (pipeline, policies) in enumerate(zip(plan.pipelines, plan.stash, strict=True)):
        for stage, row in enumerate(map(stash_policy, policies)):
            if row.versioned and pipeline.forward[stage] != pipeline.backward[stage]:
                raise RunError(
                    f"pipeline {index}, stage {stage}: weights that go to another device through the host with their "
                    "stash are not executed: plan with offload"
                )
            if row.hosted and row.moved != (STASH,) and pipeline.forward[stage] != pipeline.backward[stage]:
                raise RunError(
                    f"pipeline {index}, stage {stage}: {row.moved[0].name} that go to another device through the host "
                    "are not executed: plan with offload"
                )


def _require_separable(plan: Plan) -> None:
    """A backward may be split only where the model says that every layer's can be."""
    for order in plan.orders:
        for op in order:
            if op.kind is Kind.I and 0 <= op.stage < len(plan.stages):
                index = plan.problem.model.index
                whole = [
                    n for n in plan.stages[op.stage] if n in index and not plan.problem.model.layers[index[n]].separable
                ]
                if whole:
                    raise RunError(
                        f"op {op}: the backward of layer {whole[0]!r} cannot be split: plan with --no-split-backward"
                    )


def find_model(plan: Plan, model: LayeredModel | str | None, seed: int = 0) -> LayeredModel:
    """The model to run: the one given, or the registry's of that name. A plan never causes an import.

    A user's function is called under `seed`, the run's, if it has not been called.

    Raises RunError.
    """
    if isinstance(model, LayeredModel):
        return model
    name = plan.problem.model.name if model is None else model
    if model is None and name not in names():
        raise RunError(
            f"the plan's model {name!r} is not in the registry: give it with --model package.module:function"
        )
    try:
        return resolve(name, seed)
    except UnknownModel as error:
        raise RunError(str(error)) from None


def find_data(model: LayeredModel, data: Source | str | None, feed: Feed | None = None) -> Dataset:
    """The data to train on: the data given, or the model's own; a user's loader as the run takes it.

    Raises RunError.
    """
    found = model.data if data is None else data
    if found is None:
        raise RunError(f"model {model.name!r} brings no data: give it with --data NAME")
    try:
        return load(found) if isinstance(found, str) else as_dataset(found, feed)
    except UnknownData as error:
        raise RunError(str(error)) from None
    except DataFault as error:
        raise RunError(f"the data of model {model.name!r}: {error}") from None


def feed_of(plan: Plan, training: Training) -> Feed:
    """How a run of the plan takes its samples."""
    full = plan.problem.model.micro_batch_size
    return Feed(full, training.mini_batch or update_size(plan) * full)


@dataclass(frozen=True)
class TensorShape:
    """Shape and dtype of one micro-batch's tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {str(self.dtype).removeprefix('torch.')}"

    def empty(self, device: torch.device | str = "cpu") -> Tensor:
        """A new contiguous tensor."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def as_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating-point tensors in the run's dtype, others as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


Shapes = tuple[tuple[TensorShape, ...], ...]
"""By stage, of what it takes."""


def inputs_text(data: Dataset, dtype: torch.dtype, samples: int) -> str:
    """Shapes and types of the data's inputs, in words."""
    found = named(inputs_and_targets(data, 0, 0, 0, samples)[0])
    shapes = {name: as_dtype(tensor, dtype) for name, tensor in found.items()}
    return ", ".join(f"{name} {TensorShape(tuple(t.shape), t.dtype)}".strip() for name, t in shapes.items())


def match_model(
    plan: Plan, model: LayeredModel, data: Dataset, dtype: torch.dtype, samples: int | None = None
) -> Shapes:
    """Compares the model with the plan's fingerprint; returns the shapes of what every stage takes.

    Of micro-batches of so many samples (default: the plan's). Builds every layer without memory (on the meta device)
    where its builder allows it.

    Raises:
        RunError: naming the first layer that differs in name, parameter shapes or bytes, or what is tied differently,
            or passes other tensors.
    """
    planned, pieces, lane = plan.problem.model.layers, planned_pieces(plan, model), lane_of(plan)
    for spec in model.layers if lane is not None else ():
        _part(spec, lane)  # that they all can be divided comes first
    _match_edges(plan, model, pieces)
    size = plan.problem.model.micro_batch_size if samples is None else samples
    there = {v: as_dtype(t, dtype).to("meta") for v, t in _data_of(model, data, size).items()}
    for layer, piece in zip(planned, pieces, strict=True):
        modules = nn.ModuleList(_part(model.layers[index], lane).to("meta") for index in piece.ids).train()
        _match_layer(layer.name, layer.parameter_bytes, layer.parameter_shapes, modules, dtype)
        _match_trained(layer, modules)
        for index, module in zip(piece.ids, modules, strict=True):
            taken = tuple(there[value] for value in model.wiring.takes[index])
            given = _propagate(model.layers[index], index, lower(module, dtype), taken, dtype)
            there |= {Value(index, number): tensor for number, tensor in enumerate(given)}
    for layer, piece in zip(planned, pieces, strict=True):
        _match_tensors(layer, model, piece, there, plan, size)
    match_ties(plan, model, pieces, dtype, lane)
    parts = [model.wiring.part(ids) for ids in stage_ids(plan, pieces)]
    return tuple(
        tuple(TensorShape(tuple(there[value].shape), there[value].dtype) for value in part.takes) for part in parts
    )


def _data_of(model: LayeredModel, data: Dataset, samples: int) -> dict[Value, Tensor]:
    """What the model takes of a micro-batch. Raises RunError: the data gives something else."""
    found = inputs_and_targets(data, 0, 0, 0, samples)[0]
    try:
        return model.wiring.given(found, {value for values in model.wiring.takes for value in values})
    except ValueError as error:
        raise RunError(f"model {model.name!r} on data set {data.name!r}: {error}") from None


def _match_edges(plan: Plan, model: LayeredModel, pieces: Sequence[Piece]) -> None:
    """Raises RunError naming an edge that only one of them has, or has with other tensors."""
    graph = plan.problem.model
    outputs = {layer.name: len(layer.outputs) for layer in graph.layers}
    theirs = {
        (*edge, tuple(o.name for o in carried) if len(carried) < outputs[edge[0]] else None)
        for edge, carried in graph.carried.items()
    }
    mine = {tuple(edge) for edge in planned_edges(model, pieces)}
    for source, target, tensors in sorted(mine ^ theirs, key=str):
        whose = "model" if (source, target, tensors) in mine else "plan"
        what = f" with {', '.join(tensors)}" if tensors else ""
        raise RunError(
            f"layer {target!r} takes what {source!r} gives{what} in the {whose} only: profile and plan again"
        )


def _match_tensors(
    layer: Layer, model: LayeredModel, piece: Piece, there: Mapping[Value, Tensor], plan: Plan, size: int
) -> None:
    """Raises RunError where what the piece takes of the data, or gives others, takes more than the plan has for it."""
    part = model.wiring.part(piece.ids)
    if all(value.layer == DATA for value in part.takes):
        found = [there[value] for value in part.takes]
        _match_bytes(f"the input of layer {layer.name!r}", layer.input_bytes, found, plan, size)
    if not layer.outputs:
        found = [there[value] for value in part.gives]  # none of the last: it is under the loss
        _match_bytes(f"the output of layer {layer.name!r}", layer.output_bytes, found, plan, size)
        return
    planned = {output.name: output.bytes for output in layer.outputs}
    for value in part.gives:
        name = model.wiring.name(value, model.layers)
        if name not in planned:
            raise RunError(f"layer {layer.name!r} gives {name!r} in the model only: profile and plan again")
        _match_bytes(f"{name!r}", planned[name], [there[value]], plan, size)


def _match_bytes(what: str, planned: int | None, found: Sequence[Tensor], plan: Plan, samples: int) -> None:
    """Raises RunError where tensors take more than the plan has for them; in float64 they may take twice as much."""
    takes = sum(tensor.nbytes // (2 if tensor.dtype == torch.float64 else 1) for tensor in found)
    if planned is not None and found and takes > planned:
        shapes = " and ".join(str(tuple(tensor.shape[1:])) for tensor in found)
        raise RunError(
            f"{what} takes {takes} bytes for {samples} samples of shape {shapes}, the plan has "
            f"{planned} for micro-batches of {plan.problem.model.micro_batch_size}: profile and plan with what is run"
        )


def match_epochs(plan: Plan, data: Dataset, sizes: Iterable[int]) -> None:
    """Raises RunError where a data set passes through epochs in steps of other micro-batches than these."""
    count, wanted = update_size(plan), getattr(data, "per_step", None)
    if wanted is not None and wanted != count:
        raise RunError(f"data set {data.name!r} gives {wanted} micro-batches a step, the plan takes {count}")
    full = plan.problem.model.micro_batch_size
    other = next((size for size in sizes if size != full), None)
    if wanted is not None and other is not None:
        raise RunError(f"data set {data.name!r} has epochs of micro-batches of {full} samples only, not of {other}")


def planned_pieces(plan: Plan, model: LayeredModel) -> tuple[Piece, ...]:
    """What every layer of the plan is in the model: one of its layers, or all of a block.

    Raises RunError naming the first that the model does not have in its place.
    """
    pieces = pieces_named(model, [layer.name for layer in plan.problem.model.layers])
    for planned, found in zip_longest(plan.problem.model.layers, pieces):
        if planned is None:
            raise RunError(f"layer {found.name!r} of model {model.name!r} is not in the plan")
        if found is None:
            raise RunError(f"the plan's layer {planned.name!r} is not in model {model.name!r}")
        if planned.name != found.name:
            raise RunError(f"the plan's layer {planned.name!r} is {found.name!r} in model {model.name!r}")
    return pieces


def parts_fingerprint(plan: Plan, model: LayeredModel) -> str:
    """The fingerprint of the plan's model by the model's own layers: however it was profiled, and by what team."""
    graph, pieces = plan.problem.model, planned_pieces(plan, model)
    team = plan.problem.cluster.team > 1
    if not team and all(len(piece.ids) == 1 for piece in pieces):
        return graph.fingerprint
    dtype = torch.float32 if plan.problem.workload.precision == "fp32" else torch.bfloat16
    layers: list[Layer] = []
    for planned, piece in zip(graph.layers, pieces, strict=True):
        whole = [planned] if len(piece.ids) == 1 and not team else None
        layers += whole or [_parameters(model.layers[index], dtype) for index in piece.ids]
    shared = tuple(SharedParameters(members, count) for members, count in tied_bytes(model, dtype))
    own = planned_edges(model, [Piece(spec.name, range(k, k + 1)) for k, spec in enumerate(model.layers)])
    edges = tuple((edge.source, edge.target) for edge in own)
    return ModelGraph(tuple(layers), edges, shared=shared).fingerprint


def _parameters(spec: LayerSpec, dtype: torch.dtype) -> Layer:
    """A layer's parameters, as its profile would have them."""
    parameters = list(lower(build_shapes(spec), dtype).parameters())
    size, trained = sum(p.nbytes for p in parameters), sum(p.nbytes for p in parameters if p.requires_grad)
    shapes = tuple(tuple(p.shape) for p in parameters)
    return Layer(spec.name, parameter_bytes=size, parameter_shapes=shapes, trainable_bytes=trained)


def _part(spec: LayerSpec, lane: Lane | None) -> nn.Module:
    try:
        return build_shapes(spec, lane)
    except NoParallelForm as error:
        raise RunError(f"the plan is for teams: {error}") from None


def lane_of(plan: Plan, number: int = 0) -> Lane | None:
    """The lane of that number in every team; None: devices are single ranks. Raises RunError: not executed."""
    try:
        return Lane.of(dict(plan.problem.model.ways), number)
    except ValueError as error:
        raise RunError(str(error)) from None


def _match_layer(
    name: str,
    parameter_bytes: int,
    shapes: tuple[tuple[int, ...], ...] | None,
    module: nn.Module,
    dtype: torch.dtype,
) -> None:
    found = tuple(tuple(p.shape) for p in module.parameters())
    if shapes is not None and found != tuple(shapes):
        raise RunError(f"layer {name!r}: the model's parameter shapes are {found}, the plan's {shapes}")
    counts = [(p.numel(), p.element_size() if not p.is_floating_point() else 0) for p in module.parameters()]
    full, half = (sum(n * (own or size) for n, own in counts) for size in (4, 2))
    right = {half} if dtype in HALVES else {full, sum(n * (own or dtype.itemsize) for n, own in counts)}
    if parameter_bytes in right:
        return
    if parameter_bytes in (full, half):
        why = (
            f"the plan is in mixed precision, but layer {name!r} was profiled with {full} bytes of parameters, not "
            f"{half}: profile with --precision bf16 (or fp16)"
            if dtype in HALVES
            else f"the plan is in fp32, but layer {name!r} was profiled in 16 bit, {half} bytes of parameters and not "
            f"{full}: plan with --precision mixed"
        )
        raise RunError(why)
    raise RunError(f"layer {name!r}: the model has {max(right)} bytes of parameters, the plan {parameter_bytes}")


def _match_trained(layer: Layer, module: nn.Module) -> None:
    """Raises RunError where the model trains more of the layer than the plan does."""
    whole = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    if trained * layer.parameter_bytes > layer.trained_bytes * whole:
        raise RunError(
            f"layer {layer.name!r}: the model trains {trained} of {whole} numbers, the plan "
            f"{layer.trained_bytes} of {layer.parameter_bytes} bytes"
        )


def _propagate(
    spec: LayerSpec, index: int, module: nn.Module, taken: tuple[Tensor, ...], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """What the layer gives, without memory; a layer that looks at numbers is built and run on some."""
    output: object
    try:
        with torch.no_grad():
            output = output_like(module, taken, dtype) if dtype in HALVES else module(*taken)
    except NoParallelForm as error:
        raise RunError(f"the plan is for teams: layer {spec.name!r}: {error}") from None
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        output = _computed(spec, index, taken, dtype)
    try:
        return tuple(tensor.to("meta") for tensor in outputs_of(output, spec.outputs))
    except ValueError as error:
        raise RunError(f"layer {spec.name!r} {error}") from None


def _computed(spec: LayerSpec, index: int, taken: tuple[Tensor, ...], dtype: torch.dtype) -> object:
    generator = torch.Generator().manual_seed(0)
    values = [
        torch.randn(example.shape, dtype=example.dtype, generator=generator)
        if example.is_floating_point()
        else torch.zeros(example.shape, dtype=example.dtype)
        for example in taken
    ]
    try:
        with own_random_state(values[0].device), torch.no_grad(), autocasting(half_of(dtype), values[0].device):
            output: object = build_lowered(spec, 0, index, dtype)[0](*values)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"layer {spec.name!r} does not take its input of shape "
            f"{' and '.join(str(tuple(value.shape)) for value in values)}: {reason}"
        ) from None
    return output
