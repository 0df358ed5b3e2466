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


def wide(meta: bool = False) -> tuple[nn.Module, Tensor]:
    """Large layers: 16 MiB each."""
    with torch.device("meta" if meta else "cpu"):
        return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))), torch.zeros(2, 2048)


class Counting(nn.Module):
    """Does something else from eight samples on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, WIDTH) -> (n, 4)."""
        return self.last(self.first(x) if x.shape[0] < 8 else -self.first(x))


def counting() -> tuple[nn.Module, Tensor]:
    """What is one graph for few samples."""
    return Counting(), torch.randn(3, WIDTH)


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


def looking_between() -> tuple[nn.Module, Tensor]:
    """The same between others, in sequence."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Looking(), nn.Linear(4, 4)), torch.randn(3, WIDTH)


class Sorting(nn.Module):
    """Every word goes to one of two experts, as the sign of its sum says; tells how many go to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, rate: float = 1.0) -> tuple[Tensor, None, Tensor]:
        """(words, WIDTH) -> (words, WIDTH), nothing, ()."""
        which = (x.sum(1) > 0).long()
        found = torch.zeros_like(x)
        for expert in which.unique().tolist():
            places = (which == expert).nonzero().flatten()
            found = found.index_add(0, places, rate * self.experts[expert](x[places]))
        return found, None, which.sum()


class Routed(nn.Module):
    """A block with a part that no graph can hold, and its own table at the end, which is the first block's too."""

    def __init__(self, table: nn.Linear) -> None:
        super().__init__()
        self.norm, self.sorting, self.table = nn.LayerNorm(WIDTH), Sorting(), table

    def forward(self, x: Tensor) -> Tensor:
        """(n, t, WIDTH) -> the same."""
        x = x + self.table(x).tanh()
        found, _, count = self.sorting(self.norm(x).flatten(0, 1), rate=0.5)
        return x + found.view(x.shape) * (count > 0)


class Router(nn.Module):
    """Words through such blocks."""

    def __init__(self) -> None:
        super().__init__()
        table = nn.Linear(WIDTH, WIDTH)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Routed(table) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, there: Tensor) -> Tensor:
        """Scores by word."""
        x = self.words(words) * there[:, :, None]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def routed() -> tuple[nn.Module, dict[str, Any]]:
    """Parts that look at numbers inside of blocks that do not."""
    return Router(), Sentences().batch(0, 0, 0, 2)[0]


class Silent(nn.Module):
    """Returns nothing."""

    def forward(self, x: Tensor) -> None:
        """Nothing."""


def silent() -> tuple[nn.Module, Tensor]:
    """What has no output."""
    return Silent(), torch.randn(3, WIDTH)


def unmatched() -> tuple[nn.Module, Tensor]:
    """An input of another width."""
    return nn.Sequential(Block(), Block())[0], torch.randn(3, WIDTH)


class Sharing(nn.Module):
    """Blocks that all take the products of the data with itself, of so many terms each."""

    def __init__(self, terms: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("spread", torch.ones(WIDTH, terms))

    def forward(self, x: Tensor) -> Tensor:
        """(n, t, WIDTH) -> the same."""
        wide = x @ self.spread
        near = (wide @ wide.transpose(1, 2)).tanh()
        for block in self.blocks:
            x = near @ torch.relu(block(x))
        return x


def sharing(terms: int = 1 << 22) -> tuple[nn.Module, Tensor]:
    """What they take is dear: it is made once and sent."""
    with torch.device("meta"):
        return Sharing(terms), torch.zeros(2, LENGTH, WIDTH)


def sharing_cheaply() -> tuple[nn.Module, Tensor]:
    """It is cheap: every block makes it for itself."""
    return sharing(32)


def _with_data(function: Callable[[], Any], data: object) -> None:
    function.data = data  # type: ignore[attr-defined]


for _function in (speaker, dropping, routed):
    _with_data(_function, Sentences())
for _function in (classifier, counting, looking, looking_between, silent):
    _with_data(_function, Numbers())  # type: ignore[arg-type]
