"""The intervals of layers that may be a stage at one place of the pipeline, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph import stash_policy
from .tables import Floats, Intervals, Ints, StageTables


@dataclass(frozen=True)
class Pairs:
    """Intervals that may be a stage at one place, one entry each, by first layer: as of Intervals and StageTables.

    before, behind: bytes sent over the cuts at its ends, at least.
    """

    place: StageTables
    first: Ints
    end: Ints
    forward: Floats
    backward: Floats
    links: Floats
    copy: Floats
    copy_weights: Floats
    step: Floats
    predict: Floats
    reduce: Floats
    held: Floats
    stash: Floats
    workspace: Floats
    incoming: Floats
    fixed: Floats
    late: NDArray[np.bool_]
    waits: NDArray[np.bool_]
    there_and_back: Floats
    before: Floats
    behind: Floats

    def __len__(self) -> int:
        return len(self.first)

    @property
    def work(self) -> Floats:
        """Seconds of forward and backward."""
        return self.forward + self.backward

    def copied(self, stash: str) -> Floats:
        """Seconds a micro-batch on the host link, one way, with this stash policy."""
        if not stash_policy(stash).hosted:
            return np.zeros_like(self.copy)
        return self.copy + self.copy_weights if stash_policy(stash).versioned else self.copy

    def least(self, value: Floats) -> Ints:
        """For every first layer that has a finite value, the first interval with the least."""
        order = np.lexsort((value, self.first))
        order = order[np.isfinite(value[order])]
        return order[np.unique(self.first[order], return_index=True)[1]]


def pairs_within(c: Intervals, place: StageTables, k: int, count: int, period: float) -> Pairs:
    """The intervals at place k of `count` whose work takes no longer than the period (seconds)."""
    spare = c.size - 1 - count
    rows, columns = slice(k, k + spare + 1), slice(k + 1, k + spare + 2)
    if place.last:
        columns = slice(c.size - 1, c.size)
    if k == 0:
        rows = slice(0, 1)
    work = place.forward[rows, columns] + place.backward[rows, columns]
    first, end = np.nonzero(work <= period)
    first, end = first + rows.start, end + columns.start
    some = first < end
    return pairs_of(c, place, k, first[some], end[some])


def pairs_of(c: Intervals, place: StageTables, k: int, first: Ints, end: Ints) -> Pairs:
    """These intervals at place k, by first layer."""
    front, back = float(k > 0), float(not place.last)

    def of(matrix: Floats) -> Floats:
        return np.asarray(matrix[first, end], dtype=np.float64)

    return Pairs(
        place=place,
        first=first,
        end=end,
        forward=of(place.forward),
        backward=of(place.backward),
        links=of(place.links),
        copy=of(place.copy),
        copy_weights=of(place.copy_weights),
        step=of(place.step),
        predict=of(place.predict),
        reduce=of(place.reduce),
        held=of(c.held),
        stash=of(c.stash),
        workspace=of(c.workspace),
        incoming=of(c.incoming),
        fixed=of(c.fixed),
        late=c.late[first, end],
        waits=c.waits[end],
        there_and_back=place.there_and_back[end],
        before=front * c.crossing[first],
        behind=back * c.crossing[end],
    )
