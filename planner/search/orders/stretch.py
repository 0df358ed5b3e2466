"""From few micro-batches to many: repeats the steady part of an order.

A window of time in which every op type of the order starts equally often can be run again and again: the live
stashes are the same at its both ends. Dependencies are met as they were, a window later, but for ops that were under
way when the window began: what they send may come later the next time, so that a repetition has to be run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .kernels import Arrays, Floats, Ints


class Window(NamedTuple):
    """A part of an order that can be repeated: [begin_s, begin_s + length_s) with `batches` of every op type."""

    begin_s: float
    length_s: float
    batches: int


def windows(a: Arrays, order: Ints, start: Floats, divides: int) -> list[Window]:
    """Repeatable windows of an order with these start times, by seconds a micro-batch, shortest first.

    Only windows that begin with one op type's start and whose micro-batches divide `divides`.
    """
    types = np.flatnonzero(np.bincount(order, minlength=len(a.home)))
    times = [np.sort(start[order == o]) for o in types]
    count = min(map(len, times))
    if any(len(t) != count for t in times):
        return []
    table = np.stack(times)  # [types, micro-batches]
    found = []
    for begin in table[0]:
        before = (table < begin).sum(axis=1)
        for q in range(1, count // 2 + 1):
            if divides % q or before.max() + q > count:
                continue
            last = table[np.arange(len(types)), before + q - 1].max()
            more = before + q < count
            following = table[np.flatnonzero(more), (before + q)[more]]
            end = following.min() if len(following) else np.inf
            if last < end and np.isfinite(end):
                found.append(Window(float(begin), float(end - begin), q))
    return sorted(found, key=lambda x: (x.length_s / x.batches, x.batches))


def stretch(a: Arrays, order: Ints, start: Floats, window: Window, more: int) -> Ints:
    """The order with `more` additional micro-batches a unit; more is a multiple of the window's."""
    parts = []
    for low, high in zip(a.first[:-1].tolist(), a.first[1:].tolist(), strict=True):
        mine, times = order[low:high], start[low:high]
        i = int(np.searchsorted(times, window.begin_s, side="left"))
        j = int(np.searchsorted(times, window.begin_s + window.length_s, side="left"))
        parts += [mine[:j], np.tile(mine[i:j], more // window.batches), mine[j:]]
    return np.concatenate(parts).astype(np.int64)
