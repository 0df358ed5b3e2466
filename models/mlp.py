"""Multi-layer perceptrons on the digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import nn

from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


def mlp(name: str, widths: tuple[int, ...]) -> LayeredModel:
    """The chain layer0, layer1, ..: a Linear, then an activation and a Linear each.

    The activation opens a layer rather than closing it: what it saves is then also what its Linear reads,
    and cutting anywhere duplicates nothing.
    """
    layers = tuple(
        LayerSpec(f"layer{index}", partial(dense, inputs, outputs, index > 0))
        for index, (inputs, outputs) in enumerate(pairwise(widths))
    )
    return LayeredModel(name, layers, cross_entropy, "digits")


def dense(inputs: int, outputs: int, activated: bool) -> nn.Module:
    """(batch, inputs) -> (batch, outputs)."""
    linear = nn.Linear(inputs, outputs)
    return nn.Sequential(nn.ReLU(), linear) if activated else linear


PRESETS: dict[str, Callable[[], LayeredModel]] = {
    "mlp-tiny": partial(mlp, "mlp-tiny", (64, 32, 32, 32, 10)),
    "mlp-deep": partial(mlp, "mlp-deep", (64, *(32,) * 7, 10)),
    "mlp": partial(mlp, "mlp", (64, 256, 256, 256, 256, 256, 256, 10)),
}
