"""A model of your own for Contraflow: a function without arguments that returns its layers.

From the folder of this file:

    contraflow profile custom_model:build --micro-batch-size 16 -o model.json
    contraflow plan model.json --cluster cluster-2cpu.toml --micro-batches 8 -o plan.json
    contraflow execute plan.json --model custom_model:build --steps 20

Contraflow cuts between layers, never inside one, so every entry takes one tensor and returns one tensor. The
function is called anew for every layer that is built, under the seed of the run: all processes start alike.
"""

from torch import nn


class Residual(nn.Module):
    """A block with a skip connection: the skip stays inside the layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        return x + self.inner(x)


def build():
    """Eight pixels by eight in, ten digits out."""
    blocks = [(f"block{k}", Residual(128)) for k in range(6)]
    return [("stem", nn.Sequential(nn.Flatten(), nn.Linear(64, 128))), *blocks, ("head", nn.Linear(128, 10))]


build.data = "digits"
