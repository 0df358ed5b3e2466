"""What is run from an empty pipeline to an empty pipeline: one synchronous step, or updates without a flush between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...planner.graph import Versions, asynchronous, kept_versions, update_size
from ...planner.lower import repeat
from ...planner.plan import Op, Plan
from ..basics import Training
from .deferral import deferred
from .waits import Waits, waits_of

KEPT_OPS = 100_000
"""Longer lists leave no record of every op: there is no trace of such a run."""


class Run(NamedTuple):
    """Updates (of a synchronous plan: one step) that go through the pipeline in one go, from number `first` on."""

    first: int
    updates: int

    @property
    def end(self) -> int:
        """The update after the last."""
        return self.first + self.updates


def runs(plan: Plan, training: Training, first: int, updates: int, saves: int = 0) -> Iterator[Run]:
    """The runs of a training; the pipeline is drained for every evaluation, for every so many updates that are saved
    (0: none are), and at the end."""
    drains = [every for every in (training.evaluate_every, saves) if every] if asynchronous(plan) else [1]
    end = first + updates
    while first < end:
        run = Run(first, min([end - first, *(every - first % every for every in drains)]))
        yield run
        first = run.end


def run_at(plan: Plan, training: Training, first: int, updates: int, update: int, saves: int = 0) -> Run:
    """The run that an update is part of; any update of a synchronous plan is a run of its own."""
    if asynchronous(plan):
        for run in runs(plan, training, first, updates, saves):
            if update < run.end:
                return run
    return Run(update, 1)


def lengthened(plan: Plan, updates: int) -> Plan:
    """The plan for a run of so many updates."""
    return repeat(plan, updates * update_size(plan)) if asynchronous(plan) else plan


@dataclass(frozen=True)
class Course:
    """One rank's list for a run.

    Attributes:
        plan: as long as the run.
        order, waits: the list, and what its ops wait for beyond their inputs.
        update: micro-batches an update.
        ends: for every update, the position in the list where the rank has done its part of it.
        versions: of weights. None: there is one.
        replaced: positions of the STEPs that replace a version that is still read.
        dropped: by position of the last op that reads a version which has been replaced, (stage, version).
        agreement: the position where all ranks must know all gradients, -1: none. listed: see `deferral`.
    """

    plan: Plan
    order: tuple[Op, ...]
    waits: Waits
    update: int
    ends: tuple[int, ...]
    versions: Versions | None
    replaced: frozenset[int]
    dropped: Mapping[int, list[tuple[int, int]]]
    agreement: int
    listed: tuple[int, ...]

    @classmethod
    def of(
        cls,
        plan: Plan,
        rank: int,
        agrees: bool = False,
        listed_waits: Waits | None = None,
        update: int | None = None,
    ) -> Course:
        """The course of a rank.

        Args:
            agrees: its STEPs come last. listed_waits: as `waits` finds them, if known.
            update: micro-batches an update, or an evaluation's step, if not the plan's own.
        """
        order, mine = plan.orders[rank], waits_of(plan, rank) if listed_waits is None else listed_waits
        agreement, listed = -1, tuple(range(len(order)))
        if agrees:
            order, mine, agreement, listed = deferred(order, mine)
        size = update or update_size(plan)
        ends = _ends(order, size, plan.problem.workload.micro_batches // size)
        if not asynchronous(plan):
            return cls(plan, order, mine, size, ends, None, frozenset(), {}, agreement, listed)
        versions = Versions.of(plan)
        kept = kept_versions(plan)[rank]
        dropped: dict[int, list[tuple[int, int]]] = {}
        for old in kept:
            dropped.setdefault(old.until, []).append((old.stage, old.version))
        replaced = frozenset(old.replaced for old in kept)
        return cls(plan, order, mine, size, ends, versions, replaced, dropped, agreement, listed)

    @cached_property
    def routes(self) -> Mapping[int, int]:
        """Pipeline of every micro-batch."""
        return {m: k for k, p in enumerate(self.plan.pipelines) for m in p.micro_batches}

    @property
    def recorded(self) -> bool:
        """Whether every op of the run leaves a record."""
        return len(self.order) <= KEPT_OPS

    def update_of(self, op: Op) -> int:
        """The update, counted from the run's first, that an op is part of."""
        return max(op.micro_batch, 0) // self.update


def _ends(order: tuple[Op, ...], size: int, updates: int) -> tuple[int, ...]:
    ends = [-1] * updates
    for position, op in enumerate(order):
        ends[op.micro_batch // size] = position
    for number in range(1, updates):
        ends[number] = max(ends[number], ends[number - 1])
    return tuple(ends)
