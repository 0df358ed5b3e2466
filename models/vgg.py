"""Convolutions in a row: AlexNet in its one-column form (Krizhevsky 2014, arXiv:1404.5997) and VGG-16 (Simonyan and
Zisserman 2015, arXiv:1409.1556, configuration D), and small ones for images of 28x28. No response normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


@dataclass(frozen=True)
class Conv:
    """A convolution of square `kernel`, and the side of the max pooling of stride 2 behind it, 0: none."""

    outputs: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    pool: int = 0


@dataclass(frozen=True)
class VGGConfig:
    """Shapes of one network.

    Attributes:
        channels: of the images.
        convolutions: in order; `grid` is the side of the images that the last one leaves.
        hidden: widths of the fully connected layers before the last, which has `classes`.
        dropouts: rate in front of every fully connected layer.
        data: name of its data set.
    """

    channels: int
    convolutions: tuple[Conv, ...]
    grid: int
    hidden: tuple[int, ...]
    classes: int
    dropouts: tuple[float, ...]
    data: str


def convolution(inputs: int, conv: Conv, activated: bool) -> nn.Module:
    """(batch, inputs, h, w) -> (batch, outputs, ..): a ReLU if `activated`, the convolution, and ReLU and pooling.

    A ReLU without pooling opens the next layer: what it saves is also what the next convolution reads, so a cut
    duplicates nothing. With pooling it stays in front of it: what is sent on is the smaller image.
    """
    made = nn.Conv2d(inputs, conv.outputs, conv.kernel, conv.stride, conv.padding)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    assert made.bias is not None
    nn.init.zeros_(made.bias)
    closing = [nn.ReLU(), nn.MaxPool2d(conv.pool, 2)] if conv.pool else []
    return nn.Sequential(*([nn.ReLU()] if activated else []), made, *closing)


def dense(inputs: int, outputs: int, dropout: float, first: bool, activated: bool) -> nn.Module:
    """(batch, inputs) -> (batch, outputs), the first one from images: what is before the Linear opens the layer."""
    opening: list[nn.Module] = [nn.ReLU()] if activated else []
    opening += [nn.Flatten()] if first else []
    opening += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*opening, nn.Linear(inputs, outputs))


def vgg(name: str, config: VGGConfig) -> LayeredModel:
    """The chain conv0 .., dense0 ..: one layer for every convolution and every fully connected layer."""
    layers, inputs, pooled = [], config.channels, True
    for index, conv in enumerate(config.convolutions):
        layers.append(LayerSpec(f"conv{index}", partial(convolution, inputs, conv, not pooled)))
        inputs, pooled = conv.outputs, conv.pool > 0
    inputs *= config.grid**2
    for index, (outputs, dropout) in enumerate(zip((*config.hidden, config.classes), config.dropouts, strict=True)):
        activated = index > 0 or not pooled
        layers.append(LayerSpec(f"dense{index}", partial(dense, inputs, outputs, dropout, index == 0, activated)))
        inputs = outputs
    return LayeredModel(name, tuple(layers), cross_entropy, config.data)


def _blocks(*blocks: tuple[int, ...]) -> tuple[Conv, ...]:
    """VGG's 3x3 convolutions with the given outputs, pooled at the end of every block."""
    return tuple(Conv(n, pool=2 * (k == len(block) - 1)) for block in blocks for k, n in enumerate(block))


CONFIGS = {
    "alexnet-tiny": VGGConfig(
        channels=1,
        convolutions=(Conv(16, 5, 1, 2, pool=3), Conv(32, 5, 1, 2, pool=3), Conv(48), Conv(32), Conv(32, pool=3)),
        grid=2,
        hidden=(128, 64),
        classes=10,
        dropouts=(0.0, 0.0, 0.0),
        data="fashion-mnist-images:8000/5000",
    ),
    "vgg-tiny": VGGConfig(
        channels=1,
        convolutions=_blocks((8,), (16, 16), (32,)),
        grid=3,
        hidden=(64,),
        classes=10,
        dropouts=(0.0, 0.0),
        data="fashion-mnist-images:8000/5000",
    ),
    "vgg-16": VGGConfig(
        channels=3,
        convolutions=_blocks((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
        grid=7,
        hidden=(4096, 4096),
        classes=1000,
        dropouts=(0.0, 0.5, 0.5),
        data="random-images:3x224/1000",
    ),
    "alexnet": VGGConfig(
        channels=3,
        convolutions=(Conv(64, 11, 4, 2, pool=3), Conv(192, 5, 1, 2, pool=3), Conv(384), Conv(256), Conv(256, pool=3)),
        grid=6,
        hidden=(4096, 4096),
        classes=1000,
        dropouts=(0.5, 0.5, 0.0),
        data="random-images:3x224/1000",
    ),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {name: partial(vgg, name, config) for name, config in CONFIGS.items()}
