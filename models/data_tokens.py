"""A user's file of token numbers, read in windows as language models take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .data_files import UnknownData
from .protocol import derive_seed


@dataclass(frozen=True)
class TokenFile:
    """Windows of `length` tokens, drawn uniformly from a file; inputs and targets (size, length) int64, one ahead.

    The file: .npy of whole numbers, .bin of 16-bit ones without a header, or a text of numbers with spaces between.
    """

    length: int
    path: str

    @property
    def name(self) -> str:
        return f"tokens:{self.length}:{self.path}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        tokens = _tokens(self.path)
        draw = np.random.default_rng(derive_seed("data", seed, step, micro_batch))
        starts = draw.integers(0, len(tokens) - self.length, size)
        windows = torch.from_numpy(tokens[starts[:, None] + np.arange(self.length + 1)].astype(np.int64))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def token_file(name: str) -> TokenFile:
    """The data set "tokens:LENGTH:FILE". Raises UnknownData: no such file, not of numbers, or too short."""
    _, _, rest = name.partition(":")
    length, _, path = rest.partition(":")
    if not length.isdecimal() or not int(length) or not path:
        raise UnknownData(f"data set {name!r}: tokens:LENGTH:FILE, with LENGTH at least 1")
    try:
        found = _tokens(path)
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise UnknownData(f"data set {name!r}: {str(error).splitlines()[0]}") from error
    if not isinstance(found, np.ndarray):
        raise UnknownData(f"data set {name!r}: several arrays, not one row of whole numbers")
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UnknownData(f"data set {name!r}: {found.ndim} dimensions of {found.dtype}, not one row of whole numbers")
    if len(found) <= int(length):
        raise UnknownData(f"data set {name!r}: {len(found)} tokens, but a window takes {int(length) + 1}")
    return TokenFile(int(length), path)


@cache
def _tokens(path: str) -> npt.NDArray[Any]:
    """Files of numbers are mapped into memory, not read."""
    if path.endswith(".npy"):
        mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    if path.endswith(".bin"):
        return np.memmap(path, dtype="<u2", mode="r")
    return np.array(Path(path).read_text(encoding="utf-8").split(), dtype=np.int64)
