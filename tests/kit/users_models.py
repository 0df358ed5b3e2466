"""Models and data as users write them: random numbers from anywhere, parameters in any order, some shared."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from torch import Tensor, nn

from contraflow.models.protocol import LayeredModel, LayerSpec, Tie

WIDTH = 8


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error."""
    return ((output - target) ** 2).mean()


class Drawn(nn.Module):
    """Weights from numpy, a bias from Python's generator, and a scale from torch's that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(np.random.randn(WIDTH, WIDTH).astype(np.float32) / 3))  # noqa: NPY002
        self.bias = nn.Parameter(torch.tensor([random.random() for _ in range(WIDTH)]))
        self.register_buffer("scale", torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight + self.bias) * self.scale


class ByTheClock(nn.Module):
    """Other weights whenever it is built."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(time.perf_counter_ns())
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / 3)
        self.register_buffer("scale", torch.rand(WIDTH, generator=generator) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight) * self.scale


class Unregistered(nn.Module):
    """A tensor that is neither parameter nor buffer, another one whenever it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.shift = torch.full((WIDTH,), float(time.perf_counter_ns() % 1000))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x) + self.shift)


class Turning(nn.Module):
    """Registers its parameters in another order whenever it is built, as from a set; they have one shape."""

    turn = False

    def __init__(self) -> None:
        super().__init__()
        Turning.turn = not Turning.turn
        for name in ("p", "q") if Turning.turn else ("q", "p"):
            self.register_parameter(name, nn.Parameter(torch.full((WIDTH,), 0.1 if name == "p" else 0.9)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.p) + self.q


class Two(nn.Module):
    """Two weights of one shape, of which the first may be tied."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Linear(WIDTH, WIDTH, bias=False)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.q(torch.tanh(self.p(x)))
        return hidden


class Normal:
    """Samples that follow from their place."""

    name = "normal"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed * 10_000 + step * 100 + micro_batch)
        return torch.randn(size, WIDTH, generator=generator), torch.randn(size, WIDTH, generator=generator)


class FromDefaults:
    """Samples from the default generators, whatever the arguments."""

    name = "from-defaults"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.from_numpy(np.random.randn(size, WIDTH).astype(np.float32))  # noqa: NPY002
        return inputs, torch.rand(size, WIDTH) + random.random()


class Ever:
    """Other samples whenever it is asked."""

    name = "ever-new"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(time.perf_counter_ns())
        return torch.randn(size, WIDTH, generator=generator), torch.randn(size, WIDTH, generator=generator)


class OwnTargets(Normal):
    """Targets that are not those of its batches."""

    name = "own-targets"

    def targets(self, seed: int, step: int, micro_batch: int, size: int) -> Tensor:
        return torch.zeros(size, WIDTH)


def chain(*kinds: type[nn.Module], data: object = None, ties: tuple[Tie, ...] = ()) -> LayeredModel:
    """Layers "a", "b", ... of these classes."""
    layers = tuple(LayerSpec(chr(ord("a") + k), kind) for k, kind in enumerate(kinds))
    return LayeredModel("own", layers, loss, data or Normal(), ties)  # type: ignore[arg-type]


def drawn() -> LayeredModel:
    """By name: every process makes its own."""
    return chain(Drawn, Drawn, Drawn, data=FromDefaults())


def modules() -> list[nn.Module]:
    """A function that draws while it builds; called anew for every layer."""
    shift = float(np.random.rand()) + random.random()  # noqa: NPY002
    return [nn.Sequential(Drawn(), nn.Dropout(shift / 10)) for _ in range(3)]


modules.loss = loss  # type: ignore[attr-defined]
modules.data = FromDefaults()  # type: ignore[attr-defined]
tied = Tie((("a", "p.weight"), ("b", "p.weight")))
