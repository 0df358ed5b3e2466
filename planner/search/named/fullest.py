"""How many micro-batches of every stage are alive on each device when most are, under given compute orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...basics import PerObject
from ...graph import Ops
from ...plan import Kind, Op, Pipeline
from ...schedules import Layout

Ints = NDArray[np.int64]
Unit = tuple[int, int]
"""Pipeline and stage."""


@dataclass(frozen=True, eq=False)
class Fullest:
    """One device's instants that no other one exceeds in everything.

    units: what it runs, ascending. live: micro-batches of each between F and I (or B), pending: between I and W;
    both of shape [instants, units].
    """

    units: tuple[Unit, ...]
    live: Ints
    pending: Ints

    def bytes(self, live_bytes: Ints, pending_bytes: Ints) -> int:
        """The most that is alive, of what one micro-batch of each unit takes."""
        return int((self.live @ live_bytes + self.pending @ pending_bytes).max(initial=0))


def fullest(orders: Sequence[Sequence[Op]], pipelines: Sequence[Pipeline], stages: int) -> list[Fullest]:
    """The fullest instants of every device under these orders of F, B, I, W and R."""
    ops = Ops.of(orders, stages)
    line = np.zeros(1 + max((m for p in pipelines for m in p.micro_batches), default=0), dtype=np.int64)
    for p, pipeline in enumerate(pipelines):
        line[list(pipeline.micro_batches)] = p
    unit = line[ops.micro_batch] * stages + ops.stage
    ends = [*ops.first.tolist(), len(ops)]
    return [_device(ops.kind[a:b], unit[a:b], stages) for a, b in zip(ends, ends[1:], strict=False)]


def _device(kind: Ints, unit: Ints, stages: int) -> Fullest:
    names, column = np.unique(unit, return_inverse=True)
    change = np.zeros((len(kind), 2, len(names)), dtype=np.int64)
    rows = np.arange(len(kind))
    made, half = kind == Kind.F, kind == Kind.I
    change[rows[made], 0, column[made]] = 1
    released = half | (kind == Kind.B)
    change[rows[released], 0, column[released]] = -1
    change[rows[half], 1, column[half]] = 1
    done = kind == Kind.W
    change[rows[done], 1, column[done]] = -1
    falls = np.ones(len(kind), dtype=bool)  # before something is released, and at the end
    falls[:-1] = (released | done)[1:]
    alive = _exceeding(np.cumsum(change, axis=0).reshape(len(kind), 2 * len(names))[falls])
    alive = alive.reshape(len(alive), 2, len(names))
    units = tuple((name // stages, name % stages) for name in names.tolist())
    return Fullest(units, alive[:, 0], alive[:, 1])


_TOGETHER = 64
"""Rows that all others are held against at once."""


def _exceeding(rows: Ints) -> Ints:
    """The rows that no other row reaches or exceeds in every column."""
    left = np.unique(rows, axis=0)
    left = left[np.argsort(-left.sum(axis=1), kind="stable")]  # none is reached by one behind it
    found: list[Ints] = []
    while len(left):
        first, left = left[:_TOGETHER], left[_TOGETHER:]
        first = first[~_reached(first, first, np.tri(len(first), k=-1, dtype=bool))]
        found.append(first)
        left = left[~_reached(left, first)]
    return np.concatenate(found) if found else left


def _reached(rows: Ints, others: Ints, asked: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Which rows one of the others reaches or exceeds in every column; `asked`: which of the others, by row."""
    found: NDArray[np.bool_] = np.all(rows[:, None, :] <= others[None, :, :], axis=2)
    return np.asarray(np.any(found if asked is None else found & asked, axis=1))


_known: PerObject[list[Fullest]] = PerObject()


def of_layout(layout: Layout) -> list[Fullest]:
    """The fullest instants of a layout's devices; remembered while it lives."""
    return _known.get(layout, "", lambda: fullest(layout.orders, layout.pipelines, layout.stages))


def in_flight(layout: Layout) -> list[int]:
    """Most stashes of every stage alive at once on one device; layout.in_flight of many ops, in less time."""
    alive = residents(layout)
    return [max(stages.get(s, 0) for stages in alive) for s in range(layout.stages)]


def residents(layout: Layout) -> list[dict[int, int]]:
    """Per device, the most stashes alive at once of every stage it runs, over all pipelines; until B or W."""
    return _residents.get(layout, "", lambda: _counted(layout))


_residents: PerObject[list[dict[int, int]]] = PerObject()


def _counted(layout: Layout) -> list[dict[int, int]]:
    found: list[dict[int, int]] = []
    for device in of_layout(layout):
        stage, alive = np.array([s for _, s in device.units]), device.live + device.pending
        found.append({s: int(alive[:, stage == s].sum(axis=1).max()) for s in dict.fromkeys(stage.tolist())})
    return found
