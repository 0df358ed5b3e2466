"""GPT-2 (Radford et al. 2019): pre-LN transformer blocks, learned positions; the head tied to the embedding or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .attention import Attention, blocks, linear
from .loss import cross_entropy
from .parallel import (
    Classes,
    Column,
    Divisible,
    Dropout,
    LayerNorm,
    Row,
    TokenEmbedding,
    entered,
    on_shards,
    own_positions,
)
from .protocol import LayeredModel, LayerSpec, Tie


@dataclass(frozen=True)
class GPTConfig:
    """Shapes of one GPT.

    `positions` are learned, as many as `sequence` unless more are given. `tied`: the head's weight is the token
    embedding's, as in GPT-2, wherever the two layers run.
    """

    blocks: int
    width: int
    heads: int
    sequence: int
    vocabulary: int = 256
    dropout: float = 0.0
    positions: int | None = None
    tied: bool = False


class Embedding(Divisible):
    """(batch, time) int64 -> (batch, time, width)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.token = TokenEmbedding(config.vocabulary, config.width)
        self.position = nn.Parameter(torch.empty(config.positions or config.sequence, config.width))
        self.dropout = Dropout(config.dropout)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = own_positions(on_shards(self.position, self.lane)[: tokens.shape[1]], self.lane)
        embedded: Tensor = self.dropout(self.token(tokens) + positions)
        return embedded


class SelfAttention(Divisible):
    """The first half of a block: attention behind a LayerNorm and around a skip."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.width)
        self.attention = Attention(config.width, config.heads, True, config.dropout, residuals=2 * config.blocks)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.dropout(self.attention(self.norm(x)))
        return y


class MLP(Divisible):
    """The second half of a block: a four times wider MLP behind a LayerNorm and around a skip."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.width)
        self.up = linear(config.width, 4 * config.width, kind=Column)
        self.activation = nn.GELU(approximate="tanh")
        self.down = linear(4 * config.width, config.width, residuals=2 * config.blocks, kind=Row)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        normal = entered(self.norm(x), self.lane)
        y: Tensor = x + self.dropout(self.down(self.activation(self.up(normal))))
        return y


class Head(Divisible):
    """Final LayerNorm and projection: (batch, time, width) -> (batch, time, vocabulary) logits."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln = LayerNorm(config.width)
        self.out = Classes(config.width, config.vocabulary, bias=False)
        nn.init.normal_(self.out.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(entered(self.ln(x), self.lane))
        return logits


def gpt(name: str, config: GPTConfig) -> LayeredModel:
    """The chain embedding, two layers a block, head, trained on bytes of source code.

    Raises:
        ValueError: the width is not a multiple of the number of heads.
    """
    if config.width % config.heads:
        raise ValueError(f"{name}: width {config.width} is not a multiple of {config.heads} heads")
    layers = (
        LayerSpec("embedding", partial(Embedding, config)),
        *blocks(config.blocks, partial(SelfAttention, config), partial(MLP, config)),
        LayerSpec("head", partial(Head, config)),
    )
    ties = (Tie((("embedding", "token.weight"), ("head", "out.weight"))),) if config.tied else ()
    return LayeredModel(name, layers, cross_entropy, f"stdlib:{config.sequence}", ties)


CONFIGS = {
    "gpt-tiny": GPTConfig(blocks=4, width=64, heads=4, sequence=32),
    "gpt-tiny-dropout": GPTConfig(blocks=4, width=64, heads=4, sequence=32, dropout=0.1),
    "gpt-tiny-tied": GPTConfig(blocks=4, width=64, heads=4, sequence=32, tied=True),
    "gpt-mini": GPTConfig(blocks=4, width=128, heads=4, sequence=64),
    "gpt-small": GPTConfig(blocks=6, width=256, heads=8, sequence=128),
    "gpt2": GPTConfig(blocks=12, width=768, heads=12, sequence=1024, vocabulary=50257),
    # GPT-2 small as published: 124,439,808 parameters.
    "gpt2-tied": GPTConfig(blocks=12, width=768, heads=12, sequence=1024, vocabulary=50257, tied=True),
    # Chimera's GPT-2 (arXiv:2107.06925, section 4): 64 layers and 1,389,327,360 parameters, trained at sequence 632.
    "gpt2-64": GPTConfig(blocks=64, width=1280, heads=20, sequence=632, vocabulary=50257, positions=1024),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {name: partial(gpt, name, config) for name, config in CONFIGS.items()}
