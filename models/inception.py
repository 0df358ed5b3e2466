"""Networks of branching modules: GoogLeNet (Szegedy et al. 2015, arXiv:1409.4842) and Inception-V3 (Szegedy et al.
2016, arXiv:1512.00567), without auxiliary classifiers, and small ones for images of 28x28.

GoogLeNet is the form whose weights are in use: BatchNorm, and 3x3 where the paper has 5x5 convolutions. A module is one
layer with its branches inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


class Conv(NamedTuple):
    """A convolution without bias, BatchNorm and ReLU; one odd kernel side keeps the image's size unless `valid`."""

    outputs: int
    kernel: int | tuple[int, int] = 1
    stride: int = 1
    valid: bool = False


class Pool(NamedTuple):
    """Pooling of 3x3, or of `kernel`."""

    kind: type[nn.MaxPool2d] | type[nn.AvgPool2d]
    stride: int = 1
    kernel: int = 3
    padding: int = 0
    ceil: bool = False


class Fork(NamedTuple):
    """Branches over the same input, whose outputs are put together along the channels."""

    branches: tuple[tuple[Step, ...], ...]


Step = Conv | Pool | Fork


class Concatenate(nn.Module):
    """(batch, inputs, h, w) -> (batch, sum of the branches' outputs, h', w')."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def outputs_of(steps: Sequence[Step], inputs: int) -> int:
    """Channels behind the steps."""
    for step in steps:
        if isinstance(step, Conv):
            inputs = step.outputs
        elif isinstance(step, Fork):
            entering = inputs
            inputs = sum(outputs_of(branch, entering) for branch in step.branches)
    return inputs


def build(steps: Sequence[Step], inputs: int) -> nn.Module:
    """The steps one after another: (batch, inputs, h, w) -> (batch, outputs, h', w')."""
    made = []
    for step in steps:
        made.append(_build_step(step, inputs))
        inputs = outputs_of([step], inputs)
    return made[0] if len(made) == 1 else nn.Sequential(*made)


def _build_step(step: Step, inputs: int) -> nn.Module:
    if isinstance(step, Fork):
        return Concatenate([build(branch, inputs) for branch in step.branches])
    if isinstance(step, Pool):
        if step.kind is nn.MaxPool2d:
            return nn.MaxPool2d(step.kernel, step.stride, step.padding, ceil_mode=step.ceil)
        return nn.AvgPool2d(step.kernel, step.stride, step.padding)
    sides = (step.kernel, step.kernel) if isinstance(step.kernel, int) else step.kernel
    padding = (0, 0) if step.valid else (sides[0] // 2, sides[1] // 2)
    conv = nn.Conv2d(inputs, step.outputs, sides, step.stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(step.outputs, eps=0.001), nn.ReLU(inplace=True))


def head(inputs: int, classes: int, dropout: float) -> nn.Module:
    """(batch, inputs, h, w) -> (batch, classes) logits."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(inputs, classes))


Chain = tuple[tuple[str, tuple[Step, ...]], ...]


def inception(name: str, channels: int, chain: Chain, classes: int, dropout: float, data: str) -> LayeredModel:
    """A layer for every named entry of `chain`, and the head."""
    layers = []
    for layer, steps in chain:
        layers.append(LayerSpec(layer, partial(build, steps, channels)))
        channels = outputs_of(steps, channels)
    layers.append(LayerSpec("head", partial(head, channels, classes, dropout)))
    return LayeredModel(name, tuple(layers), cross_entropy, data)


def v1(a: int, b1: int, b: int, c1: int, c: int, pool: int) -> Fork:
    """GoogLeNet's module: 1x1, two reduced 3x3 branches, and pooling with a projection (its table 1's columns)."""
    pooled = (Pool(nn.MaxPool2d, padding=1, ceil=True), Conv(pool))
    return Fork(((Conv(a),), (Conv(b1), Conv(b, 3)), (Conv(c1), Conv(c, 3)), pooled))


_HALVE = Pool(nn.MaxPool2d, 2, ceil=True)
GOOGLENET: Chain = (
    ("conv1", (Conv(64, 7, 2), _HALVE)),
    ("conv2", (Conv(64),)),
    ("conv3", (Conv(192, 3), _HALVE)),
    ("inception3a", (v1(64, 96, 128, 16, 32, 32),)),
    ("inception3b", (v1(128, 128, 192, 32, 96, 64), _HALVE)),
    ("inception4a", (v1(192, 96, 208, 16, 48, 64),)),
    ("inception4b", (v1(160, 112, 224, 24, 64, 64),)),
    ("inception4c", (v1(128, 128, 256, 24, 64, 64),)),
    ("inception4d", (v1(112, 144, 288, 32, 64, 64),)),
    ("inception4e", (v1(256, 160, 320, 32, 128, 128), Pool(nn.MaxPool2d, 2, kernel=2, ceil=True))),
    ("inception5a", (v1(256, 160, 320, 32, 128, 128),)),
    ("inception5b", (v1(384, 192, 384, 48, 128, 128),)),
)

_AVERAGE = Pool(nn.AvgPool2d, padding=1)
_REDUCE = Pool(nn.MaxPool2d, 2)


def v3_35(pool: int) -> Fork:
    """A module on 35x35: figure 5 of the paper, with one 5x5 branch."""
    twice = (Conv(64), Conv(96, 3), Conv(96, 3))
    return Fork(((Conv(64),), (Conv(48), Conv(64, 5)), twice, (_AVERAGE, Conv(pool))))


def v3_17(n: int) -> Fork:
    """A module on 17x17: 7x7 as rows and columns, `n` channels wide (figure 6)."""
    row, column = (1, 7), (7, 1)
    once = (Conv(n), Conv(n, row), Conv(192, column))
    twice = (Conv(n), Conv(n, column), Conv(n, row), Conv(n, column), Conv(192, row))
    return Fork(((Conv(192),), once, twice, (_AVERAGE, Conv(192))))


def v3_8() -> Fork:
    """A module on 8x8, whose branches fork once more (figure 7)."""
    fork = Fork(((Conv(384, (1, 3)),), (Conv(384, (3, 1)),)))
    return Fork(((Conv(320),), (Conv(384), fork), (Conv(448), Conv(384, 3), fork), (_AVERAGE, Conv(192))))


_TO_17 = Fork(((Conv(384, 3, 2, True),), (Conv(64), Conv(96, 3), Conv(96, 3, 2, True)), (_REDUCE,)))
_TO_8_ONCE = (Conv(192), Conv(320, 3, 2, True))
_TO_8_TWICE = (Conv(192), Conv(192, (1, 7)), Conv(192, (7, 1)), Conv(192, 3, 2, True))
INCEPTION_V3: Chain = (
    ("conv1a", (Conv(32, 3, 2, True),)),
    ("conv2a", (Conv(32, 3, 1, True),)),
    ("conv2b", (Conv(64, 3), _REDUCE)),
    ("conv3b", (Conv(80),)),
    ("conv4a", (Conv(192, 3, 1, True), _REDUCE)),
    ("mixed5b", (v3_35(32),)),
    ("mixed5c", (v3_35(64),)),
    ("mixed5d", (v3_35(64),)),
    ("mixed6a", (_TO_17,)),
    ("mixed6b", (v3_17(128),)),
    ("mixed6c", (v3_17(160),)),
    ("mixed6d", (v3_17(160),)),
    ("mixed6e", (v3_17(192),)),
    ("mixed7a", (Fork((_TO_8_ONCE, _TO_8_TWICE, (_REDUCE,))),)),
    ("mixed7b", (v3_8(),)),
    ("mixed7c", (v3_8(),)),
)
TINY: Chain = (
    ("conv1", (Conv(8, 3, 2),)),
    ("inception1", (v1(8, 8, 8, 4, 4, 4),)),
    ("inception2", (v1(8, 8, 12, 4, 8, 4), _HALVE)),
    ("inception3", (v1(16, 8, 16, 4, 8, 8),)),
)
_TINY_ROWS = (Conv(8), Conv(12, (1, 7)), Conv(16, (7, 1)))
_TINY_FORK = Fork(((Conv(12, (1, 3)),), (Conv(12, (3, 1)),)))
TINY_V3: Chain = (
    ("conv1", (Conv(8, 3, 2),)),
    ("mixed5", (Fork(((Conv(8),), (Conv(6), Conv(8, 5)), (Conv(8), Conv(12, 3), Conv(12, 3)), (_AVERAGE, Conv(4)))),)),
    ("mixed6a", (Fork(((Conv(16, 3, 2, True),), (Conv(8), Conv(12, 3), Conv(12, 3, 2, True)), (_REDUCE,))),)),
    ("mixed6b", (Fork(((Conv(16),), _TINY_ROWS, (_AVERAGE, Conv(16)))),)),
    ("mixed7", (Fork(((Conv(16),), (Conv(12), _TINY_FORK), (_AVERAGE, Conv(12)))),)),
)
PRESETS: dict[str, Callable[[], LayeredModel]] = {
    "googlenet-tiny": partial(inception, "googlenet-tiny", 1, TINY, 10, 0.0, "mnist-5k-images"),
    "inception-tiny": partial(inception, "inception-tiny", 1, TINY_V3, 10, 0.0, "fashion-mnist-images:8000/5000"),
    "googlenet": partial(inception, "googlenet", 3, GOOGLENET, 1000, 0.2, "random-images:3x224/1000"),
    "inception-v3": partial(inception, "inception-v3", 3, INCEPTION_V3, 1000, 0.5, "random-images:3x299/1000"),
}
