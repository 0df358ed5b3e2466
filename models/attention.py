"""What the transformers share: multi-head self-attention, and linear layers drawn as GPT-2's and BERT's are."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn


def linear(inputs: int, outputs: int, residuals: int = 1, bias: bool = True) -> nn.Linear:
    """GPT-2's initialisation: N(0, 0.02), divided by sqrt(number of residual layers) before a skip."""
    made = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(made.weight, std=0.02 / math.sqrt(residuals))
    if bias:
        nn.init.zeros_(made.bias)
    return made


class Attention(nn.Module):
    """Multi-head self-attention: (batch, time, width) -> the same.

    `causal` hides what comes later; `residuals` counts the model's skips, for the initialisation.
    """

    def __init__(self, width: int, heads: int, causal: bool, dropout: float = 0.0, residuals: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = linear(width, 3 * width)
        self.out = linear(width, width, residuals)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return projected
