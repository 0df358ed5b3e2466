"""What the transformers share: multi-head self-attention, and linear layers drawn as GPT-2's and BERT's are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .lanes import Lane
from .parallel import Divisible, FusedQKV, Row, dropped, entered, require_multiple
from .protocol import LayerSpec


def linear(
    inputs: int, outputs: int, residuals: int = 1, bias: bool = True, kind: type[nn.Linear] = nn.Linear
) -> nn.Linear:
    """GPT-2's initialisation: N(0, 0.02), divided by sqrt(number of residual layers) before a skip."""
    made = kind(inputs, outputs, bias=bias)
    nn.init.normal_(made.weight, std=0.02 / math.sqrt(residuals))
    if bias:
        nn.init.zeros_(made.bias)
    return made


def blocks(count: int, attention: Callable[[], nn.Module], mlp: Callable[[], nn.Module]) -> Iterator[LayerSpec]:
    """Transformer blocks, two layers each: the tensor between attention and MLP is that between blocks."""
    for index in range(count):
        block = f"block{index}"
        yield LayerSpec(f"{block}.attention", attention, block)
        yield LayerSpec(f"{block}.mlp", mlp, block)


class Attention(Divisible):
    """Multi-head self-attention: (batch, time, width) -> the same.

    `causal` hides what comes later; `residuals` counts the model's skips, for the initialisation.
    """

    def __init__(self, width: int, heads: int, causal: bool, dropout: float = 0.0, residuals: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.size = width // heads
        self.qkv = linear(width, 3 * width, kind=FusedQKV)
        self.out = linear(width, width, residuals, kind=Row)

    def divide(self, lane: Lane) -> None:
        """Every lane has heads of its own. Raises NoParallelForm."""
        super().divide(lane)
        require_multiple(self.heads, "heads", lane)
        self.heads //= lane.size

    def forward(self, x: Tensor) -> Tensor:
        x = entered(x, self.lane)
        batch, time, _ = x.shape
        width = self.heads * self.size
        q, k, v = (
            part.view(batch, time, self.heads, self.size).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        if self.lane is None or dropout == 0:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        else:
            mixed = self._mixed(q, k, v, dropout, self.lane)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return projected

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, dropout: float, lane: Lane) -> Tensor:
        """Attention that drops what one device would drop of these heads."""
        scores = q @ k.transpose(2, 3) / math.sqrt(self.size)
        if self.causal:
            hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        weights = scores.softmax(dim=3)
        return (weights * dropped(weights, 1, dropout, lane)).to(v.dtype) @ v
