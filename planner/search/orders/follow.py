"""What follows from a move: heads and tails of the ops that it changes, and of no others.

An op has moved within its device's sequence (`local.py`). The ops that it has passed get their heads anew; where an end
or a message comes at another time, so do the ops that it held up or holds up now, in the order of their heads, until
nothing changes any more. Then the same backwards in time with tails. The ops that change are a tenth of all, or a
hundredth where annealing is cold. Heads are those of `kernels.run`, messages that wait for their link included.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Arrays, Work and Queue

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import lean
from .kernels import FETCH, FREE, NEVER, B, F, Floats, Ints, W
from .local import tail


class Queue(NamedTuple):
    """Scratch of one annealing: positions that are to be looked at, those of the least key first.

    keys, heap: a binary heap. queued: by position. aside: what a block's ops were (type, count, head, tail without and
    with the device's next op). looked: how many were, since the last move.
    """

    keys: Floats
    heap: Ints
    queued: NDArray[np.bool_]
    aside: Floats
    looked: Ints


@lean
def enter(x, n, q, key):
    """Queues a position; returns how many are queued."""
    if x.queued[q]:
        return n
    x.queued[q] = True
    at = n
    while at > 0:
        up = (at - 1) >> 1
        if x.keys[up] <= key:
            break
        x.keys[at] = x.keys[up]
        x.heap[at] = x.heap[up]
        at = up
    x.keys[at] = key
    x.heap[at] = q
    return n + 1


@lean
def take(x, n):
    """Takes the first of n positions out of the queue."""
    found = x.heap[0]
    x.queued[found] = False
    x.looked[0] += 1
    last = n - 1
    key, q = x.keys[last], x.heap[last]
    at = 0
    while 2 * at + 1 < last:
        down = 2 * at + 1
        if down + 1 < last and x.keys[down + 1] < x.keys[down]:
            down += 1
        if x.keys[down] >= key:
            break
        x.keys[at] = x.keys[down]
        x.heap[at] = x.heap[down]
        at = down
    x.keys[at] = key
    x.heap[at] = q
    return found


@lean
def clear(x, n):
    """Nothing of n is queued any more."""
    for z in range(n):
        x.queued[x.heap[z]] = False


@lean
def rearrange(a, w, x, lo, hi):
    """The ops of a block get the places that `promised` has tried last, with heads as it estimates them."""
    for q in range(lo, hi + 1):
        p = w.moved[q]
        x.aside[0, q] = w.full[p]
        x.aside[1, q] = w.count_at[p]
        x.aside[2, q] = w.head[p]
        x.aside[3, q] = w.far[p]
        x.aside[4, q] = w.rest[p]
    held = w.room[lo]
    for q in range(lo, hi + 1):
        o, k = int(x.aside[0, q]), int(x.aside[1, q])
        w.full[q] = o
        w.count_at[q] = k
        w.place[o, k] = q
        w.room[q] = held
        held += a.delta[o]
        w.start[q] = x.aside[2, q]
        w.far[q] = x.aside[3, q]
        w.rest[q] = x.aside[4, q]


@lean
def sent_before(a, w, q, y, d):
    """When the message before that of out-edge y of the op at position q has left their link; 0 where there is none."""
    link = a.edge_link[a.out_edge[y]]
    units = len(a.batches)
    for p in range(q, a.first[d] - 1, -1):
        o = w.full[p]
        if o >= (B + 1) * units:
            continue
        for z in range((y if p == q else a.out_first[o + 1]) - 1, a.out_first[o] - 1, -1):
            e = a.out_edge[z]
            if a.edge_link[e] == link:
                return w.arrive[e, w.count_at[p]] - a.edge_lag[e]
    return 0.0


@lean
def next_sender(a, w, q, link, d):
    """The position of the next op of the device that sends over a link; -1 where there is none."""
    units = len(a.batches)
    for p in range(q + 1, a.first[d + 1]):
        o = w.full[p]
        if o < (B + 1) * units:
            for z in range(a.out_first[o], a.out_first[o + 1]):
                if a.edge_link[a.out_edge[z]] == link:
                    return p
    return -1


@lean
def send_again(a, w, x, reader, n, q, end):
    """Messages of the op at position q, which ends then; returns how many positions are queued."""
    o, k = w.full[q], w.count_at[q]
    d = a.home[o]
    for y in range(a.out_first[o], a.out_first[o + 1]):
        e = a.out_edge[y]
        t = end
        if a.edge_work[e] > 0.0:
            t = max(t, sent_before(a, w, q, y, d)) + a.edge_work[e]
        t += a.edge_lag[e]
        before = w.arrive[e, k]
        if t == before:
            continue
        w.arrive[e, k] = t
        p = w.place[reader[e], k]
        if t > w.start[p] or before >= w.start[p]:
            n = enter(x, n, p, max(w.start[p], t))
        if a.edge_work[e] > 0.0:
            p = next_sender(a, w, q, a.edge_link[e], d)
            if p >= 0:
                n = enter(x, n, p, w.start[p])
    return n


@lean
def leaves_before(a, w, q, d):
    """The position of the last forward before q whose stash leaves its device; -1 where there is none."""
    units = len(a.batches)
    for p in range(q - 1, a.first[d] - 1, -1):
        if w.full[p] < units and a.away[w.full[p]]:
            return p
    return -1


@lean
def comes_next(a, w, q, d, step):
    """The position of the next copy back after q, or before it (step -1); -1 where there is none."""
    units = len(a.batches)
    p = q + step
    while a.first[d] <= p < a.first[d + 1]:
        if w.full[p] >= FETCH * units:
            return p
        p += step
    return -1


@lean
def leave_again(a, w, x, n, q, end):
    """The copy of the stash that the forward at position q leaves; returns how many positions are queued."""
    units, u, k = len(a.batches), w.full[q], w.count_at[q]
    d = a.home[u]
    p = leaves_before(a, w, q, d)
    t = (end if p < 0 else max(end, w.gone[w.full[p], w.count_at[p]])) + a.copy_work[u]
    before = w.gone[u, k]
    if t == before:
        return n
    w.gone[u, k] = t
    p = w.place[FREE * units + u, k]
    if t > w.start[p] or before >= w.start[p]:
        n = enter(x, n, p, max(w.start[p], t))
    p = w.place[FETCH * units + u, k]
    n = enter(x, n, p, w.start[p])
    for p in range(q + 1, a.first[d + 1]):  # copies back wait until all has left
        o = w.full[p]
        if o >= FETCH * units or (o < units and a.away[o]):
            n = enter(x, n, p, w.start[p])
        if o < units and a.away[o]:
            break
    return n


@lean
def come_back_again(a, w, x, n, q, begin):
    """The copy back at position q; returns how many positions are queued."""
    units, k = len(a.batches), w.count_at[q]
    u = w.full[q] - FETCH * units
    d = a.home[u]
    t = max(begin, w.gone[u, k] + a.copy_lag[u])
    p = leaves_before(a, w, q, d)
    if p >= 0:
        t = max(t, w.gone[w.full[p], w.count_at[p]])
    p = comes_next(a, w, q, d, -1)
    if p >= 0:
        other = w.full[p] - FETCH * units
        t = max(t, w.back[other, w.count_at[p]] - a.copy_lag[other])
    t += a.copy_work[u] + a.copy_lag[u]
    if t == w.back[u, k]:
        return n
    w.back[u, k] = t
    p = w.place[B * units + u, k]
    n = enter(x, n, p, max(w.start[p], t))
    p = comes_next(a, w, q, d, 1)
    return n if p < 0 else enter(x, n, p, w.start[p])


@lean
def heads(a, w, x, reader, lo, hi, worst):
    """Heads after a block has changed; False where one passes `worst`, ops wait for one another, or all are changed."""
    units = len(a.batches)
    n = 0
    for q in range(lo, min(hi + 2, a.first[a.home[w.full[lo]] + 1])):
        n = enter(x, n, q, w.start[q])
    while n > 0:
        q = take(x, n)
        n -= 1
        o, k = w.full[q], w.count_at[q]
        d = a.home[o]
        begin = 0.0
        if q > a.first[d]:
            begin = w.start[q - 1] + a.duration[w.full[q - 1]]
        if o < (B + 1) * units:
            for y in range(a.in_first[o], a.in_first[o + 1]):
                begin = max(begin, w.arrive[a.in_edge[y], k])
            if o >= units and a.away[o - B * units]:
                begin = max(begin, w.back[o - B * units, k])
        elif FREE * units <= o < FETCH * units:
            begin = max(begin, w.gone[o - FREE * units, k])
        before = w.start[q]
        end = begin + a.duration[o]
        if end > worst or x.looked[0] >= len(w.full):
            clear(x, n)
            return False
        w.start[q] = begin
        if begin != before and q + 1 < a.first[d + 1]:
            later = w.start[q + 1]
            if end > later or before + a.duration[o] >= later:
                n = enter(x, n, q + 1, max(end, later))
        if o < (B + 1) * units:
            n = send_again(a, w, x, reader, n, q, end)
            if o < units and a.away[o]:
                n = leave_again(a, w, x, n, q, end)
        elif o >= FETCH * units:
            n = come_back_again(a, w, x, n, q, begin)
    return True


@lean
def tails_again(a, w, x, reader, lo, hi):
    """Tails after heads have changed, from the block to the front; False where all are changed."""
    units = len(a.batches)
    n = 0
    for q in range(max(lo - 1, a.first[a.home[w.full[lo]]]), hi + 1):
        n = enter(x, n, q, -w.start[q])
    while n > 0:
        q = take(x, n)
        n -= 1
        o, k = w.full[q], w.count_at[q]
        if x.looked[0] >= len(w.full):
            clear(x, n)
            return False
        before, now = w.rest[q], tail(a, w, reader, q)
        if now == before:
            continue
        w.rest[q] = now
        p = q - 1
        if p >= a.first[a.home[o]] and (a.duration[o] + now > w.rest[p] or a.duration[o] + before >= w.rest[p]):
            n = enter(x, n, p, -w.start[p])
        p, way = -1, 0.0
        if FREE * units <= o < FETCH * units:
            p, way = w.place[F * units + o - FREE * units, k], a.copy_work[o - FREE * units]
        elif B * units <= o < (B + 1) * units and a.away[o - B * units]:
            u = o - B * units
            p, way = w.place[FETCH * units + u, k], a.copy_work[u] + a.copy_lag[u] + a.duration[o]
        if p >= 0 and (way + now > w.far[p] or way + before >= w.far[p]):
            n = enter(x, n, p, -w.start[p])
        if o >= (B + 1) * units:
            continue
        for y in range(a.in_first[o], a.in_first[o + 1]):
            e = a.in_edge[y]
            way = a.edge_work[e] + a.edge_lag[e] + a.duration[o]
            p = w.place[a.edge_source[e], k]
            if way + now > w.far[p] or way + before >= w.far[p]:
                n = enter(x, n, p, -w.start[p])
    return True


@lean
def ended(a, w):
    """The makespan by the heads."""
    units = len(a.batches)
    last = 0.0
    for d in range(len(a.first) - 1):
        p = a.first[d + 1] - 1
        end = w.start[p] + a.duration[w.full[p]] if p >= a.first[d] else 0.0
        last = max(last, end + a.done[d])
    for u in range(units):
        if a.batches[u] > 0:
            o = (W if a.split[u] else B) * units + u
            last = max(last, w.start[w.place[o, a.batches[u] - 1]] + a.duration[o] + a.tail[u])
    return last


@lean
def follow(a, w, x, reader, lo, hi, worst):
    """The makespan after the move that `promised` has tried last, with heads and tails.

    NEVER where it passes `worst`, where ops wait for one another, or where as many ops have been looked at as there
    are: then heads and tails are to be made anew.
    """
    x.looked[0] = 0
    rearrange(a, w, x, lo, hi)
    if not heads(a, w, x, reader, lo, hi, worst):
        return NEVER
    makespan = ended(a, w)
    return makespan if makespan <= worst and tails_again(a, w, x, reader, lo, hi) else NEVER
