"""Data sets of so many samples, with some of them held out: drawn with replacement, or epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .protocol import Dataset, derive_seed

Indices = npt.NDArray[np.int64]


class Samples(NamedTuple):
    """All samples of one part: inputs, sample dimension first, and int64 targets."""

    inputs: npt.NDArray[np.generic]
    targets: npt.NDArray[np.int64]


Read = Callable[[bool], Samples]
"""held out? -> the samples of that part; cheap when asked again. Picklable: processes find their own files."""


def as_stored(inputs: npt.NDArray[np.generic]) -> Tensor:
    """Inputs as they were read."""
    return torch.from_numpy(inputs)


@dataclass(frozen=True)
class FiniteData:
    """Micro-batches of a finite data set.

    Without `per_step` samples are drawn uniformly, with replacement. With it the data set is passed through in epochs:
    every step takes `per_step` micro-batches, and each epoch is another permutation, so that micro-batch m of step s
    has the samples (s * per_step + m) * size and following of the endless row of permutations. A micro-batch may reach
    over the end of an epoch.

    Attributes:
        name: the name under which `data.load` finds it again.
        read: where its samples come from.
        convert: chosen inputs as read -> what a model is fed.
        per_step: micro-batches a step; None: with replacement.
        of_held_out: whether this is the part kept from training.
    """

    name: str
    read: Read
    convert: Callable[[npt.NDArray[np.generic]], Tensor] = as_stored
    per_step: int | None = None
    of_held_out: bool = False

    def __len__(self) -> int:
        """Samples of this part."""
        return len(self.read(self.of_held_out).targets)

    @property
    def held_out(self) -> Dataset:
        """The samples that training never sees, in the same manner."""
        return replace(self, of_held_out=True)

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one micro-batch.

        Raises:
            ValueError: epochs were asked for, and a step has fewer micro-batches than `micro_batch`.
        """
        return self.take(self.chosen(seed, step, micro_batch, size))

    def targets(self, seed: int, step: int, micro_batch: int, size: int) -> Tensor:
        """The targets of `batch` alone."""
        return torch.from_numpy(self.read(self.of_held_out).targets[self.chosen(seed, step, micro_batch, size)])

    def take(self, chosen: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the samples with these numbers."""
        samples = self.read(self.of_held_out)
        return self.convert(samples.inputs[chosen]), torch.from_numpy(samples.targets[chosen])

    def chosen(self, seed: int, step: int, micro_batch: int, size: int) -> Indices:
        """The numbers of a micro-batch's samples within this part; raises as `batch` does."""
        count = len(self)
        if self.per_step is None:
            draw = np.random.default_rng(derive_seed("data", seed, step, micro_batch))
            return draw.integers(0, count, size)
        if micro_batch >= self.per_step:
            raise ValueError(
                f"data set {self.name!r} has {self.per_step} micro-batches a step, but number {micro_batch} was asked "
                "for: name as many as the plan has"
            )
        places = (step * self.per_step + micro_batch) * size + np.arange(size)
        epochs, within = np.divmod(places, count)
        parts = [permutation(seed, int(epoch), count)[within[epochs == epoch]] for epoch in np.unique(epochs)]
        return np.concatenate(parts)


@lru_cache(maxsize=8)
def permutation(seed: int, epoch: int, count: int) -> Indices:
    """The order of `count` samples in an epoch."""
    return np.random.default_rng(derive_seed("epoch", seed, epoch)).permutation(count)


def split(samples: Samples, train: int, held_out: int) -> tuple[Samples, Samples]:
    """The first `train` and the next `held_out` samples of one fixed permutation, for sets that come in some order."""
    order = permutation(0, 0, len(samples.targets))
    parts = order[:train], order[train : train + held_out]
    first, second = (Samples(samples.inputs[part], samples.targets[part]) for part in parts)
    return first, second
