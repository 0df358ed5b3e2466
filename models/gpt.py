"""GPT-2 (Radford et al. 2019): pre-LN transformer blocks, learned positions, untied head."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


@dataclass(frozen=True)
class GPTConfig:
    """Shapes of one GPT. The head is untied: embedding and head live on different stages."""

    blocks: int
    width: int
    heads: int
    sequence: int
    vocabulary: int = 256
    dropout: float = 0.0


class Embedding(nn.Module):
    """(batch, time) int64 -> (batch, time, width)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Parameter(torch.empty(config.sequence, config.width))
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.token(tokens) + self.position[: tokens.shape[1]])
        return embedded


class Attention(nn.Module):
    """Causal multi-head self-attention: (batch, time, width) -> the same."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = _linear(config.width, 3 * config.width)
        self.out = _linear(config.width, config.width, residuals=2 * config.blocks)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return projected


class Block(nn.Module):
    """Attention and a four times wider MLP, each behind a LayerNorm and around a skip."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.ln2 = nn.LayerNorm(config.width)
        self.up = _linear(config.width, 4 * config.width)
        self.activation = nn.GELU(approximate="tanh")
        self.down = _linear(4 * config.width, config.width, residuals=2 * config.blocks)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.ln1(x)))
        y: Tensor = x + self.dropout(self.down(self.activation(self.up(self.ln2(x)))))
        return y


class Head(nn.Module):
    """Final LayerNorm and projection: (batch, time, width) -> (batch, time, vocabulary) logits."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, config.vocabulary, bias=False)
        nn.init.normal_(self.out.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.ln(x))
        return logits


def _linear(inputs: int, outputs: int, residuals: int = 1) -> nn.Linear:
    """GPT-2's initialisation: N(0, 0.02), divided by sqrt(number of residual layers) before a skip."""
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=0.02 / math.sqrt(residuals))
    nn.init.zeros_(linear.bias)
    return linear


def gpt(name: str, config: GPTConfig) -> LayeredModel:
    """The chain embedding, block0 .. block(n-1), head, trained on bytes of source code.

    Raises:
        ValueError: the width is not a multiple of the number of heads.
    """
    if config.width % config.heads:
        raise ValueError(f"{name}: width {config.width} is not a multiple of {config.heads} heads")
    blocks = (LayerSpec(f"block{index}", partial(Block, config)) for index in range(config.blocks))
    layers = (
        LayerSpec("embedding", partial(Embedding, config)),
        *blocks,
        LayerSpec("head", partial(Head, config)),
    )
    return LayeredModel(name, layers, cross_entropy, f"stdlib:{config.sequence}")


CONFIGS = {
    "gpt-tiny": GPTConfig(blocks=4, width=64, heads=4, sequence=32),
    "gpt-tiny-dropout": GPTConfig(blocks=4, width=64, heads=4, sequence=32, dropout=0.1),
    "gpt-mini": GPTConfig(blocks=4, width=128, heads=4, sequence=64),
    "gpt-small": GPTConfig(blocks=6, width=256, heads=8, sequence=128),
    "gpt2": GPTConfig(blocks=12, width=768, heads=12, sequence=1024, vocabulary=50257),
    # PipeDream-2BW's and Chimera's 1.3-billion-parameter GPT-2: 64 layers, sequence 632.
    "gpt2-1.3b": GPTConfig(blocks=64, width=1280, heads=20, sequence=632, vocabulary=50257),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {name: partial(gpt, name, config) for name, config in CONFIGS.items()}
