"""Annealing of per-device orders: one op moves within its device's sequence.

What that changes is run again (`follow.py`); the whole order is where a rule fills in weight halves, or where copies of
several devices share an engine.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Arrays and Work

from __future__ import annotations

import numba
import numpy as np

from ..jit import draw, lean
from .follow import Queue, follow
from .kernels import _CLOSE, NEVER, W, critical, run
from .local import consumers, promised, tails


@numba.njit(cache=True, nogil=True)
def strip(a, order, fill, seq, begin_at, stop_at):
    """Copies a complete order to `seq`, without its weight halves when a rule fills them in; returns its length."""
    units = len(a.batches)
    n = 0
    for d in range(len(a.first) - 1):
        begin_at[d] = n
        for p in range(a.first[d], a.first[d + 1]):
            if fill < 0.0 or order[p] // units != W:
                seq[n] = order[p]
                n += 1
        stop_at[d] = n
    return n


@numba.njit(cache=True, nogil=True, inline="always")
def shift(seq, i, j):
    """Moves the entry at i to j."""
    o = seq[i]
    step = 1 if j > i else -1
    for q in range(i, j, step):
        seq[q] = seq[q + step]
    seq[j] = o


@numba.njit(cache=True, nogil=True)
def _path(a, w, fill, begin_at, makespan, path, state, index):
    """A critical path as positions of the sequence that is annealed."""
    length = critical(a, w, makespan, path, state)
    if fill < 0.0:
        return length
    units = len(a.batches)
    for d in range(len(begin_at)):
        n = begin_at[d]
        for p in range(a.first[d], a.first[d + 1]):
            index[p] = n
            if w.full[p] // units != W:
                n += 1
    kept = 0
    for x in range(length):
        if w.full[path[x]] // units != W:
            path[kept] = index[path[x]]
            kept += 1
    return kept


@numba.njit(cache=True, nogil=True)
def proposed(path, length, n, begin_at, stop_at, state):
    """A move at random, mostly of an op on the critical path: from where to where within its device's sequence."""
    i = path[int(draw(state) * length)] if length > 0 and draw(state) < 0.85 else int(draw(state) * n)
    r = draw(state)
    by = 1 + int(draw(state) * (3 if r < 0.6 else (12 if r < 0.88 else 50)))
    d = 0
    while stop_at[d] <= i:
        d += 1
    return i, (max(begin_at[d], i - by) if draw(state) < 0.55 else min(stop_at[d] - 1, i + by))


@numba.njit(cache=True, nogil=True, inline="always")
def accepted(value, temperature, state):
    """The longest makespan that is accepted this time."""
    return value - temperature * np.log(draw(state) + 1e-300) + _CLOSE * value


@lean
def alone(a):
    """Whether stashes that leave have engines of their device's own."""
    for u in range(len(a.batches)):
        if not a.away[u]:
            continue
        if a.lent[u] >= 0:
            return False
        for v in range(u):
            if a.away[v] and a.copy_out[u] == a.copy_out[v] and a.home[u] != a.home[v]:
                return False
    return True


@numba.njit(cache=True, nogil=True)
def anneal(a, w, v, order, effort, hot, cold, target, fill, state, stop):
    """Anneals `order` (complete) in place to the best one found; returns its makespan, NEVER where it cannot run.

    effort: in runs of one op. hot, cold: first and last temperature in seconds. Stops at `target` seconds. fill: as in
    kernels.run. A move is accepted when the new makespan is below a level drawn beforehand, so that hopeless runs stop
    early. w, v: scratch. `stop`: an array of one number; annealing ends when it is no longer 0. Of orders that are
    complete, and whose copies nobody else's hold up, only what a move changes is run again (`follow.py`).
    """
    if fill < 0.0 and alone(a):
        return _by_blocks(a, w, order, effort, hot, cold, target, state, stop)
    total = len(order)
    devices = len(a.first) - 1
    seq, path, index = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    begin_at, stop_at = np.empty(devices, np.int64), np.empty(devices, np.int64)
    n = strip(a, order, fill, seq, begin_at, stop_at)
    value = run(a, w, seq, begin_at, stop_at, fill, NEVER)
    if value >= NEVER:
        return value
    order[:] = w.full
    best, best_seq = value, seq.copy()
    length = _path(a, w, fill, begin_at, value, path, state, index)
    cooling = np.log(cold / hot) / max(1, effort)
    spent = since = 0
    while spent < effort and best > target and stop[0] == 0:
        temperature = hot * np.exp(cooling * spent)
        spent += 1
        since += 1
        i, j = proposed(path, length, n, begin_at, stop_at, state)
        if i == j or (abs(i - j) == 1 and seq[i] == seq[j]):
            continue
        shift(seq, i, j)
        new = run(a, v, seq, begin_at, stop_at, fill, accepted(value, temperature, state))
        spent += v.ran[0]
        if new >= NEVER:
            shift(seq, j, i)
        else:
            value = new
            w, v = v, w
            if value < best - _CLOSE * best:
                best, since = value, 0
                order[:] = w.full
                best_seq[:] = seq
            length = _path(a, w, fill, begin_at, value, path, state, index)
        if since >= 20_000 and value > best * 1.01:
            seq[:] = best_seq
            since = 0
            value = run(a, w, seq, begin_at, stop_at, fill, NEVER)
            length = _path(a, w, fill, begin_at, value, path, state, index)
    return best


@numba.njit(cache=True, nogil=True)
def _by_blocks(a, w, order, effort, hot, cold, target, state, stop):
    """The same, where heads and tails of the current order are kept: a move costs what it changes."""
    total = len(order)
    begin_at, stop_at = a.first[:-1].copy(), a.first[1:].copy()
    seq, path, reader = order.copy(), np.empty(total, np.int64), np.zeros(len(a.edge_lag), np.int64)
    x = Queue(
        np.empty(total), np.empty(total, np.int64), np.zeros(total, np.bool_), np.empty((5, total)),
        np.zeros(1, np.int64),
    )  # fmt: skip
    consumers(a, reader)
    value = _from_the_start(a, w, seq, begin_at, stop_at, reader)
    if value >= NEVER:
        return value
    first = best = value
    given = order.copy()
    length = critical(a, w, value, path, state)
    cooling = np.log(cold / hot) / max(1, effort)
    spent = since = 0
    while spent < effort and best > target and stop[0] == 0:
        temperature = hot * np.exp(cooling * spent)
        spent += 1
        since += 1
        i, j = proposed(path, length, total, begin_at, stop_at, state)
        if i == j or (abs(i - j) == 1 and seq[i] == seq[j]):
            continue
        level = accepted(value, temperature, state)
        spent += 2 * abs(i - j)
        if promised(a, w, i, j) > level:
            continue
        new = follow(a, w, x, reader, min(i, j), max(i, j), level)
        shift(seq, i, j)
        spent += 3 * x.looked[0]  # they are queued
        if new >= NEVER:
            new = _from_the_start(a, w, seq, begin_at, stop_at, reader) if x.looked[0] >= total else NEVER
            spent += 2 * total
            if new > level:
                shift(seq, j, i)
                value = _from_the_start(a, w, seq, begin_at, stop_at, reader)
                continue
        value = new
        if value < best - _CLOSE * best:
            best, since = value, 0
            order[:] = seq
        if since >= 20_000 and value > best * 1.01:
            seq[:] = order
            since = 0
            value = _from_the_start(a, w, seq, begin_at, stop_at, reader)
        length = critical(a, w, value, path, state)
    best = run(a, w, order, begin_at, stop_at, -1.0, NEVER)
    if best >= NEVER:
        order[:] = given
        return first
    return best


@numba.njit(cache=True, nogil=True)
def _from_the_start(a, w, seq, begin_at, stop_at, reader):
    """Runs a complete order, and sets its tails."""
    value = run(a, w, seq, begin_at, stop_at, -1.0, NEVER)
    if value < NEVER:
        tails(a, w, reader)
    return value
