"""Costs of a model on a device that is not here: times from FLOPs and bytes, memory from running on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...models import Granularity, LayeredModel, LayerSpec
from ...models.lanes import Lane, NoParallelForm
from ...models.loaders import Source
from ...models.parallel import loss_of_samples
from ...models.protocol import build_shapes
from ...models.wiring import each
from ...planner import Link
from ...planner.basics import InputError
from ...planner.problem import DeviceType
from ..basics import Engine, keywords_of
from ..stage import lower
from .distinct import Pieced
from .kernels import Pricing, flat, kernel_pricing
from .layer_run import Example, LayerRun, Timing, trace_layer
from .lstm_reserve import LSTMReserve
from .profile import example_batch, model_document, profiled_layers, source_of
from .roofline import Roofline
from .team_link import TeamLink

PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What parameters are stored in; 16 bit means mixed precision (see `precision`). TF32 is float32 whose matrix products
are rounded."""


@dataclass(frozen=True)
class Estimating:
    """What is estimated of a model, and how.

    Attributes:
        micro_batch_size: samples. device: a preset with peaks.
        precision: a key of PRECISIONS; parameters and activations are of its type, as autocast on a CPU has them.
        efficiency: share of the peaks that every operator reaches, above 0 and at most 1, at no cost of a launch; None:
            what kernels reach by their shapes, see `kernels`.
        on_progress, data, layers: as for `Profiling`; of the data only the shapes of one micro-batch count.
        ways: how a team divides the layers; costs are then one rank's. link: between ranks of a team; what they tell
            each other inside a layer takes its time and hides behind nothing.
    """

    micro_batch_size: int
    device: DeviceType
    precision: str = "fp32"
    efficiency: float | None = None
    on_progress: Callable[[str], None] | None = None
    data: Source | None = None
    layers: Granularity = "parts"
    ways: Mapping[str, int] = field(default_factory=dict)
    link: Link = field(default_factory=Link)


def estimate_layers(model: LayeredModel, how: Estimating) -> dict[str, Any]:
    """The "contraflow/model" document that `profile_model` would give on `device`, without it.

    Bytes are those of the executor's own programs, run on fake tensors that have a shape and no memory: on a CPU
    they are exactly what a measured profile finds, but for a fused LSTM's reserve, see `LSTMReserve`. A GPU's kernels
    may keep some bytes more or less. Seconds are sums over the programs' operators (see `Roofline`), each priced as a
    kernel by its shape (see `kernels`), or, with an efficiency, as max(FLOPs / (efficiency * peak), bytes / (efficiency
    * bandwidth)). Layers alike are traced once.

    Raises:
        InputError: the device has no such precision, or is no preset with peaks; or a bad efficiency; or a layer, or
            a way, that no team is known to divide; or experts or samples that the team's size does not divide.
        ValueError: no data, or a micro-batch size below 1.
        TraceError: a layer cannot be traced.
    """
    pricing, lane = _pricing(how), _lane(model, how)
    if lane is not None and lane.experts:
        model = replace(model, loss=partial(loss_of_samples, model.loss, lane))
    dtype = PRECISIONS[how.precision]
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    x, target = example_batch(source_of(model, how.micro_batch_size, how.data), how.micro_batch_size, dtype)
    x, target = each(x, fake.from_tensor), fake.from_tensor(target)
    awaiting = target.nbytes

    def traced(engine: Engine, on: Example) -> tuple[dict[str, Any], LayerRun]:
        modules = [_imagined(model.layers[index], dtype, fake, lane) for index in on.piece.ids]
        program = trace_layer(model, modules, on, dtype, engine, check=False)
        roofline, team = Roofline(pricing), TeamLink(1 if lane is None else lane.size, how.link)
        with fake, LSTMReserve(), roofline, team:
            run = LayerRun(program, modules, on, awaiting)
            costs = run.costs(Timing(lambda: roofline.seconds + team.seconds))
        return costs, run

    of = Pieced(model, how.layers)
    layers, twice = profiled_layers(of, x, target, traced, "traced", how.on_progress)
    content = model_document(of, how.micro_batch_size, how.device.name, layers, twice, dtype, lane)
    return content if lane is None else content | {"ways": dict(how.ways)}


analytic_profile = keywords_of(Estimating)(estimate_layers)
"""`estimate_layers` as other programs call it: analytic_profile(model, micro_batch_size, device, ...)."""


def _lane(model: LayeredModel, how: Estimating) -> Lane | None:
    try:
        lane = Lane.planned(how.ways)
    except ValueError as error:
        raise InputError(str(error)) from None
    if lane is None or not lane.experts:
        return lane
    if not model.experts:
        raise InputError(f"model {model.name!r} has no experts that a team of {lane.size} could divide")
    for count, what in ((model.experts, "experts"), (how.micro_batch_size, "samples of a micro-batch")):
        if count % lane.size:
            raise InputError(f"model {model.name!r}: {count} {what} cannot be divided among a team of {lane.size}")
    return lane


def _pricing(how: Estimating) -> Pricing:
    efficiency, (peak_flops, bandwidth) = how.efficiency, _peaks(how.device, how.precision)
    if efficiency is None:
        return kernel_pricing(how.device, how.precision, peak_flops, bandwidth)
    if not 0 < efficiency <= 1:
        raise InputError(f"efficiency must be above 0 and at most 1, got {efficiency:g}")
    return flat(efficiency * peak_flops, efficiency * bandwidth)


def _peaks(device: DeviceType, precision: str) -> tuple[float, float]:
    """(FLOP/s, bytes/s)."""
    peaks = device.peaks()
    if device.memory_bandwidth is None or not peaks:
        raise InputError(f"nothing is known of the peaks of {device.name}: it can only be measured")
    if precision not in peaks:
        raise InputError(f"{device.name} has no {precision}; it has {', '.join(peaks)}")
    return peaks[precision], device.memory_bandwidth


def _imagined(spec: LayerSpec, dtype: torch.dtype, fake: FakeTensorMode, lane: Lane | None) -> nn.Module:
    """The layer in training mode as `build_layer` would build it, its tensors fake ones on the CPU."""
    try:
        module = lower(build_shapes(spec, lane), dtype).train()
    except NoParallelForm as error:
        raise InputError(str(error)) from None
    imagined: dict[Tensor, Tensor] = {}  # a tensor tied within the layer stays one
    for part in module.modules():
        parameters = part.named_parameters(recurse=False, remove_duplicate=False)
        for name, tensor in [*parameters, *part.named_buffers(recurse=False, remove_duplicate=False)]:
            if tensor not in imagined:
                imagined[tensor] = _imagine(tensor, fake)
            setattr(part, name, imagined[tensor])
    return module


def _imagine(tensor: Tensor, fake: FakeTensorMode) -> Tensor:
    with fake:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
