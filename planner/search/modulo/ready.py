"""Whether the compiled timetable can be used: its first compilation takes many seconds, beside the search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ...basics import Aside, on_disk
from ..common import SECONDS
from . import anneal, kernel
from .arm import Allowed, Arm, Heat
from .tables import KEEP, Case


def compiled() -> bool:
    """Whether the compiled functions are in memory or on disk."""
    return all(map(on_disk, (anneal.anneal, kernel.times)))


@contextmanager
def compiling(seconds: float) -> Iterator[Aside | None]:
    """Compiles in a process of its own while the `with` lasts, where it has to be done and these seconds are enough."""
    if compiled() or seconds < SECONDS.timetable:
        yield None
        return
    with Aside(__name__, warm.__name__) as aside:
        yield aside


def warm() -> None:
    """Compiles them, or loads them from disk; seconds the first time."""
    sums, square = np.arange(3, dtype=np.float64), np.zeros((3, 3))
    case = Case(
        forward=sums, backward=sums, inputs=sums, whole=np.zeros(3), around=square,
        step=np.zeros((2, 3)), predict=np.zeros((2, 3)), stash=sums, unstashed=sums,
        owned=sums, lent=sums, trained=sums, boundary=np.zeros(3), work=square, incoming=square, inner=square,
        speed=np.ones(2), limit=np.full(2, 100, dtype=np.float64), node=np.zeros(2, dtype=np.int64), host=np.arange(2),
        host_pace=np.zeros(2), host_lag=np.zeros(2), pace=np.zeros((2, 2)), lag=np.zeros((2, 2)),
        update=1, versions=1, predicts=0, halves=1, apart=1.0,
    )  # fmt: skip
    arm = Arm.of(case, [(1, 0, 0, KEEP), (2, 1, 1, KEEP)], 2, 10, 0)
    arm.improve(Allowed((KEEP,), True), 1, Heat(1.0, 0.5), np.zeros(1, dtype=np.int64))
    arm.times()
