"""Adds up what operators would take: counts their FLOPs and bytes, and asks a pricing for their seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from .kernels import Attention, Pricing, Work

_aten = torch.ops.aten
_WRITES_NOTHING = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
_READS_ROWS = {_aten.embedding, _aten.index_select, _aten.index, _aten.gather, _aten.nll_loss_forward}
"""Operators that read of their first argument no more than what they write or are told to read."""


class Roofline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that prices every operator by its FLOPs, its bytes and its shape (see `kernels`).

    FLOPs are those of torch.utils.flop_counter's formulas: matrix products, convolutions and attention (a causal
    one counts in full); and the products of a fused LSTM. Other operators have none. Bytes are every input read once
    and every output written once; views take nothing. So nothing is fused that torch does not fuse.

    Attributes:
        seconds, flops, bytes: the sums so far.
    """

    def __init__(self, pricing: Pricing) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pricing = pricing
        self.seconds = 0.0
        self.flops = 0
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        flops = operator_flops(func, args, kwargs or {}, result)
        size = operator_bytes(func, args, kwargs or {}, result)
        self.flops += flops
        self.bytes += size
        if flops or size:
            self.seconds += self.pricing(Work(flops, size, _elements(result), _attention(func, args, kwargs or {})))
        return result


def _elements(result: Any) -> int:
    return sum(tensor.numel() for tensor in _tensors(result))


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attention | None:
    """The shape of a fused attention; None for other operators."""
    packet = getattr(func, "overloadpacket", None)
    if packet not in _ATTENTION:
        return None
    backward, at = _ATTENTION[packet]
    causal = kwargs.get("is_causal", args[at] if len(args) > at else False)
    query = args[1] if backward else args[0]
    return Attention(int(query.shape[-2]), int(query.shape[-1]), bool(causal), backward)


def operator_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations, a multiplication and an addition counted as two; 0 without a formula."""
    packet = getattr(func, "overloadpacket", None)
    formula = _OWN_FORMULAS.get(packet)
    if formula is not None:
        return formula(*(tuple(value.shape) for value in args[:4] if isinstance(value, Tensor)))
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    return 0


def _attention_flops(query: Any, key: Any, value: Any) -> int:
    keys, values = _all_heads(query, key), _all_heads(query, value)
    return int(sdpa_flop_count(query, keys, values))  # type: ignore[no-untyped-call]


def _attention_backward_flops(grad: Any, query: Any, key: Any, value: Any) -> int:
    keys, values = _all_heads(query, key), _all_heads(query, value)
    return int(sdpa_backward_flop_count(grad, query, keys, values))  # type: ignore[no-untyped-call]


def _all_heads(query: Any, shared: Any) -> Any:
    """The shape with as many heads as the query has: grouped queries use theirs several times."""
    return (shared[0], query[1], *shared[2:])


def _lstm_flops(x: Any, of_input: Any, of_state: Any, *others: Any) -> int:
    """One direction's products of (time, batch, inputs) with (4 width, inputs) and (4 width, width)."""
    return int(2 * x[0] * x[1] * of_input[0] * (of_input[1] + of_state[1]))


def _lstm_backward_flops(x: Any, of_input: Any, of_state: Any, *others: Any) -> int:
    """Gradients of what is multiplied and of the weights."""
    return 2 * _lstm_flops(x, of_input, of_state)


_OWN_FORMULAS: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    _aten.mkldnn_rnn_layer: _lstm_flops,
    _aten.mkldnn_rnn_layer_backward: _lstm_backward_flops,
}


_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu: (False, 4),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (True, 7),
}
"""Whether it is a backward, and where `is_causal` stands among the arguments."""


def operator_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Bytes read and written; 0 for views and for memory that is only reserved."""
    packet = getattr(func, "overloadpacket", None)
    read = _tensors((args, kwargs))
    held = {tensor.untyped_storage()._cdata for tensor in read}
    changes = func._schema.is_mutable
    written = [t for t in _tensors(result) if changes or t.untyped_storage()._cdata not in held]
    if not written or packet in _WRITES_NOTHING:
        return 0
    out = _touched(written)
    if packet in _READS_ROWS:
        rest = _touched(read[1:])
        return min(_touched(read[:1]), max(out, rest)) + rest + out
    return _touched(read) + out


def _tensors(values: Any) -> list[Tensor]:
    """Those among nested values, each once."""
    return list({id(value): value for value in tree_iter(values) if isinstance(value, Tensor)}.values())


def _touched(tensors: Iterable[Tensor]) -> int:
    """Bytes behind the tensors; an expanded one has no more than its storage."""
    return sum(min(t.numel() * t.element_size(), t.untyped_storage().nbytes()) for t in tensors)
