"""A row of samples without end, read in chunks: from what is indexed, or from what is iterated."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import Any, Protocol

import torch
from torch import Generator, Tensor
from torch.utils.data import default_collate

from .seeding import derive_seed, seeded
from .wiring import Inputs, each, named

Pair = tuple[Inputs, Tensor]
TARGETS = ("labels", "label", "targets", "target", "y")
"""What the targets are called in a mapping."""


class DataFault(ValueError):
    """A user's data is not what can be trained on; one line."""


@dataclass
class Chunk:
    """Samples that are read together; `read` gives the same ones whenever it is called."""

    count: int
    read: Callable[[], Pair]


class Chunks(Protocol):
    """Where chunks come from. size: samples of a full one; None: not known yet."""

    size: int | None

    def epoch(self, seed: int, number: int) -> Iterator[Chunk]:
        """All samples once."""


@dataclass
class Indexed:
    """A data set whose samples have numbers; without a sampler they come in order."""

    dataset: Any
    sampler: Iterable[Any] | None
    collate: Callable[[Any], Any] | None
    generator: Generator | None
    size: int | None

    def epoch(self, seed: int, number: int) -> Iterator[Chunk]:
        """Numbers at once, samples when they are read."""
        for place, chosen in enumerate(self._numbers(seed, number)):
            yield Chunk(len(chosen), _Read(self, chosen, (seed, number, place)))

    def _numbers(self, seed: int, epoch: int) -> Iterator[Sequence[Any]]:
        if self.sampler is None:
            places = iter(range(len(self.dataset)))
            while chosen := list(islice(places, self.size)):
                yield chosen
            return
        with seeded("epoch", seed, epoch), _own_generators(self, seed, epoch):
            numbers = list(self.sampler) if _ends(self.sampler) else iter(self.sampler)
        yield from numbers

    def fetch(self, chosen: Sequence[Any]) -> Any:
        """These samples, collated."""
        together = getattr(self.dataset, "__getitems__", None)
        samples = [self.dataset[k] for k in chosen] if together is None else together(chosen)
        return collated(samples) if self.collate is None else self.collate(samples)


def _ends(sampler: Any) -> bool:
    """Whether it says how much it gives."""
    try:
        return len(sampler) >= 0
    except TypeError:
        return False


@dataclass
class _Read:
    """Reads chosen samples; whatever is drawn for it follows from their place."""

    of: Indexed
    chosen: Sequence[Any]
    place: tuple[int, int, int]

    def __call__(self) -> Pair:
        with seeded("batch", *self.place):
            return pair_of(self.of.fetch(self.chosen))


@contextmanager
def _own_generators(of: Indexed, seed: int, epoch: int) -> Iterator[None]:
    """Generators that a user has given start from their seeds, the run's and the epoch's, and stay as they were."""
    owners = (of.sampler, getattr(of.sampler, "sampler", None))
    for owner in owners:
        if callable(set_epoch := getattr(owner, "set_epoch", None)):
            set_epoch(epoch)
    found = {id(g): g for g in (of.generator, *(getattr(o, "generator", None) for o in owners)) if g is not None}
    with ExitStack() as restored:
        for generator in found.values():
            restored.callback(generator.set_state, generator.get_state())
            generator.manual_seed(derive_seed("epoch", generator.initial_seed(), seed, epoch))
        yield


@dataclass
class Streamed:
    """What can only be iterated: a loader's batches, or samples that are collated here."""

    source: Iterable[Any]
    size: int | None
    collate: Callable[[Any], Any] | None

    def epoch(self, seed: int, number: int) -> Iterator[Chunk]:
        """Read one after the other, and kept as long as the chunk is."""
        with seeded("epoch", seed, number):
            if callable(set_epoch := getattr(self.source, "set_epoch", None)):
                set_epoch(number)
            found = iter(self.source)
        for place in count():
            with seeded("batch", seed, number, place):
                if self.collate is None:
                    batch = next(found, None)
                else:
                    samples = list(islice(found, self.size))
                    batch = self.collate(samples) if samples else None
            if batch is None:
                return
            pair = pair_of(batch)
            yield Chunk(len(pair[1]), partial(_itself, pair))


def _itself(pair: Pair) -> Pair:
    return pair


@dataclass
class Row:
    """The row of one seed, read forwards; what lies further back than `behind` samples is read again.

    Attributes:
        starts, chunks: those at hand. following: the next ones. end: samples before these.
    """

    source: Chunks
    seed: int
    behind: int
    starts: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    following: Iterator[Chunk] = field(init=False)
    end: int = 0
    last: tuple[int, Pair] | None = None

    def __post_init__(self) -> None:
        self.following = self._all()

    def _all(self) -> Iterator[Chunk]:
        for number in count():
            before = self.end
            yield from self.source.epoch(self.seed, number)
            if self.end == before:
                again = "no sample" if number == 0 else f"no sample when it is read again, after {before} samples"
                raise EOFError(again)

    def parts(self, start: int, size: int) -> list[Pair]:
        """The samples from number `start` on, as parts of chunks. Raises EOFError: there are no more."""
        if start < (self.starts[0] if self.starts else self.end):
            self.starts, self.chunks, self.end, self.last = [], [], 0, None
            self.following = self._all()
        while self.end < start + size:
            chunk = next(self.following)
            self.starts.append(self.end)
            self.chunks.append(chunk)
            self.end += chunk.count
            self._drop(start - self.behind)
        found, at = [], bisect_right(self.starts, start) - 1
        while size:
            inputs, targets = self._read(at)
            first = start - self.starts[at]
            until = min(first + size, self.chunks[at].count)
            found.append((_rows(inputs, first, until), targets[first:until]))
            start, size, at = start + until - first, size - (until - first), at + 1
        return found

    def _drop(self, before: int) -> None:
        gone = bisect_right(self.starts, before) - 1
        if gone > 0:
            del self.starts[:gone], self.chunks[:gone]

    def _read(self, at: int) -> Pair:
        """A chunk's samples; one is remembered, since the next micro-batch is often in it too."""
        if self.last is None or self.last[0] != self.starts[at]:
            self.last = self.starts[at], self.chunks[at].read()
        pair = self.last[1]
        if len(pair[1]) != self.chunks[at].count:
            raise DataFault(f"a batch of {self.chunks[at].count} samples has {len(pair[1])} rows once it is collated")
        return pair


def _rows(inputs: Inputs, first: int, until: int) -> Inputs:
    return each(inputs, lambda tensor: tensor[first:until])


def collated(samples: Sequence[Any]) -> Any:
    """Samples as tensors; lists of numbers in a mapping, as data sets on disk give them, are tensors first."""
    try:
        return default_collate([_with_tensors(sample) for sample in samples])
    except (RuntimeError, TypeError) as error:
        raise DataFault(f"samples cannot be collated: {str(error).splitlines()[0]}") from error


def _with_tensors(sample: Any) -> Any:
    if not isinstance(sample, Mapping):
        return sample
    return {key: torch.tensor(value) if isinstance(value, list) else value for key, value in sample.items()}


def pair_of(batch: Any) -> Pair:
    """Inputs and targets of a collated batch. Raises DataFault: it has others, or they differ in samples."""
    if isinstance(batch, Mapping):
        targets = [key for key in TARGETS if key in batch]
        if len(batch) < 2 or len(targets) != 1:
            raise DataFault(
                f"a batch has {', '.join(map(str, batch))}: inputs and one of {', '.join(TARGETS)} are taken, choose "
                "them in the loader's collate_fn"
            )
        rest = {str(key): value for key, value in batch.items() if key != targets[0]}
        batch = [rest if len(rest) > 1 else next(iter(rest.values())), batch[targets[0]]]
    if not _is_pair(batch):
        kind = type(batch).__name__
        of = f" of {', '.join(type(t).__name__ for t in batch[:4])}" if isinstance(batch, tuple | list) else ""
        raise DataFault(f"a batch is a {kind}{of}, not a tensor of inputs and one of targets")
    inputs, targets = batch
    for tensor in named(inputs).values():
        counts = [t.shape[0] if t.dim() else 0 for t in (tensor, targets)]
        if counts[0] != counts[1] or not counts[0]:
            raise DataFault(f"a batch has {counts[0]} inputs and {counts[1]} targets")
    return inputs, targets


def _is_pair(batch: Any) -> bool:
    """Whether it is inputs, one tensor or several by name, and targets."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        return False
    parts = batch[0].values() if isinstance(batch[0], Mapping) and batch[0] else [batch[0]]
    return all(isinstance(part, Tensor) for part in parts)
