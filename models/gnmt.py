"""GNMT (Wu et al. 2016, arXiv:1609.08144) in the form of MLPerf Training's translation model: an LSTM encoder whose
first layer is bidirectional, and an LSTM decoder whose first layer attends and hands what it found to all others.

As a chain, one tensor passes between layers: rows of `width` numbers, of several kinds one after another. S and T are
the source's and the target's tokens:

| between | rows |
|---|---|
| embedding .. encoder0 and encoder1 .. decoder0 | S source states, T embedded target words |
| encoder0 and encoder1 | S states of the forward LSTM, S of the backward one, T embedded target words |
| decoder0 .. the last decoder layer | T decoder states, T contexts |
| the last decoder layer and the head | T decoder states |

So the target's words travel with the encoder's messages. Source and target have fixed lengths: padding is a word like
others to the encoder and to attention, and the loss leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data_verses import DEFAULT_LENGTH as VERSE_LENGTH
from .data_verses import VOCABULARY as VERSE_VOCABULARY
from .protocol import LayeredModel, LayerSpec
from .words import PADDING


@dataclass(frozen=True)
class GNMTConfig:
    """Shapes of one model.

    Attributes:
        layers: of the encoder and as many of the decoder, 2 at least.
        source, target: tokens of either.
        vocabulary: words of either language.
        shared: whether both languages have one vocabulary and so one embedding.
        dropout: in front of every LSTM.
        data: name of its data set: inputs (batch, source + target), targets (batch, target).
    """

    layers: int
    width: int
    source: int
    target: int
    vocabulary: int
    shared: bool
    dropout: float
    data: str


class Embedding(nn.Module):
    """(batch, S + T) int64 -> (batch, S + T, width)."""

    def __init__(self, config: GNMTConfig) -> None:
        super().__init__()
        self.source_tokens = config.source
        made = [nn.Embedding(config.vocabulary, config.width) for _ in range(1 if config.shared else 2)]
        for table in made:
            nn.init.uniform_(table.weight, -_SPREAD, _SPREAD)
        self.tables = nn.ModuleList(made)

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.tables) == 1:
            embedded: Tensor = self.tables[0](tokens)
            return embedded
        source, target = tokens[:, : self.source_tokens], tokens[:, self.source_tokens :]
        return torch.cat([self.tables[0](source), self.tables[1](target)], 1)


class Bidirectional(nn.Module):
    """The first encoder layer: (batch, S + T, width) -> (batch, 2 S + T, width)."""

    def __init__(self, config: GNMTConfig) -> None:
        super().__init__()
        self.source_tokens, self.width = config.source, config.width
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = _lstm(config.width, config.width, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        source, target = x[:, : self.source_tokens], x[:, self.source_tokens :]
        both = self.lstm(self.dropout(source))[0]
        return torch.cat([both[..., : self.width], both[..., self.width :], target], 1)


class EncoderLayer(nn.Module):
    """An encoder layer: (batch, S + T, width) -> the same, around a skip.

    The one behind the bidirectional layer (`joins`) takes 2 S + T rows and has no skip.
    """

    def __init__(self, config: GNMTConfig, joins: bool) -> None:
        super().__init__()
        self.source_tokens, self.joins = config.source, joins
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = _lstm((1 + joins) * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        s = self.source_tokens
        if self.joins:
            entering, target = torch.cat([x[:, :s], x[:, s : 2 * s]], 2), x[:, 2 * s :]
            return torch.cat([self.lstm(self.dropout(entering))[0], target], 1)
        entering, target = x[:, :s], x[:, s:]
        return torch.cat([entering + self.lstm(self.dropout(entering))[0], target], 1)


class Attention(nn.Module):
    """Normalised additive attention (Bahdanau et al. 2015; Luong et al. 2017).

    Queries (batch, T, width) and keys (batch, S, width), which are the values too, -> contexts (batch, T, width).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.score = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.full((1,), width**-0.5))
        for weight in (self.query.weight, self.key.weight, self.score):
            nn.init.uniform_(weight, -_SPREAD, _SPREAD)

    def forward(self, states: Tensor, keys: Tensor) -> Tensor:
        summed = self.query(states)[:, :, None] + self.key(keys)[:, None] + self.bias
        direction = self.score * (self.scale / self.score.norm())
        scores = torch.matmul(torch.tanh(summed), direction)
        return torch.matmul(scores.softmax(2), keys)


class FirstDecoderLayer(nn.Module):
    """The LSTM over the target's words, and what its states attend to: (batch, S + T, width) -> (batch, 2 T, width)."""

    def __init__(self, config: GNMTConfig) -> None:
        super().__init__()
        self.source_tokens = config.source
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = _lstm(config.width, config.width)
        self.attention = Attention(config.width)

    def forward(self, x: Tensor) -> Tensor:
        source, target = x[:, : self.source_tokens], x[:, self.source_tokens :]
        states = self.lstm(self.dropout(target))[0]
        return torch.cat([states, self.attention(states, source)], 1)


class DecoderLayer(nn.Module):
    """An LSTM over states beside contexts: (batch, 2 T, width) -> the same; the contexts stay, the `last` drops them.

    All but the `first` of these are around a skip.
    """

    def __init__(self, config: GNMTConfig, first: bool, last: bool) -> None:
        super().__init__()
        self.target_tokens, self.first, self.last = config.target, first, last
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = _lstm(2 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        states, contexts = x[:, : self.target_tokens], x[:, self.target_tokens :]
        made = self.lstm(torch.cat([self.dropout(states), contexts], 2))[0]
        made = made if self.first else states + made
        return made if self.last else torch.cat([made, contexts], 1)


_SPREAD = 0.1
"""Parameters are drawn uniformly from -0.1 to 0.1, as MLPerf's are."""


def _lstm(inputs: int, width: int, bidirectional: bool = False) -> nn.LSTM:
    made = nn.LSTM(inputs, width, batch_first=True, bidirectional=bidirectional)
    for parameter in made.parameters():
        nn.init.uniform_(parameter, -_SPREAD, _SPREAD)
    return made


def head(config: GNMTConfig) -> nn.Module:
    """(batch, T, width) -> (batch, T, vocabulary) logits."""
    made = nn.Linear(config.width, config.vocabulary)
    for parameter in made.parameters():
        nn.init.uniform_(parameter, -_SPREAD, _SPREAD)
    return made


def translation_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of logits (batch, T, vocabulary) against (batch, T) int64 words but PADDING: a scalar."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=PADDING)


def gnmt(name: str, config: GNMTConfig) -> LayeredModel:
    """The chain embedding, encoder0 .., decoder0 .., head.

    Raises:
        ValueError: fewer than 2 layers of either.
    """
    if config.layers < 2:
        raise ValueError(f"{name}: {config.layers} layers of encoder and decoder, at least 2 are needed")
    encoders = (partial(EncoderLayer, config, index == 1) for index in range(1, config.layers))
    decoders = (partial(DecoderLayer, config, k == 1, k == config.layers - 1) for k in range(1, config.layers))
    layers = (
        LayerSpec("embedding", partial(Embedding, config)),
        LayerSpec("encoder0", partial(Bidirectional, config)),
        *(LayerSpec(f"encoder{index}", build) for index, build in enumerate(encoders, start=1)),
        LayerSpec("decoder0", partial(FirstDecoderLayer, config)),
        *(LayerSpec(f"decoder{index}", build) for index, build in enumerate(decoders, start=1)),
        LayerSpec("head", partial(head, config)),
    )
    return LayeredModel(name, layers, translation_loss, config.data)


def _published(layers: int) -> GNMTConfig:
    """MLPerf's shapes: 1,024 cells, 32,320 word pieces of both languages together, at most 50 a sentence."""
    return GNMTConfig(layers, 1024, 50, 50, 32_320, True, 0.2, "random-tokens:100x32320/50x32320")


def _on_verses(layers: int) -> GNMTConfig:
    return GNMTConfig(layers, 64, VERSE_LENGTH, VERSE_LENGTH, VERSE_VOCABULARY, False, 0.0, f"verses:{VERSE_LENGTH}")


CONFIGS = {
    "gnmt-tiny": _on_verses(3),
    "gnmt-tiny-deep": _on_verses(5),
    # PipeDream's names (Narayanan et al. 2019, table 1) count LSTM layers of encoder and decoder together.
    "gnmt-8": _published(4),
    "gnmt-16": _published(8),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {name: partial(gnmt, name, config) for name, config in CONFIGS.items()}
