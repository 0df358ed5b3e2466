"""Models with data as torch's users have it: loaders of every kind over real digits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

pixels, labels = load_digits(return_X_y=True)
ALL = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
FIRST = TensorDataset(*(tensor[:50] for tensor in ALL.tensors))
"""50 digits: micro-batches reach over the end of an epoch."""


class Jittered(TorchDataset[Any]):
    """Augments as users do, from whatever generator."""

    def __len__(self) -> int:
        return len(FIRST)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = FIRST[index]
        return x + 0.1 * torch.randn(64) + 0.1 * random.random(), y


class Stream(IterableDataset[Any]):
    """The digits one after the other, as from a file."""

    def __iter__(self) -> Iterator[Any]:
        yield from (FIRST[k] for k in range(len(FIRST)))


class Rows:
    """A data set of mappings of lists, as Hugging Face's are: no class of torch's."""

    def __len__(self) -> int:
        return len(FIRST)

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = FIRST[index]
        return {"pixels": x.tolist(), "label": int(y)}


def build() -> list[tuple[str, nn.Module]]:
    """A perceptron of four layers."""
    return [
        ("in", nn.Linear(64, 24)), ("act", nn.Tanh()), ("mid", nn.Sequential(nn.Linear(24, 24), nn.Tanh())),
        ("out", nn.Linear(24, 10)),
    ]  # fmt: skip


def seeded_loader() -> DataLoader[Any]:
    """Shuffled by a generator of its own."""
    return DataLoader(FIRST, 16, shuffle=True, generator=torch.Generator().manual_seed(7))


SOURCES = {
    "in order": lambda: DataLoader(FIRST, 16),
    "shuffled": lambda: DataLoader(FIRST, 8, shuffle=True, drop_last=True),
    "own generator": seeded_loader,
    "augmented": lambda: DataLoader(Jittered(), 4, shuffle=True),
    "workers": lambda: DataLoader(FIRST, 8, num_workers=2),
    "stream in batches": lambda: DataLoader(Stream(), 8),
    "map style": lambda: FIRST,
    "iterable": Stream,
    "mappings": Rows,
}


def _named(name: str) -> Any:
    def made() -> list[tuple[str, nn.Module]]:
        return build()

    made.data = SOURCES[name]()  # type: ignore[attr-defined]
    return made


in_order, shuffled, own_generator = _named("in order"), _named("shuffled"), _named("own generator")
augmented, streamed = _named("augmented"), _named("stream in batches")
