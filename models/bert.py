"""BERT (Devlin et al. 2019, arXiv:1810.04805): post-LN blocks, masked tokens and next sentence; no dropout.

The decoder is not tied to the embedding: they live on different stages, as in Chimera's pipelined BERT, whose 48-layer
model has 669,790,012 parameters (arXiv:2107.06925) only if both are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention, blocks, linear
from .collectives import copied, gathered_for_all
from .data import MASKED_VOCABULARY, NOT_MASKED, first_segment
from .parallel import (
    Classes,
    Column,
    Divisible,
    LayerNorm,
    Row,
    Table,
    TokenEmbedding,
    entered,
    own_positions,
)
from .protocol import LayeredModel, LayerSpec


@dataclass(frozen=True)
class BERTConfig:
    """Shapes of one BERT; the feed-forward layer is four times as wide as the model."""

    blocks: int
    width: int
    heads: int
    sequence: int
    positions: int
    vocabulary: int = MASKED_VOCABULARY


class Embedding(Divisible):
    """(batch, time) int64 -> (batch, time, width): token, position and segment, normalised.

    The segment follows from the position, as windows are cut in the same way: see `data.first_segment`.
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.token = _embedding(config.vocabulary, config.width, TokenEmbedding)
        self.position = _embedding(config.positions, config.width)
        self.segment = _embedding(2, config.width)
        self.norm = LayerNorm(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = own_positions(torch.arange(tokens.shape[1], device=tokens.device), self.lane)
        segments = (places >= first_segment(tokens.shape[1])).long()
        embedded: Tensor = self.norm(self.token(tokens) + (self.position(places) + self.segment(segments)))
        return embedded


class SelfAttention(Divisible):
    """The first half of a block: attention that sees everything, with a skip and a LayerNorm behind it."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads, causal=False)
        self.norm = LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.attention(x))
        return y


class MLP(Divisible):
    """The second half of a block: a four times wider MLP with a skip and a LayerNorm behind it."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.up = linear(config.width, 4 * config.width, kind=Column)
        self.activation = nn.GELU()
        self.down = linear(4 * config.width, config.width, kind=Row)
        self.norm = LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.down(self.activation(self.up(entered(x, self.lane)))))
        return y


class Head(Divisible):
    """Both tasks: (batch, time, width) -> (batch * (time * vocabulary + 2),) logits.

    A layer returns one tensor, so the logits of all tokens come first, then those of "B follows A", two a sample.
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.transform = linear(config.width, config.width)
        self.activation = nn.GELU()
        self.norm = nn.LayerNorm(config.width)
        self.decoder = linear(config.width, config.vocabulary, kind=Classes)
        self.pooler = linear(config.width, config.width)
        self.follows = linear(config.width, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.lane is not None and self.lane.sequence:
            x = gathered_for_all(x, 1, self.lane)  # all but the decoder is done alike on all lanes
        hidden = self.norm(self.activation(self.transform(x)))
        tokens = self.decoder(hidden if self.lane is None else copied(hidden))
        follows = self.follows(torch.tanh(self.pooler(x[:, 0])))
        return torch.cat([tokens.flatten(), follows.flatten()])


def pretraining_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of the masked tokens plus that of the next sentence, of `Head`'s logits: a scalar.

    `target` is (batch, time + 1) int64 as the data set "stdlib-masked" gives it: the hidden tokens, NOT_MASKED where
    nothing is hidden, and in the last column whether B follows A.
    """
    batch, time = target.shape[0], target.shape[1] - 1
    tokens, follows = torch.split(output, [output.numel() - 2 * batch, 2 * batch])
    hidden = F.cross_entropy(tokens.view(batch * time, -1), target[:, :-1].reshape(-1), ignore_index=NOT_MASKED)
    return hidden + F.cross_entropy(follows.view(batch, 2), target[:, -1])


def _embedding(count: int, width: int, kind: type[nn.Embedding] = Table) -> nn.Embedding:
    made = kind(count, width)
    nn.init.normal_(made.weight, std=0.02)
    return made


def bert(name: str, config: BERTConfig) -> LayeredModel:
    """The chain embedding, two layers a block, head, trained on masked bytes of source code.

    Raises:
        ValueError: the width is not a multiple of the number of heads, or there are fewer positions than tokens.
    """
    if config.width % config.heads:
        raise ValueError(f"{name}: width {config.width} is not a multiple of {config.heads} heads")
    if config.positions < config.sequence:
        raise ValueError(f"{name}: {config.positions} positions for {config.sequence} tokens")
    layers = (
        LayerSpec("embedding", partial(Embedding, config)),
        *blocks(config.blocks, partial(SelfAttention, config), partial(MLP, config)),
        LayerSpec("head", partial(Head, config)),
    )
    return LayeredModel(name, layers, pretraining_loss, f"stdlib-masked:{config.sequence}")


CONFIGS = {
    "bert-tiny": BERTConfig(blocks=4, width=64, heads=4, sequence=32, positions=32),
    "bert-small": BERTConfig(blocks=6, width=256, heads=8, sequence=128, positions=128),
    "bert-base": BERTConfig(blocks=12, width=768, heads=12, sequence=512, positions=512, vocabulary=30522),
    "bert-large": BERTConfig(blocks=24, width=1024, heads=16, sequence=512, positions=512, vocabulary=30522),
    # Chimera's BERT (arXiv:2107.06925, section 4): 48 layers, trained at sequence 128.
    "bert-48": BERTConfig(blocks=48, width=1024, heads=16, sequence=128, positions=512, vocabulary=30522),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {name: partial(bert, name, config) for name, config in CONFIGS.items()}
