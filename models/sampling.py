"""Micro-batches of a user's data set: what it draws from default generators follows from the arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .protocol import Dataset, TargetedDataset
from .seeding import generator_states, seeded
from .wiring import Inputs

_T = TypeVar("_T")
_WATCHED = 4
"""So many first calls tell whether a data set draws from default generators: seeding them takes 0.2 ms."""


@dataclass
class _Habit:
    calls: int = 0
    draws: bool = False


_HABITS: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by data set: _Habit


def batch_of(data: Dataset, seed: int, step: int, micro_batch: int, size: int) -> tuple[Inputs, Tensor]:
    """`data.batch`, the same in every process and thread."""
    return _drawn(data, lambda: data.batch(seed, step, micro_batch, size), seed, step, micro_batch)


def tells_targets(data: Dataset) -> TypeGuard[TargetedDataset]:
    """Whether the data set can give targets without their inputs."""
    return callable(getattr(data, "targets", None))  # torchvision's are a tensor; a protocol's isinstance takes 0.1 ms


def targets_of(data: TargetedDataset, seed: int, step: int, micro_batch: int, size: int) -> Tensor:
    """The targets of `batch_of`, of a data set that `tells_targets`."""
    return _drawn(data, lambda: data.targets(seed, step, micro_batch, size), seed, step, micro_batch)


def _drawn(data: Dataset, draw: Callable[[], _T], *arguments: int) -> _T:
    try:
        habit: _Habit = _HABITS[data]
    except KeyError:
        habit = _HABITS[data] = _Habit()
    if habit.calls >= _WATCHED and not habit.draws:
        return draw()
    with seeded("batch", *arguments):
        before = generator_states()
        drawn = draw()
        habit.draws |= habit.calls > 0 and generator_states() != before  # the first one may load the data
        habit.calls += 1
    return drawn
