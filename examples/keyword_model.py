"""A module with keyword arguments, as it is: exported with examples of them, its shapes found out.

contraflow profile keyword_model:build --micro-batch-size 8 -o model.json
contraflow plan model.json --cluster cluster-2cpu.toml --micro-batches 4 -o plan.json
contraflow execute plan.json --model keyword_model:build --steps 20
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraflow.models import load

WIDTH = 32


@dataclass(frozen=True)
class Spotted:
    """Handwritten digits by the names of the module's arguments; `seen` leaves some pixels out."""

    name: str = "spotted"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[dict[str, Tensor], Tensor]:
        """(size, 64) pixels and seen, (size,) classes."""
        pixels, digits = load("digits").batch(seed, step, micro_batch, size)
        return {"pixels": pixels, "seen": (torch.rand(pixels.shape) > 0.1).float()}, digits


class Block(nn.Module):
    """A perceptron beside which its input passes, `scale` times."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        """(n, WIDTH) -> (n, WIDTH)."""
        return x + scale * self.down(torch.relu(self.up(self.norm(x))))


class Classifier(nn.Module):
    """All arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, *, pixels: Tensor, seen: Tensor, scale: float = 1.0) -> Tensor:
        """(n, 64), (n, 64) -> (n, 10)."""
        x = self.first(pixels * seen)
        for block in self.blocks:
            x = block(x, scale=scale)
        scores: Tensor = self.last(x)
        return scores


def build() -> tuple[nn.Module, dict[str, object]]:
    """The module, and its arguments by name for two samples."""
    return Classifier(), {"pixels": torch.zeros(2, 64), "seen": torch.ones(2, 64), "scale": 0.5}


build.loss = F.cross_entropy  # type: ignore[attr-defined]
build.data = Spotted()  # type: ignore[attr-defined]
