"""Multi-layer perceptrons on the digits and on Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import nn

from .loss import cross_entropy
from .protocol import LayeredModel, LayerSpec


def mlp(name: str, widths: tuple[int, ...], data: str = "digits", he: bool = False) -> LayeredModel:
    """The chain layer0, layer1, ..: a Linear, then an activation and a Linear each.

    The activation opens a layer rather than closing it: what it saves is then also what its Linear reads,
    and cutting anywhere duplicates nothing. `he`: weights are drawn so that activations keep their size through ReLUs
    (He et al. 2015, arXiv:1502.01852); otherwise as torch does.
    """
    layers = tuple(
        LayerSpec(f"layer{index}", partial(dense, inputs, outputs, index > 0, he))
        for index, (inputs, outputs) in enumerate(pairwise(widths))
    )
    return LayeredModel(name, layers, cross_entropy, data)


def dense(inputs: int, outputs: int, activated: bool, he: bool = False) -> nn.Module:
    """(batch, inputs) -> (batch, outputs)."""
    linear = nn.Linear(inputs, outputs)
    if he:
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.ReLU(), linear) if activated else linear


PRESETS: dict[str, Callable[[], LayeredModel]] = {
    "mlp-tiny": partial(mlp, "mlp-tiny", (64, 32, 32, 32, 10)),
    "mlp-deep": partial(mlp, "mlp-deep", (64, *(32,) * 7, 10)),
    "mlp": partial(mlp, "mlp", (64, 256, 256, 256, 256, 256, 256, 10)),
    "mlp-fashion": partial(mlp, "mlp-fashion", (784, *(64,) * 7, 10), "fashion-mnist:8000/5000", he=True),
}
