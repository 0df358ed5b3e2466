"""Residual LSTMs: layers of Hochreiter and Schmidhuber 1997, stacked with skips as in GNMT (Wu et al. 2016,
arXiv:1609.08144, section 3.1) and in Prakash et al. 2016 (arXiv:1610.03098). They guess the next byte or a class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from .data_reviews import DEFAULT_LENGTH as REVIEW_LENGTH
from .data_reviews import VOCABULARY as REVIEW_VOCABULARY
from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


@dataclass(frozen=True)
class LSTMConfig:
    """Shapes of one model: `layers` LSTM layers of `width` cells on `sequence` tokens.

    Attributes:
        classes: of a sequence; 0: the model guesses each next token.
        data: name of its data set; None: bytes of source code.
    """

    layers: int
    width: int
    sequence: int
    vocabulary: int = 256
    dropout: float = 0.0
    classes: int = 0
    data: str | None = None


class ResidualLSTM(nn.Module):
    """One LSTM layer around a skip, from a zero state: (batch, time, width) -> (batch, time, width)."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.lstm = nn.LSTM(config.width, config.width, batch_first=True)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.ones_(self.lstm.get_parameter("bias_ih_l0").data[config.width : 2 * config.width])  # Gers et al. 2000

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.dropout(self.lstm(x)[0])
        return y


def embedding(config: LSTMConfig) -> nn.Module:
    """(batch, time) int64 -> (batch, time, width)."""
    return nn.Embedding(config.vocabulary, config.width)


class Last(nn.Module):
    """(batch, time, width) -> (batch, width): the state after the last token."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


def head(config: LSTMConfig) -> nn.Module:
    """(batch, time, width) -> (batch, time, vocabulary) logits, or (batch, classes)."""
    if config.classes:
        return nn.Sequential(Last(), nn.LayerNorm(config.width), nn.Linear(config.width, config.classes))
    return nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary))


def lstm(name: str, config: LSTMConfig) -> LayeredModel:
    """The chain embedding, lstm0 .. lstm(n-1), head."""
    layers = (
        LayerSpec("embedding", partial(embedding, config)),
        *(LayerSpec(f"lstm{index}", partial(ResidualLSTM, config)) for index in range(config.layers)),
        LayerSpec("head", partial(head, config)),
    )
    return LayeredModel(name, layers, cross_entropy, config.data or f"stdlib:{config.sequence}")


CONFIGS = {
    "lstm-tiny": LSTMConfig(layers=4, width=32, sequence=16),
    "lstm-small": LSTMConfig(layers=6, width=256, sequence=128, dropout=0.1),
    "lstm-reviews": LSTMConfig(
        layers=4,
        width=32,
        sequence=REVIEW_LENGTH,
        vocabulary=REVIEW_VOCABULARY,
        classes=2,
        data=f"reviews:{REVIEW_LENGTH}",
    ),
    "residual-lstm": LSTMConfig(
        layers=8, width=512, sequence=400, vocabulary=20_000, dropout=0.2, classes=2, data="random-tokens:400x20000/0x2"
    ),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {name: partial(lstm, name, config) for name, config in CONFIGS.items()}
