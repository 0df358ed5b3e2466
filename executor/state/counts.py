"""What the mean loss of a step is over, where it is not its samples: the targets that count in every micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch import Tensor

from ...models import Dataset, LayeredModel
from .batches import DataError, targets_alone
from .mini_batch import Counts, MiniBatch


def counts_of(model: LayeredModel, data: Dataset, seed: int) -> Counts | None:
    """By step, of a model that counts its targets; None: it has no such function."""
    return None if model.counted is None else partial(_counts, model.counted, data, seed)


def _counts(
    counted: Callable[[Tensor], Tensor | float], data: Dataset, seed: int, step: int, mini_batch: MiniBatch
) -> tuple[float, ...]:
    """Raises DataError: a micro-batch none of whose targets counts, so that its mean loss is none."""
    found = []
    for m in range(mini_batch.micro_batches):
        count = float(counted(targets_alone(data, seed, step, m, mini_batch.size(m))))
        if not 0 < count < math.inf:
            raise DataError(f"data set {data.name!r}, step {step}, micro-batch {m}: {count:g} of its targets count")
        found.append(count)
    return tuple(found)
