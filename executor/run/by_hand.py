"""Batches that a user's own loop hands over, as a data set of the step under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...models.sample_row import DataFault, pair_of
from ...models.wiring import Inputs, each, named
from ..basics import RunError


class _Batch(NamedTuple):
    step: int
    inputs: Inputs
    targets: Tensor


class HandedOver:
    """The batch of one step: micro-batch m of f samples is its rows m f to (m + 1) f - 1.

    Args:
        first: the first step's batch: all have as many samples. full: samples of a full micro-batch.
        most, least: samples that the micro-batches of a step hold, and that leave none of them empty.

    Raises RunError: that is no batch, or one that the micro-batches cannot hold.
    """

    name = "batches of one's own loop"

    def __init__(self, first: object, full: int, most: int, least: int) -> None:
        self._full, self._most, self._least = full, most, least
        self.held_out = self
        self._held: dict[int, _Batch] = {}
        self._kinds: dict[str, str] = {}
        self.given = 0
        self.samples_a_step = self.give(0, first)

    def for_evaluation(self) -> HandedOver:
        """Makes what held-out losses are measured on: the first batch, until there is another."""
        batch = next(iter(self._held.values()))
        rows = torch.arange(self._most) % len(batch.targets)
        pair = each(batch.inputs, lambda part: part[rows]), batch.targets[rows]
        self.held_out = HandedOver(pair, self._full, self._most, self._most)
        return self.held_out

    def give(self, step: int, batch: object) -> int:
        """This step's batch from now on, instead of any other; returns its samples. Raises RunError."""
        taken = _Batch(step, *_pair(batch))
        samples = len(taken.targets)
        if self._held and samples != self.samples_a_step:
            raise RunError(
                f"a batch has {samples} samples, but those before had {self.samples_a_step}: leave the rest of an "
                "epoch out (a DataLoader's drop_last=True)"
            )
        if not self._least <= samples <= self._most:
            hold = f"{self._most // self._full} micro-batches of {self._full} take"
            takes = f"{self._least} to {self._most}" if self._least < self._most else str(self._most)
            raise RunError(f"a batch has {samples} samples, but the plan's {hold} {takes}")
        parts = {f"inputs {name}".strip(): tensor for name, tensor in named(taken.inputs).items()}
        for part, tensor in {**parts, "targets": taken.targets}.items():
            mine = f"{tuple(tensor.shape[1:])} {tensor.dtype}"
            if mine != self._kinds.setdefault(part, mine):
                raise RunError(f"a batch has {part} of {mine} each, but those before had {self._kinds[part]}")
        self._held, self.given = {step: taken}, self.given + 1
        return samples

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Inputs, Tensor]:
        """Rows of the batch; memory of its own, since stages may keep it while the loop goes on."""
        if step not in self._held:
            raise RunError(f"step {step} has no batch: step() takes one")
        held, first = self._held[step], micro_batch * self._full
        inputs = each(held.inputs, lambda tensor: tensor[first : first + size].clone())
        return inputs, held.targets[first : first + size].clone()


def _pair(batch: Any) -> tuple[Inputs, Tensor]:
    if isinstance(batch, Sequence | Mapping) and not isinstance(batch, str):
        try:
            return pair_of(batch)
        except DataFault as error:
            raise RunError(str(error)) from None
    raise RunError(f"a batch is a {type(batch).__name__}, not inputs and targets")
