"""Models that no graph can hold, by the names `untraceable:NAME`; importable in every process that a test spawns."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contraflow.models import LayeredModel, LayerSpec, cross_entropy

WIDTH = 16


class Branching(nn.Module):
    """Another path, with another parameter, for every input: on positive ones longer by `extra` activations."""

    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        if x.sum().item() <= 0:
            return torch.sigmoid(self.down(x)) - 0.5
        x = torch.tanh(self.up(x))
        for _ in range(self.extra):
            x = torch.sin(x) * 2
        return x


class Cube(torch.autograd.Function):
    """x^3 by numpy, which looks at its saved tensor twice and keeps a number beside it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = 3
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        assert ctx.saved_tensors[0] is not None
        (x,) = ctx.saved_tensors
        return grads[0] * torch.from_numpy(ctx.factor * np.square(x.detach().numpy()))


class Masking(torch.autograd.Function):
    """max(x, 0), with its mask kept where torch does not see it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mask = torch.from_numpy(x.detach().numpy() > 0)
        return x * ctx.mask

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.mask


class Applied(nn.Module):
    """A linear layer, dropout, and a custom function."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.function.apply(self.dropout(self.norm(self.linear(x))))  # type: ignore[no-untyped-call]
        return x + y


class Counting(nn.Module):
    """A linear layer that counts in Python how often it ran, and scales by it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.linear(x) * (1 + 1 / self.calls)
        return y


def _chain(name: str, *middle: partial[nn.Module]) -> LayeredModel:
    layers = (
        LayerSpec("stem", partial(nn.Linear, 64, WIDTH)),
        *(LayerSpec(f"layer{i}", build) for i, build in enumerate(middle)),
        LayerSpec("head", partial(nn.Linear, WIDTH, 10)),
    )
    return LayeredModel(f"untraceable:{name}", layers, cross_entropy, "digits")


def branching() -> LayeredModel:
    """Every micro-batch takes a path of its own."""
    return _chain("branching", partial(Branching), partial(nn.ReLU), partial(Branching), partial(nn.Tanh))


def growing() -> LayeredModel:
    """Some micro-batches leave a far larger stash than others."""
    return _chain("growing", partial(nn.Tanh), partial(Branching, 20))


def custom() -> LayeredModel:
    """Custom functions in numpy, with BatchNorm and dropout around them."""
    return _chain("custom", partial(Applied, Cube), partial(nn.Tanh), partial(Applied, Cube))


def hiding() -> LayeredModel:
    """A custom function that keeps a tensor to itself."""
    return _chain("hiding", partial(nn.Tanh), partial(Applied, Masking))


def counting() -> LayeredModel:
    """Can be traced, but not rightly."""
    return _chain("counting", partial(nn.Tanh), partial(Counting))


def nonsense() -> LayeredModel:
    """No engine runs a layer that changes the stage's input in place and looks at it."""
    return _chain("nonsense", partial(nn.Tanh), partial(_Spoiling))


class _Spoiling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * x.sum().item()
