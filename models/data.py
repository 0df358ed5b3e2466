"""Data sets by name. Small real ones that are always here: the standard library's sources, scikit-learn's digits."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .data_files import MissingData as MissingData
from .data_files import UnknownData as UnknownData
from .data_names import NAMES as PACKAGED_NAMES
from .data_names import packaged
from .data_tokens import token_file
from .protocol import Dataset, derive_seed

CORPUS_BYTES = 8 << 20
DEFAULT_SEQUENCE = 128
NAMES = ("stdlib", "stdlib-masked", "digits", "digits-images")
FIRST, SEPARATOR, MASK = 256, 257, 258
"""The tokens of "stdlib-masked" beside the 256 bytes: what a window starts with, what ends a segment, what hides."""
MASKED_VOCABULARY = 259
MASKED_SHARE = 0.15
NOT_MASKED = -100
"""The target of a token that is not to be guessed."""


def load(name: str) -> Dataset:
    """The data set of that name.

    "stdlib" or "stdlib:LENGTH": byte-level language modelling on the Python standard library's own sources;
    inputs and targets are (size, LENGTH) int64, the targets one byte ahead; LENGTH defaults to 128.
    "stdlib-masked" or "stdlib-masked:LENGTH": the same sources as BERT's two tasks, see `MaskedBytes`.
    "digits": inputs (size, 64) float32 of zero mean and unit variance over the set, targets (size,) int64.
    "digits-images": the same as (size, 1, 8, 8).

    From packages (see `data_images`, `data_reviews`, `data_verses` for shapes, and docs/models.md for what to install),
    with a part held out:
    "fashion-mnist", "fashion-mnist:TRAIN/HELD_OUT" for the first so many of either part, "mnist-5k",
    "reviews", "reviews:LENGTH", "verses", "verses:LENGTH"; "fashion-mnist-images" and "mnist-5k-images" as
    (size, 1, 28, 28). With ",micro-batches=N" behind it, steps of N micro-batches pass through the samples in epochs,
    see `FiniteData`; without, they are drawn with replacement.

    From a file: "tokens:LENGTH:FILE", see `TokenFile`.

    At random, for profiling: "random-images:3x224/1000", "random-tokens:LENGTHxVOCABULARY/ANSWEREDxANSWERS", see
    `data_random`.

    Raises:
        UnknownData: no such data set, or a LENGTH that is not a positive integer (masked: of at least 8).
        MissingData: an UnknownData; the files of the data set are not here, and how to install them.
    """
    kind, _, length = name.partition(":")
    if kind == "tokens":
        return token_file(name)
    count = int(length) if length.isdecimal() else 0 if length else DEFAULT_SEQUENCE
    if kind == "stdlib" and count > 0:
        return SourceBytes(count)
    if kind == "stdlib-masked" and count >= 8:
        return MaskedBytes(count)
    if name in ("digits", "digits-images"):
        return Digits(images=name == "digits-images")
    if (found := packaged(name)) is not None:
        return found
    known = (*NAMES, "stdlib:LENGTH", "stdlib-masked:LENGTH", "tokens:LENGTH:FILE", *PACKAGED_NAMES)
    raise UnknownData(f"no data set named {name!r}; there are {', '.join(known)}")


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


def first_segment(length: int) -> int:
    """Tokens of a masked window that belong to its first segment: FIRST, half of the bytes, SEPARATOR."""
    return (length - 3) // 2 + 2


@dataclass(frozen=True)
class MaskedBytes:
    """BERT's tasks (arXiv:1810.04805, section 3.1) on two runs of bytes, FIRST A SEPARATOR B SEPARATOR.

    Half of the time B follows A in the corpus, else it is from anywhere. MASKED_SHARE of the bytes are to be guessed,
    as many in every window: 80 % of them are hidden behind MASK, 10 % replaced, 10 % left.
    Inputs are (size, length) int64; targets (size, length + 1): the byte to guess or NOT_MASKED, and in the
    last column 1 where B follows A.
    """

    length: int

    @property
    def name(self) -> str:
        return f"stdlib-masked:{self.length}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        corpus, draw = _corpus(), _generator(seed, step, micro_batch)
        end = first_segment(self.length)
        a, b = end - 2, self.length - end - 1
        follows = draw.integers(0, 2, size)
        here = draw.integers(0, len(corpus) - a - b, size)
        there = np.where(follows == 1, here + a, draw.integers(0, len(corpus) - b, size))
        tokens = np.full((size, self.length), SEPARATOR, dtype=np.int64)
        tokens[:, 0] = FIRST
        tokens[:, 1 : end - 1] = corpus[here[:, None] + np.arange(a)]
        tokens[:, end:-1] = corpus[there[:, None] + np.arange(b)]
        target = np.full((size, self.length + 1), NOT_MASKED, dtype=np.int64)
        target[:, -1] = follows
        for row, wanted in zip(tokens, target, strict=True):
            _mask(row, wanted, draw)
        return torch.from_numpy(tokens), torch.from_numpy(target)


def _mask(tokens: npt.NDArray[np.int64], target: npt.NDArray[np.int64], draw: np.random.Generator) -> None:
    """Hides bytes of one window in place and writes what they were into its target."""
    bytes_at = np.flatnonzero(tokens < FIRST)
    chosen = draw.choice(bytes_at, max(1, round(MASKED_SHARE * len(bytes_at))), replace=False)
    target[chosen] = tokens[chosen]
    fate = draw.random(len(chosen))
    tokens[chosen[fate < 0.8]] = MASK
    swapped = chosen[fate >= 0.9]
    tokens[swapped] = draw.integers(0, FIRST, len(swapped))


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
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise MissingData("data set 'digits' comes with scikit-learn; install it: pip install scikit-learn") from None
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels - pixels.mean()) / pixels.std()
    return pixels.astype(np.float32), labels.astype(np.int64)
