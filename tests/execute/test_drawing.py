"""Samples are drawn several micro-batches at a time, the same as one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from contraflow.executor.basics import RunError
from contraflow.executor.state import Blueprint
from contraflow.executor.step import drawing as module
from contraflow.executor.step.drawing import AHEAD_BYTES, AHEAD_S, Drawing, Wanted


class Asked:
    """A data set's place in a blueprint: what it was asked for, in order."""

    def __init__(self, elements: int = 4, seconds: float = 0.0, ends_at: int = 1 << 30) -> None:
        self.calls: list[tuple[int, int, int]] = []
        self._elements, self._seconds, self._ends_at = elements, seconds, ends_at

    def batch(self, step: int, micro_batch: int, samples: int) -> tuple[Tensor, Tensor]:
        """Inputs that say which they are."""
        self.calls.append((step, micro_batch, samples))
        if micro_batch >= self._ends_at:
            raise RunError(f"micro-batch {micro_batch}: it has ended")
        time.sleep(self._seconds)
        return torch.full((self._elements,), float(micro_batch)), torch.tensor([step, samples])

    def targets(self, step: int, micro_batch: int, samples: int) -> Tensor:
        """Those of `batch`."""
        return self.batch(step, micro_batch, samples)[1]


def drawing(asked: Asked, track: Callable[[Tensor], None] = lambda _: None) -> Drawing:
    """Of this data."""
    return Drawing(cast(Blueprint, cast(Any, asked)), track)


def wanted(count: int) -> list[Wanted]:
    """Of a step, every other one targets alone."""
    return [Wanted(3, m, 8, alone=m % 2 == 1) for m in range(count)]


def test_all_that_follow_are_drawn_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each, in order, and each gets its own."""
    monkeypatch.setattr(module, "AHEAD_S", 60.0)
    asked, tracked = Asked(), list[Tensor]()
    samples, row = drawing(asked, tracked.append), wanted(6)
    for k, one in enumerate(row):
        found = samples.take(one, row[k + 1 :])
        assert (found.inputs is None) == one.alone
        if isinstance(found.inputs, Tensor):
            assert found.inputs.tolist() == [k] * 4
        assert found.targets.tolist() == [3, 8]
    assert asked.calls == [(3, m, 8) for m in range(6)]
    assert len(tracked) == 5 + 2  # targets of all but the first, inputs of two


def test_a_slow_or_large_data_set_is_asked_for_one_at_a_time() -> None:
    """What takes longer, or more memory, than is spent ahead."""
    for asked, most in ((Asked(seconds=2 * AHEAD_S), 1), (Asked(elements=AHEAD_BYTES), 2)):
        samples, row = drawing(asked), [one._replace(alone=False) for one in wanted(4)]
        samples.take(row[0], row[1:])
        assert len(asked.calls) <= most


def test_whoever_wants_them_is_told_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end of the data is nobody's before its turn."""
    monkeypatch.setattr(module, "AHEAD_S", 60.0)
    asked = Asked(ends_at=2)
    samples, row = drawing(asked), wanted(4)
    samples.take(row[0], row[1:])
    samples.take(row[1], row[2:])
    with pytest.raises(RunError, match="micro-batch 2: it has ended"):
        samples.take(row[2], row[3:])
    samples.clear()
    assert samples.take(row[0], []).targets.tolist() == [3, 8]
