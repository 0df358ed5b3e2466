"""How many samples the micro-batches of a step (or update) have: all as many, or fewer in the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ...models import Dataset, EndingDataset
from ...planner.graph import update_size
from ...planner.plan import Plan
from ..basics import RunError, Training

_ON_THEIR_WAY = 64
"""Steps or updates whose sizes are remembered: every op asks for its own."""


@dataclass(frozen=True)
class MiniBatch:
    """The samples of one step (or update).

    Every micro-batch is full but the last by number, which has the rest, at least one.

    Attributes:
        micro_batches: over all pipelines. full: samples of a full one. samples: of the step.
        counts: how many targets the mean loss of each micro-batch is over; (): as many as it has samples.
    """

    micro_batches: int
    full: int
    samples: int
    counts: tuple[float, ...] = ()

    def size(self, micro_batch: int) -> int:
        """Samples of a micro-batch."""
        before = self.micro_batches - 1
        return self.full if micro_batch < before else self.samples - before * self.full

    def weight(self, micro_batch: int) -> float:
        """How much its mean loss counts, by samples or counts: on average 1, and exactly that where all are alike."""
        if self.counts:
            return self.counts[micro_batch] * self.micro_batches / sum(self.counts)
        return self.size(micro_batch) * self.micro_batches / self.samples

    def mean(self, losses: Mapping[int, float]) -> float:
        """The mean loss over the samples of the step, or what else counts, from the mean of every micro-batch."""
        return sum(losses[m] * self.weight(m) for m in sorted(losses)) / max(1, len(losses))


Counts = Callable[[int, MiniBatch], tuple[float, ...]]
"""Of a step."""


@dataclass(frozen=True)
class MiniBatches:
    """Those of a run.

    Attributes:
        samples: of every step (None: as many as the micro-batches hold).
        data: may have fewer for some step, if it is an `EndingDataset`.
        counts: what counts of a step's micro-batches, if it is not their samples.
    """

    micro_batches: int
    full: int
    samples: int | None
    data: Dataset | None
    counts: Counts | None = None

    @classmethod
    def of_plan(cls, plan: Plan, training: Training, data: Dataset, counts: Counts | None = None) -> MiniBatches:
        """Those that a training has; of an asynchronous plan, one an update."""
        return cls(update_size(plan), plan.problem.model.micro_batch_size, training.mini_batch, data, counts)

    def of(self, step: int) -> MiniBatch:
        """The mini-batch of a step. Raises RunError: it does not fit, or leaves a micro-batch empty."""
        return self._recent(step)

    def weighed(self, step: int) -> MiniBatch:
        """The same, with what counts of its micro-batches: all their targets are read for it."""
        return self._lately(step, getattr(self.data, "given", 0))

    @cached_property
    def _lately(self) -> Callable[[int, int], MiniBatch]:
        """What `weighed` found, of the batch handed over last where a user's loop does that."""

        def found(step: int, _: int) -> MiniBatch:
            batch = self.of(step)
            return batch if self.counts is None else replace(batch, counts=self.counts(step, batch))

        return lru_cache(_ON_THEIR_WAY)(found)

    @cached_property
    def _recent(self) -> Callable[[int], MiniBatch]:
        """`of`, with the answers for the steps (or updates) that are on their way."""
        return lru_cache(_ON_THEIR_WAY)(self._asked)

    def _asked(self, step: int) -> MiniBatch:
        most = self.micro_batches * self.full
        found = most if self.samples is None else self.samples
        where = ""
        if isinstance(self.data, EndingDataset):
            found, where = self.data.samples(step, found), f"step {step}: "
        hold = f"{self.micro_batches} micro-batches of {self.full}"
        if found > most:
            raise RunError(f"{where}a mini-batch of {found} samples is more than {hold} hold: {most}")
        if found <= most - self.full:
            least = most - self.full + 1
            raise RunError(f"{where}a mini-batch of {found} samples leaves the last of {hold} empty: it needs {least}")
        return MiniBatch(self.micro_batches, self.full, found)

    def sizes(self, steps: range) -> tuple[int, ...]:
        """Sizes of micro-batches that these steps have, the full one first. Raises RunError, as `of`."""
        asked = steps if isinstance(self.data, EndingDataset) else steps[:1]
        last = {self.of(step).size(self.micro_batches - 1) for step in asked}
        return (self.full, *sorted(last - {self.full}, reverse=True))
