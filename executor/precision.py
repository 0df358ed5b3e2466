"""Mixed precision (arXiv:1710.03740): 16-bit parameters under autocast; float32 masters, accumulators and losses.

A 16-bit dtype means all of this, wherever layers are built, traced, measured or run: parameters are 16-bit copies of
float32 masters, buffers stay as they are, the forward runs under torch.autocast of the device. Normalisation layers
get their parameters in float32 and the loss its input, as autocast has it on CUDA; on a CPU it leaves both to
the caller. The backward runs the types that the forward left, as autograd does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from ..models.protocol import LayerSpec, build_layer
from .errors import RunError

HALVES = (torch.bfloat16, torch.float16)
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What gradients are summed, masters kept and losses computed in: float32 for 16 bit, else the dtype itself."""
    return torch.float32 if dtype in HALVES else dtype


def half_of(dtype: torch.dtype) -> torch.dtype | None:
    """The dtype if layers run under autocast in it, None if they run as they are."""
    return dtype if dtype in HALVES else None


def run_dtype(precision: str, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which a plan of this precision runs; None: float32, or bfloat16 where the plan is mixed.

    Raises RunError where the two do not fit.
    """
    if precision == "mixed":
        if dtype is not None and dtype not in HALVES:
            raise RunError(f"a plan in mixed precision runs in bfloat16 or float16, not {_name(dtype)}")
        return dtype or torch.bfloat16
    if dtype in HALVES:
        raise RunError(f"the plan is in {precision} and cannot run in {_name(dtype)}: plan with --precision mixed")
    return dtype or torch.float32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def lower(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in this dtype: its parameters alone if that is 16 bit, else its buffers too."""
    if dtype not in HALVES:
        return module.to(dtype)
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return module


def build_lowered(spec: LayerSpec, seed: int, index: int, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
    """(the layer of `build_layer` in this dtype, float32 masters of its trained 16-bit parameters by name)."""
    module = build_layer(spec, seed, index, wide(dtype))
    masters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    lower(module, dtype)
    return module, masters if dtype in HALVES else {}


def autocasting(half: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to `half`, without a cache: 16-bit weights are never cast, and a graph must hold every cast."""
    if half is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=half, cache_enabled=False)


def widen_norms(module: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values a layer is called with, those of normalisation layers' parameters in float32."""
    widened = dict(values)
    for path, part in module.named_modules():
        if isinstance(part, _NORMS):
            for name, _ in part.named_parameters(path, recurse=False):
                if name in widened:
                    widened[name] = widened[name].float()
    return widened


def output_like(module: nn.Module, x: Tensor, half: torch.dtype) -> Tensor:
    """The layer's output on the CPU for an input of x's shape and dtype, as a meta tensor; computes nothing."""
    named = [*module.named_parameters(), *module.named_buffers()]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values = {name: torch.empty_like(t, device="cpu", requires_grad=False) for name, t in named}
        entering = torch.empty_like(x, device="cpu")
        with autocasting(half, entering.device):
            output = functional_call(module, widen_norms(module, values), (entering,))
    return torch.empty(output.shape, dtype=output.dtype, device="meta") if isinstance(output, Tensor) else output
