"""Costs of a model on a device that is not here: times from FLOPs and bytes, memory from running on fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...models.protocol import Dataset, LayeredModel, LayerSpec, build_shapes
from ...planner.basics import InputError
from ...planner.problem import DeviceType
from ..basics import Engine
from ..stage import lower
from .layer_run import Example, LayerRun, trace_layer
from .lstm_reserve import LSTMReserve
from .profile import example_batch, model_document, profiled_layers
from .roofline import Roofline

EFFICIENCY = 0.5
"""Share of the peaks that is taken to be reached. Whole training runs of large transformers on A100s report 52 %
(Megatron-LM, arXiv:2104.04473) and 54 % (arXiv:2205.05198) of the 16-bit peak, bubbles and messages included."""

PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What parameters are stored in; 16 bit means mixed precision (see `precision`). TF32 is float32 whose matrix products
are rounded."""


def analytic_profile(
    model: LayeredModel,
    micro_batch_size: int,
    device: DeviceType,
    precision: str = "fp32",
    efficiency: float = EFFICIENCY,
    on_progress: Callable[[str], None] | None = None,
    data: Dataset | None = None,
) -> dict[str, Any]:
    """The "contraflow/model" document that `profile_model` would give on `device`, without it.

    Bytes are those of the executor's own programs, run on fake tensors that have a shape and no memory: on a CPU
    they are exactly what a measured profile finds, but for a fused LSTM's reserve, see `LSTMReserve`. A GPU's kernels
    may keep some bytes more or less. Seconds are the
    sums over the programs' operators of max(FLOPs / (efficiency * peak), bytes / (efficiency * bandwidth)), see
    `Roofline`. Layers alike are traced once.

    Args:
        precision: a key of PRECISIONS; parameters and activations are of its type, as autocast on a CPU has them.
        efficiency: share of the peaks that is reached, above 0 and at most 1.
        data: as for `profile_model`; only the shapes of one micro-batch count.

    Raises:
        InputError: the device has no such precision, or is no preset with peaks; or a bad efficiency.
        ValueError: no data, or a micro-batch size below 1.
        TraceError: a layer cannot be traced.
    """
    peak_flops, bandwidth = _peaks(device, precision)
    if not 0 < efficiency <= 1:
        raise InputError(f"efficiency must be above 0 and at most 1, got {efficiency:g}")
    dtype = PRECISIONS[precision]
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    x, target = (fake.from_tensor(tensor) for tensor in example_batch(model, micro_batch_size, data, dtype))
    awaiting = target.nbytes

    def traced(engine: Engine, on: Example) -> tuple[dict[str, Any], LayerRun]:
        module = _imagined(model.layers[on.index], dtype, fake)
        program = trace_layer(model, module, on, dtype, engine, check=False)
        roofline = Roofline(efficiency * peak_flops, efficiency * bandwidth)
        with fake, LSTMReserve(), roofline:
            run = LayerRun(program, module, on, awaiting)
            costs = run.costs(lambda: roofline.seconds, rounds=1, warmups=0)
        return costs, run

    layers = profiled_layers(model, x, target, traced, "traced", on_progress)
    return model_document(model, micro_batch_size, device.name, layers, dtype)


def _peaks(device: DeviceType, precision: str) -> tuple[float, float]:
    """(FLOP/s, bytes/s)."""
    peaks = device.peaks()
    if device.memory_bandwidth is None or not peaks:
        raise InputError(f"nothing is known of the peaks of {device.name}: it can only be measured")
    if precision not in peaks:
        raise InputError(f"{device.name} has no {precision}; it has {', '.join(peaks)}")
    return peaks[precision], device.memory_bandwidth


def _imagined(spec: LayerSpec, dtype: torch.dtype, fake: FakeTensorMode) -> nn.Module:
    """The layer in training mode as `build_layer` would build it, its tensors fake ones on the CPU."""
    module = lower(build_shapes(spec), dtype).train()
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
