"""Residual networks with BatchNorm (He et al. 2015, arXiv:1512.03385): ResNet-101, and small ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip: (batch, inputs, h, w) -> (batch, outputs, h/stride, w/stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.skip = _skip(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        activated: Tensor = self.relu(y + self.skip(x))
        return activated


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a skip: (batch, inputs, h, w) -> (batch, 4 * width, h/stride, w/stride).

    The 3x3 convolution has the stride, as in the networks whose weights are in use; the paper's first one has.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.skip = _skip(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        activated: Tensor = self.relu(y + self.skip(x))
        return activated


def _conv(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def _skip(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Past the convolutions: the input itself, or a projection where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def stem(outputs: int) -> nn.Module:
    """(batch, 1, 8, 8) -> (batch, outputs, 8, 8)."""
    return nn.Sequential(_conv(1, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def large_stem() -> nn.Module:
    """(batch, 3, 224, 224) -> (batch, 64, 56, 56)."""
    conv = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1))


def head(inputs: int, classes: int = 10) -> nn.Module:
    """(batch, inputs, h, w) -> (batch, classes) logits."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet(name: str, widths: tuple[int, ...]) -> LayeredModel:
    """The chain stem, block0 .., head; a block that changes the width halves the image."""
    blocks = []
    for index, (inputs, outputs) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        stride = 1 if inputs == outputs else 2
        blocks.append(LayerSpec(f"block{index}", partial(BasicBlock, inputs, outputs, stride)))
    layers = (
        LayerSpec("stem", partial(stem, widths[0])),
        *blocks,
        LayerSpec("head", partial(head, widths[-1])),
    )
    return LayeredModel(name, layers, cross_entropy, "digits-images")


def deep_resnet(name: str, repeats: tuple[int, ...]) -> LayeredModel:
    """The chain stem, block0 .., head on 224x224 images: `repeats` bottlenecks of width 64, 128, .. each."""
    blocks: list[LayerSpec] = []
    inputs = 64
    for group, count in enumerate(repeats):
        for index in range(count):
            stride = 2 if group > 0 and index == 0 else 1
            blocks.append(LayerSpec(f"block{len(blocks)}", partial(Bottleneck, inputs, 64 << group, stride)))
            inputs = 4 * (64 << group)
    layers = (LayerSpec("stem", large_stem), *blocks, LayerSpec("head", partial(head, inputs, 1000)))
    return LayeredModel(name, layers, cross_entropy, "random-images:3x224/1000")


PRESETS: dict[str, Callable[[], LayeredModel]] = {
    "resnet-tiny": partial(resnet, "resnet-tiny", (8, 8, 16, 16)),
    "resnet-101": partial(deep_resnet, "resnet-101", (3, 4, 23, 3)),
}
