"""What a fused LSTM keeps for its backward, where it only runs on tensors without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_KEPT = 5
"""Four gates and the cell's state, for every step, sample and cell: the inputs of an LSTM's backward beside its inputs
and outputs (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000). No kernel keeps less than this;
oneDNN's, on CPUs, keeps about three times as much, and its size cannot be asked for without running it."""


class LSTMReserve(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager inside a FakeTensorMode: a fused LSTM's reserve, which torch's fake kernel leaves empty, has
    `_KEPT` numbers for every number of its output."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not _LAYER:
            return result
        output, hidden, cell, reserve = result
        return output, hidden, cell, _of_bytes(reserve, _KEPT * output.numel() * output.element_size())


def _of_bytes(reserve: Tensor, size: int) -> Tensor:
    return reserve.new_empty(size, dtype=torch.uint8)
