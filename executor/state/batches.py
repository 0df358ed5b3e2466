"""Micro-batches as a data set gives them, held against what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...models import Dataset
from ...models.loaders import DataFault
from ...models.sampling import batch_of, targets_of, tells_targets
from ...models.wiring import Inputs, each, named
from ..basics import RunError


class DataError(RunError):
    """A data set that gives something else than it was asked for, or nothing; names it, step and micro-batch."""


def inputs_and_targets(data: Dataset, seed: int, step: int, micro_batch: int, samples: int) -> tuple[Inputs, Tensor]:
    """A micro-batch, every tensor in memory of its own.

    Raises DataError: the data has ended, or these are not inputs and targets of so many samples.
    """
    where = f"data set {data.name!r}, step {step}, micro-batch {micro_batch}"
    found: Any = _asked(where, lambda: batch_of(data, seed, step, micro_batch, samples))
    if not isinstance(found, tuple | list) or len(found) != 2 or not isinstance(found[1], Tensor):
        raise DataError(f"{where}: gives {_kind(found)}, not inputs and targets")
    inputs, targets = found
    several = isinstance(inputs, Mapping) and inputs and all(isinstance(t, Tensor) for t in inputs.values())
    if not isinstance(inputs, Tensor) and not several:
        raise DataError(f"{where}: gives {_kind(found)}, not inputs and targets")
    for tensor in (*named(inputs).values(), targets):
        _require_dense(where, tensor)
    for tensor in named(inputs).values():
        _require_samples(where, tensor, samples)
    return each(inputs, _alone), _alone(targets)


def targets_alone(data: Dataset, seed: int, step: int, micro_batch: int, samples: int) -> Tensor:
    """The targets of a micro-batch, without its inputs where that can be. Raises DataError, as `inputs_and_targets`."""
    if not tells_targets(data):
        return inputs_and_targets(data, seed, step, micro_batch, samples)[1]
    where = f"data set {data.name!r}, step {step}, micro-batch {micro_batch}"
    found: Any = _asked(where, lambda: targets_of(data, seed, step, micro_batch, samples))
    if not isinstance(found, Tensor):
        raise DataError(f"{where}: gives {_kind(found)}, not targets")
    _require_dense(where, found)
    return _alone(found)


def _alone(tensor: Tensor) -> Tensor:
    """The tensor in memory of its own: who keeps a part of something larger keeps it all, and that is not planned."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _asked(where: str, question: Any) -> Any:
    try:
        return question()
    except DataFault as error:
        raise DataError(f"{where}: {error}") from error
    except (StopIteration, IndexError, EOFError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise DataError(f"{where}: it has ended ({type(error).__name__}{': ' if reason else ''}{reason})") from error


def _kind(found: object) -> str:
    if isinstance(found, tuple | list):
        return f"a {type(found).__name__} of {', '.join(type(part).__name__ for part in found[:4])}"
    return f"a {type(found).__name__}"


def _require_dense(where: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise DataError(f"{where}: gives a tensor of layout {layout}; only dense ones pass between stages")


def _require_samples(where: str, inputs: Tensor, samples: int) -> None:
    count = inputs.shape[0] if inputs.dim() else 0
    if count != samples:
        raise DataError(f"{where}: gives {count} samples where {samples} were asked for")


class Alike:
    """That all micro-batches of one size are tensors of one shape and type: those that the programs were made for."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], tuple[object, object]] = {}
        self._names: dict[str, str] = {}

    def require(self, data: Dataset, step: int, micro_batch: int, samples: int, what: str, inputs: Inputs) -> None:
        """Raises DataError naming both shapes or types, or the names of what is not in all."""
        tensors = named(inputs)
        names = ", ".join(sorted(tensors))
        first = self._names.setdefault(what, names)
        if names != first:
            where = f"data set {data.name!r}, step {step}, micro-batch {micro_batch}"
            raise DataError(f"{where}: gives {what} {names} where those before were {first}")
        for name, tensor in tensors.items():
            self._require(data, step, micro_batch, samples, f"{what} {name}".strip(), tensor)

    def _require(self, data: Dataset, step: int, micro_batch: int, samples: int, what: str, tensor: Tensor) -> None:
        mine = (tuple(tensor.shape), tensor.dtype)
        first = self._first.setdefault((what, samples), mine)
        for was, now in zip(first, mine, strict=True):
            if was != now:
                where = f"data set {data.name!r}, step {step}, micro-batch {micro_batch}"
                raise DataError(f"{where}: gives {what} of {now} where those before were {was}")
