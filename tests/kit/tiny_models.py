"""Models of every kind that train in milliseconds, by the names `tiny_models:NAME`; the same object each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

from contraflow.models import LayeredModel, LayerSpec, Tie, cross_entropy, derive_seed
from contraflow.models.gpt import MLP, Embedding, GPTConfig, Head, SelfAttention
from contraflow.models.lstm import LSTMConfig, ResidualLSTM
from contraflow.models.resnet import BasicBlock

WIDTH = 6
CLASSES = 5
SAMPLES = 3
"""Of a full micro-batch: two are left for BatchNorm where the last one has fewer."""
TOKENS = 7
GPT = GPTConfig(blocks=3, width=8, heads=2, sequence=4, vocabulary=TOKENS, dropout=0.1, tied=True)
LSTM = LSTMConfig(layers=2, width=WIDTH, sequence=3, vocabulary=TOKENS, dropout=0.2)


# ------------------------------------------------------------------ layers


class Twice(nn.Module):
    """One matrix, applied twice, once transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x @ self.weight) @ self.weight.t()


class Pair(nn.Module):
    """Two matrices of one shape: `first` may be tied while `second` is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.second(torch.tanh(self.first(x)))
        return found


class Adapted(nn.Module):
    """A frozen linear layer beside a trained one of low rank, as LoRA has it."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        if not trained:
            self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x) + self.up(self.down(x)))


def dense(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Module:
    """A linear layer before a tanh."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


def leave() -> nn.Module:
    """A linear layer."""
    return nn.Linear(WIDTH, WIDTH)


def normed() -> nn.Module:
    """A linear layer, BatchNorm and GELU."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU())


def dropping(inputs: int = WIDTH) -> nn.Module:
    """A linear layer, dropout and a LayerNorm."""
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.Dropout(0.3), nn.LayerNorm(WIDTH))


def stem() -> nn.Module:
    """(batch, 2, 4, 4) -> (batch, 3, 4, 4)."""
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())


def pooled() -> nn.Module:
    """(batch, 4, h, w) -> (batch, classes)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))


def tokens(width: int) -> nn.Module:
    """(batch, time) int64 -> (batch, time, width)."""
    return nn.Embedding(TOKENS, width)


# ------------------------------------------------------------------ data


@dataclass(frozen=True)
class Noise:
    """Random inputs and targets, other ones for every position.

    Attributes:
        shape: of one input; of tokens where `of_tokens`.
        classes: of the targets, one a sample or a token; 0: the target is as the input's, but of width `WIDTH`.
    """

    shape: tuple[int, ...] = (WIDTH,)
    classes: int = 0
    of_tokens: bool = False

    @property
    def name(self) -> str:
        """As its arguments say."""
        return f"{type(self).__name__.lower()}:{self.shape}:{self.classes}:{self.of_tokens}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """See `Dataset`."""
        generator = torch.Generator().manual_seed(derive_seed(seed, step, micro_batch))
        shape, targets = (size, *self.shape), self.targets(seed, step, micro_batch, size)
        if self.of_tokens:
            return torch.randint(TOKENS, shape, generator=generator), targets
        return torch.randn(shape, generator=generator), targets

    def targets(self, seed: int, step: int, micro_batch: int, size: int) -> Tensor:
        """See `TargetedDataset`."""
        generator = torch.Generator().manual_seed(derive_seed(seed, step, micro_batch, "targets"))
        if self.classes:
            return torch.randint(self.classes, (size, *self.shape) if self.of_tokens else (size,), generator=generator)
        return torch.randn(size, WIDTH, generator=generator)


@dataclass(frozen=True)
class Ending(Noise):
    """The same, where every third step has a sample fewer."""

    def samples(self, step: int, most: int) -> int:
        """See `EndingDataset`."""
        return most - (step % 3 == 1)


def squared(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean squared difference."""
    return ((found - wanted) ** 2).mean()


# ------------------------------------------------------------------ models

Build = Callable[[], nn.Module]


def _model(
    name: str, layers: dict[str, Build], data: Noise | None = None, ties: tuple[Tie, ...] = (), classes: bool = False
) -> LayeredModel:
    specs = tuple(LayerSpec(key, build) for key, build in layers.items())
    return LayeredModel(f"tiny_models:{name}", specs, cross_entropy if classes else squared, data or Noise(), ties)


@cache
def mlp() -> LayeredModel:
    """Six layers; one without parameters, one that uses its parameter twice."""
    layers: dict[str, Build] = {
        "enter": dense, "twice": Twice, "tanh": nn.Tanh, "a": dense, "b": Pair, "leave": leave,
    }  # fmt: skip
    return _model("mlp", layers)


@cache
def deep() -> LayeredModel:
    """Ten equal layers."""
    return _model("deep", {f"l{k}": dense for k in range(10)})


@cache
def tied() -> LayeredModel:
    """Two groups of tied parameters, beside others of the same shape."""
    layers: dict[str, Build] = {f"l{k}": Pair for k in range(6)}
    ties = (
        Tie((("l0", "first.weight"), ("l5", "first.weight"))),
        Tie((("l1", "second.weight"), ("l2", "first.weight"), ("l4", "second.weight"))),
    )
    return _model("tied", layers, ties=ties)


@cache
def gpt() -> LayeredModel:
    """GPT with dropout, its head tied to the embedding."""
    layers: dict[str, Build] = {"embedding": partial(Embedding, GPT)}
    for k in range(GPT.blocks):
        layers |= {f"block{k}.attention": partial(SelfAttention, GPT), f"block{k}.mlp": partial(MLP, GPT)}
    layers["head"] = partial(Head, GPT)
    ties = (Tie((("embedding", "token.weight"), ("head", "out.weight"))),)
    return _model("gpt", layers, Noise((GPT.sequence,), TOKENS, True), ties, classes=True)


@cache
def norm() -> LayeredModel:
    """BatchNorm in most layers."""
    layers: dict[str, Build] = {"enter": dense} | {f"norm{k}": normed for k in range(4)}
    return _model("norm", layers | {"leave": leave})


@cache
def drop() -> LayeredModel:
    """Dropout in every layer but the last."""
    layers: dict[str, Build] = {f"drop{k}": dropping for k in range(4)}
    return _model("drop", layers | {"leave": leave})


@cache
def conv() -> LayeredModel:
    """A small ResNet."""
    layers: dict[str, Build] = {
        "stem": stem, "block0": partial(BasicBlock, 3, 3, 1), "block1": partial(BasicBlock, 3, 4, 2), "head": pooled,
    }  # fmt: skip
    return _model("conv", layers, Noise((2, 4, 4), CLASSES), classes=True)


@cache
def lstm() -> LayeredModel:
    """Residual LSTMs with dropout on tokens."""
    layers: dict[str, Build] = {"embedding": partial(tokens, WIDTH)}
    layers |= {f"lstm{k}": partial(ResidualLSTM, LSTM) for k in range(LSTM.layers)}
    layers["head"] = partial(nn.Linear, WIDTH, TOKENS)
    return _model("lstm", layers, Noise((LSTM.sequence,), TOKENS, True), classes=True)


@cache
def frozen() -> LayeredModel:
    """Frozen weights beside trained ones, and a layer that is frozen altogether."""
    layers: dict[str, Build] = {
        "a": Adapted, "b": partial(Adapted, False), "c": Adapted, "d": dense, "leave": leave,
    }  # fmt: skip
    return _model("frozen", layers)


MODELS: dict[str, Callable[[], LayeredModel]] = {
    "mlp": mlp, "deep": deep, "tied": tied, "gpt": gpt, "norm": norm, "drop": drop, "conv": conv, "lstm": lstm,
    "frozen": frozen,
}  # fmt: skip
NORMED = frozenset({"norm", "conv"})
"""Those with running statistics."""


def ending(data: Noise) -> Ending:
    """The same data, which end."""
    return Ending(data.shape, data.classes, data.of_tokens)
