"""Residual networks (He et al. 2015) with BatchNorm on 8x8 images of digits."""

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
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.skip = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        activated: Tensor = self.relu(y + self.skip(x))
        return activated


def _conv(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def stem(outputs: int) -> nn.Module:
    """(batch, 1, 8, 8) -> (batch, outputs, 8, 8)."""
    return nn.Sequential(_conv(1, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def head(inputs: int) -> nn.Module:
    """(batch, inputs, h, w) -> (batch, 10) logits."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


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


PRESETS: dict[str, Callable[[], LayeredModel]] = {
    "resnet-tiny": partial(resnet, "resnet-tiny", (8, 8, 16, 16)),
}
