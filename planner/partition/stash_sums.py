"""Bytes of the stashes of intervals of a chain: sums of its layers', less what two of them keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StashSums:
    """A stage of layers i..j-1 keeps ends[j] - begins[i] bytes of a micro-batch; of a graph that is no chain, at most.

    Attributes:
        sizes: bytes of every layer. twice: two layers, and bytes that both keep.
        ends: of all layers before each cut, every tensor once: length L + 1.
        begins: the same, less what layers on both sides of the cut keep: a stage that begins there has it, too.
        added: bytes of every layer beyond what layers before it keep: length L.
        inside: of every interval [i, j), what two of its layers keep; shape (L + 1, L + 1). table: what it keeps.
    """

    sizes: NDArray[np.int64]
    twice: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, sizes: NDArray[np.int64], twice: Iterable[tuple[int, int, int]]) -> StashSums:
        """Of the bytes of every layer, and what layers at two positions have in common."""
        return cls(sizes, tuple(twice))

    @cached_property
    def added(self) -> Floats:
        left = self.sizes.astype(np.float64)
        for _, later, size in self.twice:
            left[later] -= size
        return left

    @cached_property
    def ends(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self.added)])

    @cached_property
    def begins(self) -> Floats:
        found = self.ends.copy()
        for first, later, size in self.twice:
            found[first + 1 : later + 1] -= size
        return found

    def of_stages(self, ends: Sequence[int]) -> Floats:
        """Of the stages between these cuts, the first and the last of the chain included."""
        return np.asarray(self.ends[list(ends[1:])] - self.begins[list(ends[:-1])])

    @cached_property
    def inside(self) -> Floats:
        found = np.zeros((len(self.sizes) + 1,) * 2)
        for first, later, size in self.twice:
            found[: first + 1, later + 1 :] += size
        return found

    @cached_property
    def table(self) -> Floats:
        before = np.concatenate([[0.0], np.cumsum(self.sizes)])
        return np.asarray(before[None, :] - before[:, None] - self.inside)
