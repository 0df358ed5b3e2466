"""Functions that return a module with example inputs, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, LENGTH = 32, 16, 8


@dataclass(frozen=True)
class Sentences:
    """Words, which of them are there, and the next ones."""

    name: str = "sentences"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[dict[str, Tensor], Tensor]:
        """(size, LENGTH) each."""
        words = torch.randint(WORDS, (size, LENGTH + 1))
        there = torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (size, 1))
        return {"words": words[:, :-1], "there": there}, words[:, 1:]


@dataclass(frozen=True)
class Numbers:
    """Numbers and classes."""

    name: str = "numbers"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """(size, WIDTH), (size,)."""
        return torch.randn(size, WIDTH), torch.randint(4, (size,))


class Block(nn.Module):
    """Attention under a mask, and a perceptron."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        """(n, t, WIDTH), (n, 1, t, t), (t, 1) -> (n, t, WIDTH)."""
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q * scale, k, v, mask).transpose(1, 2).flatten(2)))
        return x + self.mlp(x)


@dataclass
class Found:
    """What the module returns."""

    loss: Tensor | None
    logits: Tensor


torch.utils._pytree.register_dataclass(Found)


class Speaker(nn.Module):
    """A language model: mask and scale are made once for all blocks, the head is the embedding, the loss its own."""

    def __init__(self, blocks: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: Tensor, there: Tensor, labels: Tensor | None = None, scaled: bool = True) -> Found:
        """Scores of the next words, and their loss."""
        places = torch.arange(words.shape[1], device=words.device)
        mask = (places[:, None] >= places[None, :]) & there[:, None, None, :] | torch.eye(len(places), dtype=torch.bool)
        scale = torch.cos(places / len(places))[:, None] if scaled else places[:, None].float()
        x = self.table(words)
        for block in self.blocks:
            x = block(x, mask, scale)
        logits = self.head(self.norm(x))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Found(loss, logits)


def speaker() -> tuple[nn.Module, dict[str, Any]]:
    """With its own loss; `scaled` is a constant."""
    inputs, labels = Sentences().batch(0, 0, 0, 2)
    return Speaker(), {**inputs, "labels": labels, "scaled": True}


def dropping() -> tuple[nn.Module, dict[str, Any]]:
    """The same with dropout."""
    inputs, labels = Sentences().batch(0, 0, 0, 2)
    return Speaker(dropout=0.3), {**inputs, "labels": labels}


def classifier() -> tuple[nn.Module, Tensor]:
    """Nothing repeats, one input, a loss beside it."""
    layers = [nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4)]
    return nn.Sequential(*layers), torch.randn(3, WIDTH)


class Looking(nn.Module):
    """Looks at a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Another way where the sum is positive."""
        return self.inner(x) if x.sum() > 0 else -self.inner(x)


def looking() -> tuple[nn.Module, Tensor]:
    """What no graph can hold."""
    return Looking(), torch.randn(3, WIDTH)


def _with_data(function: Callable[[], Any], data: object) -> None:
    function.data = data  # type: ignore[attr-defined]


for _function in (speaker, dropping):
    _with_data(_function, Sentences())
for _function in (classifier, looking):
    _with_data(_function, Numbers())  # type: ignore[arg-type]
