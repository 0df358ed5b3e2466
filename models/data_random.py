"""Inputs of a shape, drawn at random: for profiling and planning models whose data is not here. Teaches nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .protocol import derive_seed


@dataclass(frozen=True)
class RandomImages:
    """Inputs (size, channels, side, side) of a normal distribution, targets (size,) uniform among the classes."""

    channels: int
    side: int
    classes: int

    @property
    def name(self) -> str:
        return f"random-images:{self.channels}x{self.side}/{self.classes}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        draw = np.random.default_rng(derive_seed("data", seed, step, micro_batch))
        pixels = draw.standard_normal((size, self.channels, self.side, self.side), dtype=np.float32)
        return torch.from_numpy(pixels), torch.from_numpy(draw.integers(0, self.classes, size))


@dataclass(frozen=True)
class RandomTokens:
    """Inputs (size, length) int64 below `vocabulary`.

    Targets are (size,) below `answers`, or where `answered` > 0, (size, answered).
    """

    length: int
    vocabulary: int
    answers: int
    answered: int = 0

    @property
    def name(self) -> str:
        return f"random-tokens:{self.length}x{self.vocabulary}/{self.answered}x{self.answers}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        draw = np.random.default_rng(derive_seed("data", seed, step, micro_batch))
        tokens = draw.integers(0, self.vocabulary, (size, self.length))
        targets = draw.integers(0, self.answers, (size, self.answered) if self.answered else size)
        return torch.from_numpy(tokens), torch.from_numpy(targets)
