"""Data as torch's users have it, a DataLoader or a data set: one row of samples, epoch after epoch.

Step by step and micro-batch by micro-batch a run takes the next samples of the row, so plans with as many samples a
step see the same ones in the same order, and a plain loop over the loader does too. Every process reads for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from .protocol import Dataset
from .sample_row import Chunks, Indexed, Row, Streamed, collated
from .sample_row import DataFault as DataFault
from .wiring import Inputs

Source = Dataset | TorchDataset[Any] | Iterable[Any]
"""What a user's data may be: a data set of this protocol, or torch's, or a loader, or what is indexed or iterated."""


@dataclass(frozen=True)
class Feed:
    """How a run takes its samples: so many in a full micro-batch, and in a step (or update)."""

    full: int
    samples: int


def as_dataset(source: object, feed: Feed | None = None) -> Dataset:
    """Micro-batches of a user's data, by position; `feed` None: the first one alone will be asked for.

    A torch `DataLoader` is taken with its sampler, batches and collation, but without its worker processes; a data
    set, of map style or iterable, as a loader of full micro-batches in order would. Samples are inputs and targets, a
    pair or a mapping. Where all samples have been seen, the next epoch begins, shuffled anew where a sampler shuffles.

    Raises:
        DataFault: that is no data, can be read once only, or has batches that are no multiple of a micro-batch.
    """
    if isinstance(source, Dataset):
        return source
    return _Loaded(source, feed)


class _Loaded:
    """The data set that a source is to a run."""

    def __init__(self, source: Any, feed: Feed | None) -> None:
        self._source, self._feed = source, feed
        self._chunks = _chunks_of(source, feed)
        self._rows: dict[int, Row] = {}
        self.name = _name_of(source)
        if self._chunks.size is not None and feed is not None:
            _require_multiple(self._chunks.size, feed.full)

    def __reduce__(self) -> tuple[Any, ...]:
        """Every process reads for itself."""
        return as_dataset, (self._source, self._feed)

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Inputs, Tensor]:
        """The next samples of the row; its memory is the caller's. Raises DataFault, and EOFError: there are none."""
        if self._feed is None:
            return as_dataset(self._source, Feed(size, size)).batch(seed, step, micro_batch, size)
        full, samples = self._feed.full, self._feed.samples
        if seed not in self._rows:
            self._rows[seed] = Row(self._chunks, seed, 2 * samples)
        with _disable_current_modes():  # what is kept of the data is nobody's memory but its own
            parts = self._rows[seed].parts(step * samples + micro_batch * full, size)
        inputs, targets = zip(*parts, strict=True)
        first = inputs[0]
        if isinstance(first, Tensor):
            return _joined(inputs), _joined(targets)
        return {name: _joined(tuple(part[name] for part in inputs)) for name in first}, _joined(targets)

    @cached_property
    def held_out(self) -> Dataset:
        """The source's attribute of that name, or the same samples."""
        kept = getattr(self._source, "held_out", None)
        return self if kept is None else as_dataset(kept, self._feed)


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    try:
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts)
    except RuntimeError as error:
        shapes = " and ".join(str(tuple(part.shape[1:])) for part in parts)
        raise DataFault(f"samples of one micro-batch have different shapes: {shapes}") from error


def _require_multiple(batch: int, full: int) -> None:
    if batch % full:
        raise DataFault(f"its batches of {batch} samples are no multiple of a micro-batch's {full}")


def _chunks_of(source: Any, feed: Feed | None) -> Chunks:
    """How a source is read. Raises DataFault."""
    if isinstance(source, DataLoader):
        _require_lasting(source.dataset)
        if source.batch_sampler is None or isinstance(source.dataset, IterableDataset):
            return Streamed(_without_workers(source), source.batch_size or None, None)
        return Indexed(source.dataset, source.batch_sampler, source.collate_fn, source.generator, source.batch_size)
    if isinstance(source, str | bytes | Mapping | Tensor | tuple | type) or hasattr(source, "__array__"):
        raise _no_data(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, IterableDataset):
        return Indexed(source, None, None, None, None if feed is None else feed.full)
    if hasattr(source, "__iter__"):
        _require_lasting(source)
        return Streamed(source, None if feed is None else feed.full, collated)
    if callable(getattr(source, "batch", None)):
        raise DataFault(f"a {type(source).__name__} with a batch method needs a name too")
    raise _no_data(source)


def _no_data(source: object) -> DataFault:
    kind = type(source).__name__
    return DataFault(f"a {kind} is no data: give a name, a torch DataLoader or a data set of inputs and targets")


def _require_lasting(source: object) -> None:
    if isinstance(source, Iterator):
        raise DataFault(f"a {type(source).__name__} can be read once only: give what makes it, with an __iter__")


def _without_workers(loader: DataLoader[Any]) -> Iterable[Any]:
    """The loader, read in this process."""
    if not loader.num_workers:
        return loader
    return DataLoader(
        loader.dataset, loader.batch_size, collate_fn=loader.collate_fn, drop_last=loader.drop_last,
        generator=loader.generator,
    )  # fmt: skip


def _name_of(source: Any) -> str:
    own = getattr(source, "name", None)
    if isinstance(own, str) and own:
        return own
    if isinstance(source, DataLoader):
        return f"{_name_of(source.dataset)} in batches of {source.batch_size}"
    return type(source).__name__ + (f" of {len(source)}" if hasattr(source, "__len__") else "")
