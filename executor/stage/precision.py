"""Mixed precision (arXiv:1710.03740): 16-bit parameters under autocast; float32 masters, accumulators and losses.

A 16-bit dtype means all of this, wherever layers are built, traced, measured or run: parameters are 16-bit copies of
float32 masters, buffers stay as they are, the forward runs under torch.autocast of the device. The loss gets its
input in float32, as autocast has it on CUDA; on a CPU it leaves that to the caller. The backward runs the types that
the forward left, as autograd does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ...models.lanes import Lane
from ...models.protocol import LayerSpec, build_layer
from ..basics import DTYPES, RunError

HALVES = (torch.bfloat16, torch.float16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What gradients are summed, masters kept and losses computed in: float32 for 16 bit, else the dtype itself."""
    return torch.float32 if dtype in HALVES else dtype


def half_of(dtype: torch.dtype) -> torch.dtype | None:
    """The dtype if layers run under autocast in it, None if they run as they are."""
    return dtype if dtype in HALVES else None


def run_dtype(precision: str, given: torch.dtype | str | None) -> torch.dtype:
    """The dtype in which a plan of this precision runs; None: float32, or bfloat16 where the plan is mixed.

    Raises RunError where the two do not fit, or there is none of that name.
    """
    if isinstance(given, str) and given not in DTYPES:
        raise RunError(f"unknown dtype {given!r}; known: {', '.join(DTYPES)}")
    dtype: torch.dtype | None = getattr(torch, given) if isinstance(given, str) else given
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


def build_lowered(
    spec: LayerSpec, seed: int, index: int, dtype: torch.dtype, lane: Lane | None = None
) -> tuple[nn.Module, dict[str, Tensor]]:
    """(the layer of `build_layer` in this dtype, float32 masters of its trained 16-bit parameters by name)."""
    module = build_layer(spec, seed, index, wide(dtype), lane)
    masters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    lower(module, dtype)
    return module, masters if dtype in HALVES else {}


@contextmanager
def autocasting(half: torch.dtype | None, device: torch.device) -> Iterator[None]:
    """Runs what is inside as mixed precision does; half None: as it is.

    Without a cache: 16-bit weights are never cast, and a graph must hold every cast.
    """
    if half is None:
        yield
        return
    with _FittingNorms(), torch.autocast(device.type, dtype=half, cache_enabled=False):
        yield


_BATCH_NORMS = {F.batch_norm: (3, 4), F.instance_norm: (3, 4), torch.batch_norm: (1, 2), torch.instance_norm: (1, 2)}
_OTHER_NORMS = {F.layer_norm: (2, 3), F.group_norm: (2, 3), torch.layer_norm: (2, 3), torch.group_norm: (2, 3)}
"""Where weight and bias stand among a function's arguments."""


class _FittingNorms(TorchFunctionMode):
    """Casts 16-bit parameters of normalisations where the CPU's kernels refuse them and CUDA's autocast would cast.

    Running statistics are float32, so BatchNorm's parameters are too; others take the type of the input.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        positions = _BATCH_NORMS.get(func) or _OTHER_NORMS.get(func)
        if positions is None:
            return func(*args, **kwargs)
        x = args[0] if args else kwargs["input"]
        dtype = torch.float32 if func in _BATCH_NORMS else x.dtype
        given = [value.to(dtype) if k in positions and value is not None else value for k, value in enumerate(args)]
        named = {k: v.to(dtype) if k in ("weight", "bias") and v is not None else v for k, v in kwargs.items()}
        return func(*given, **named)


def output_like(module: nn.Module, xs: Sequence[Tensor], half: torch.dtype) -> object:
    """What the layer returns on the CPU for inputs of these shapes and dtypes, without memory; computes nothing."""
    named = [*module.named_parameters(), *module.named_buffers()]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values = {name: torch.empty_like(t, device="cpu", requires_grad=False) for name, t in named}
        entering = tuple(torch.empty_like(x, device="cpu") for x in xs)
        with autocasting(half, entering[0].device):
            output = functional_call(module, values, entering)
    return _without_memory(output)


def _without_memory(output: object) -> object:
    if isinstance(output, Tensor):
        return torch.empty(output.shape, dtype=output.dtype, device="meta")
    if isinstance(output, Mapping):
        return {name: _without_memory(value) for name, value in output.items()}
    return [*map(_without_memory, output)] if isinstance(output, tuple | list) else output
