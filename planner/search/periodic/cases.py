"""From candidates to what the compiled block search reads, and from its lists to compute orders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ...graph import Candidate
from ...plan import Kind, Op
from ..named import timing_of
from .tables import Case, Ints, Work

LAST = -1.0
"""Of the message after the last op of a pass."""


def case_of(candidate: Candidate, whole: Collection[int], batches: Sequence[int], less: Sequence[int] = ()) -> Case:
    """A candidate that keeps its stashes, with so many micro-batches a pipeline; stages `whole` have no W.

    less: bytes that stashes may not take on each device.
    """
    lines = [timing_of(replace(candidate, pipelines=(p,), stash=()), whole) for p in candidate.pipelines]
    ways = [(*p.forward, *p.forward[::-1]) for p in candidate.pipelines]
    stages, devices = len(candidate.stages), len(candidate.problem.cluster)
    room = np.array(timing_of(candidate, whole).room_bytes, dtype=np.float64)
    load = np.zeros(devices)
    parts = []
    for line, way, count in zip(lines, ways, batches, strict=True):
        stash, pending = np.array(line.stash_bytes, dtype=float), np.array(line.pending_bytes, dtype=float)
        none = np.zeros(stages)
        parts.append(
            (
                way,
                [True] * stages + [False] * stages,
                [*line.forward_s, *line.input_s[::-1]],
                [*line.arrival_s, 0.0, *line.arrival_s[::-1], LAST],
                [*stash, *(pending - stash)[::-1]],
                [*stash, *-stash[::-1]],
                [*none, *line.weight_s[::-1]],
                [*none, *pending[::-1]],
            )
        )
        work = np.array(line.forward_s) + line.input_s + line.weight_s
        np.add.at(load, list(way[:stages]), work * count / sum(batches))
    columns = [np.concatenate([part[k] for part in parts]) for k in range(8)]
    costs = [column.astype(np.float64) for column in columns[2:]]
    mine = [np.argsort(way, kind="stable") for way in ways]
    first = [np.searchsorted(np.sort(way), np.arange(devices + 1)) for way in ways]
    return Case(
        device=columns[0].astype(np.int64),
        forward=columns[1].astype(np.bool_),
        takes=costs[0],
        lag=costs[1],
        held=costs[2],
        alive=costs[3],
        weight=costs[4],
        later=costs[5],
        room=room - np.array(less or [0] * devices, dtype=np.float64),
        load=float(load.max()),
        batches=np.array(batches, dtype=np.int64),
        mine=np.array(mine, dtype=np.int64),
        first_mine=np.array(first, dtype=np.int64),
        legs=legs(candidate.pipelines[0].forward),
    )


def legs(route: Sequence[int]) -> Ints:
    """The first op of every part of a pass that visits every device at most once, and the number of ops."""
    first, seen = [0], {route[0]}
    way = (*route, *route[::-1])
    for x in range(1, len(way)):
        if way[x] in seen or x == len(route):
            first.append(x)
            seen = set()
        seen.add(way[x])
    return np.array([*first, len(way)], dtype=np.int64)


def compute_orders(candidate: Candidate, case: Case, work: Work, whole: Collection[int]) -> list[list[Op]]:
    """What ran in the last schedule, as compute orders; of stages `whole`, backwards are not split."""
    stages, count = len(candidate.stages), len(case.takes)
    seen = [0] * (2 * count)
    orders: list[list[Op]] = []
    for low, high in zip(work.first_done, work.first_done[1:], strict=False):
        order = []
        for code in work.done[low:high].tolist():
            pipeline, x = divmod(code % count, 2 * stages)
            stage = x if x < stages else 2 * stages - 1 - x
            batch = candidate.pipelines[pipeline].micro_batches[seen[code]]
            seen[code] += 1
            if code < count:
                kind = Kind.F if x < stages else Kind.B if stage in whole else Kind.I
                order.append(Op(kind, stage, batch))
            elif stage not in whole:
                order.append(Op(Kind.W, stage, batch))
        orders.append(order)
    return orders
