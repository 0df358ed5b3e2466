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

from .attention import Attention, linear
from .data import MASKED_VOCABULARY, NOT_MASKED, first_segment
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


class Embedding(nn.Module):
    """(batch, time) int64 -> (batch, time, width): token, position and segment, normalised.

    The segment follows from the position, as windows are cut in the same way: see `data.first_segment`.
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.token = _embedding(config.vocabulary, config.width)
        self.position = _embedding(config.positions, config.width)
        self.segment = _embedding(2, config.width)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        segments = (places >= first_segment(tokens.shape[1])).long()
        embedded: Tensor = self.norm(self.token(tokens) + (self.position(places) + self.segment(segments)))
        return embedded


class Block(nn.Module):
    """Attention that sees everything, and an MLP, each with a skip and a LayerNorm behind it."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads, causal=False)
        self.ln1 = nn.LayerNorm(config.width)
        self.up = linear(config.width, 4 * config.width)
        self.activation = nn.GELU()
        self.down = linear(4 * config.width, config.width)
        self.ln2 = nn.LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln1(x + self.attention(x))
        y: Tensor = self.ln2(x + self.down(self.activation(self.up(x))))
        return y


class Head(nn.Module):
    """Both tasks: (batch, time, width) -> (batch * (time * vocabulary + 2),) logits.

    A layer returns one tensor, so the logits of all tokens come first, then those of "B follows A", two a sample.
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.transform = linear(config.width, config.width)
        self.activation = nn.GELU()
        self.norm = nn.LayerNorm(config.width)
        self.decoder = linear(config.width, config.vocabulary)
        self.pooler = linear(config.width, config.width)
        self.follows = linear(config.width, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.decoder(self.norm(self.activation(self.transform(x))))
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


def _embedding(count: int, width: int) -> nn.Embedding:
    made = nn.Embedding(count, width)
    nn.init.normal_(made.weight, std=0.02)
    return made


def bert(name: str, config: BERTConfig) -> LayeredModel:
    """The chain embedding, block0 .. block(n-1), head, trained on masked bytes of source code.

    Raises:
        ValueError: the width is not a multiple of the number of heads, or there are fewer positions than tokens.
    """
    if config.width % config.heads:
        raise ValueError(f"{name}: width {config.width} is not a multiple of {config.heads} heads")
    if config.positions < config.sequence:
        raise ValueError(f"{name}: {config.positions} positions for {config.sequence} tokens")
    blocks = (LayerSpec(f"block{index}", partial(Block, config)) for index in range(config.blocks))
    layers = (
        LayerSpec("embedding", partial(Embedding, config)),
        *blocks,
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
