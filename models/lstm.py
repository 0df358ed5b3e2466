"""Residual LSTM language models: layers of Hochreiter and Schmidhuber 1997, stacked with skips as in GNMT
(Wu et al. 2016, arXiv:1609.08144, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


@dataclass(frozen=True)
class LSTMConfig:
    """Shapes of one model: `layers` LSTM layers of `width` cells on `sequence` tokens."""

    layers: int
    width: int
    sequence: int
    vocabulary: int = 256
    dropout: float = 0.0


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


def head(config: LSTMConfig) -> nn.Module:
    """(batch, time, width) -> (batch, time, vocabulary) logits."""
    return nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary))


def lstm(name: str, config: LSTMConfig) -> LayeredModel:
    """The chain embedding, lstm0 .. lstm(n-1), head, trained on bytes of source code."""
    layers = (
        LayerSpec("embedding", partial(embedding, config)),
        *(LayerSpec(f"lstm{index}", partial(ResidualLSTM, config)) for index in range(config.layers)),
        LayerSpec("head", partial(head, config)),
    )
    return LayeredModel(name, layers, cross_entropy, f"stdlib:{config.sequence}")


CONFIGS = {
    "lstm-tiny": LSTMConfig(layers=4, width=32, sequence=16),
    "lstm-small": LSTMConfig(layers=6, width=256, sequence=128, dropout=0.1),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {name: partial(lstm, name, config) for name, config in CONFIGS.items()}
