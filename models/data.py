"""Small real data sets that need no download: the standard library's sources, and scikit-learn's digits."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .protocol import Dataset, derive_seed

CORPUS_BYTES = 8 << 20
DEFAULT_SEQUENCE = 128
NAMES = ("stdlib", "digits", "digits-images")


class UnknownData(ValueError):
    """A data set name that is not there; the message lists those that are."""


def load(name: str) -> Dataset:
    """The data set of that name.

    "stdlib" or "stdlib:LENGTH": byte-level language modelling on the Python standard library's own sources;
    inputs and targets are (size, LENGTH) int64, the targets one byte ahead; LENGTH defaults to 128.
    "digits": inputs (size, 64) float32 of zero mean and unit variance over the set, targets (size,) int64.
    "digits-images": the same as (size, 1, 8, 8).

    Raises:
        UnknownData: no such data set, or a LENGTH that is not a positive integer.
    """
    kind, _, length = name.partition(":")
    if kind == "stdlib" and (not length or (length.isdecimal() and int(length) > 0)):
        return SourceBytes(int(length or DEFAULT_SEQUENCE))
    if name in ("digits", "digits-images"):
        return Digits(images=name == "digits-images")
    raise UnknownData(f"no data set named {name!r}; there are {', '.join(NAMES)}, stdlib:LENGTH")


@dataclass(frozen=True)
class SourceBytes:
    """Windows of `length` bytes, drawn uniformly from the corpus."""

    length: int

    @property
    def name(self) -> str:
        return f"stdlib:{self.length}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        corpus = _corpus()
        starts = _generator(seed, step, micro_batch).integers(0, len(corpus) - self.length, size)
        windows = corpus[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        tokens = torch.from_numpy(windows)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@dataclass(frozen=True)
class Digits:
    """Handwritten digits, 8x8, drawn with replacement."""

    images: bool = False

    @property
    def name(self) -> str:
        return "digits-images" if self.images else "digits"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        pixels, labels = _digits()
        chosen = _generator(seed, step, micro_batch).integers(0, len(labels), size)
        inputs = torch.from_numpy(pixels[chosen])
        return inputs.view(size, 1, 8, 8) if self.images else inputs, torch.from_numpy(labels[chosen])


def _generator(seed: int, step: int, micro_batch: int) -> np.random.Generator:
    return np.random.default_rng(derive_seed("data", seed, step, micro_batch))


@cache
def _corpus() -> npt.NDArray[np.uint8]:
    """The library's top-level and package sources in sorted order, cut at CORPUS_BYTES."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    read = bytearray()
    for path in sorted(root.rglob("*.py")):
        if skipped.isdisjoint(path.relative_to(root).parts):
            read += path.read_bytes()
        if len(read) >= CORPUS_BYTES:
            break
    return np.frombuffer(bytes(read[:CORPUS_BYTES]), dtype=np.uint8)


@cache
def _digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels - pixels.mean()) / pixels.std()
    return pixels.astype(np.float32), labels.astype(np.int64)
