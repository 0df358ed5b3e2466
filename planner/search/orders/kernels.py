"""The compiled core of the order search: an order's times, its memory, and its critical path.

An order is, for every device, a sequence of op types `kind * units + unit`; its k-th entry of one type is the
k-th micro-batch of that unit (one pipeline's stage): micro-batches are alike, so first in first out loses nothing.
All functions are pure loops over arrays, compiled by numba on first use, cached on disk, and free of the
interpreter's lock.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Arrays and Work

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import draw, inlined, lean

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

F, B, W, R, FREE, FETCH = range(6)
"""Kinds of an op type: forward; backward, or its input half; weight half; recomputation; waiting until a stash has left
for the host or another device; fetching it back. It leaves as soon as its forward has ended."""
KINDS = 6
NEVER = 1e300
_CLOSE = 1e-9


class Arrays(NamedTuple):
    """What the kernels know of a candidate. Units are pipeline-major (pipeline * stages + stage).

    first [devices+1]: a device's slice of an order. By op type: home (device), duration (seconds), need and delta
    (bytes an op holds at most beside the live stashes, and what it leaves). By unit: batches, split (backward in two
    halves), remade (recomputed), away (offloaded or shipped), tail (seconds after its last backward at least),
    copy_work and copy_lag (seconds of a copy or message there or back, and latency), copy_out and copy_in (engines, or
    links), lent (whose guests its stashes are: home * devices + target; -1: no other device's). in/out: edges of
    (F or B, unit) in CSR form. By edge: source type, target device, lag (seconds after the message has left), work
    (seconds on its link), link. By device: limit (bytes), load (seconds), and its units, those that a micro-batch
    reaches first in front; done (seconds after its last op at least).
    """

    first: Ints
    home: Ints
    duration: Floats
    need: Ints
    delta: Ints
    batches: Ints
    split: NDArray[np.bool_]
    remade: NDArray[np.bool_]
    away: NDArray[np.bool_]
    tail: Floats
    copy_work: Floats
    copy_lag: Floats
    copy_out: Ints
    copy_in: Ints
    lent: Ints
    in_first: Ints
    in_edge: Ints
    out_first: Ints
    out_edge: Ints
    edge_source: Ints
    edge_target: Ints
    edge_lag: Floats
    edge_work: Floats
    edge_link: Ints
    limit: Ints
    load: Floats
    done: Floats
    unit_first: Ints
    unit: Ints
    links: int


class Work(NamedTuple):
    """Scratch of one thread.

    emptied: by device, when its last stash has left. peak: by device, the most bytes of its own. guests, most_guests:
    by lent, bytes on another device, and the most of them. start, count_at (by position of the complete order) and
    place (by type and count) describe the order evaluated last; full is that order, weight halves included. ran: how
    many ops have run, and of `local.py` how many moves; rank: their positions as they ran. room: by position, bytes
    held before. rest, far, head, mark, moved: of `local.py`.
    """

    counts: Ints
    pointer: Ints
    written: Ints
    clock: Floats
    left: Floats
    held: Ints
    arrive: Floats
    gone: Floats
    emptied: Floats
    peak: Ints
    guests: Ints
    most_guests: Ints
    back: Floats
    link_free: Floats
    stack: Ints
    queued: NDArray[np.bool_]
    waiting: Ints
    wait_first: Ints
    wait_last: Ints
    full: Ints
    start: Floats
    count_at: Ints
    place: Ints
    ran: Ints
    rank: Ints
    room: Ints
    rest: Floats
    far: Floats
    head: Floats
    mark: Ints
    moved: Ints


@inlined
def write(a, w, d, o, begin):
    """Puts the next op of type o of device d at its time into the complete order; returns its end."""
    q = w.written[d]
    k = w.counts[o]
    w.full[q] = o
    w.start[q] = begin
    w.count_at[q] = k
    w.place[o, k] = q
    w.rank[w.ran[0]] = q
    w.ran[0] += 1
    w.room[q] = w.held[d]
    w.peak[d] = max(w.peak[d], w.held[d] + a.need[o])
    w.written[d] = q + 1
    w.counts[o] = k + 1
    w.held[d] += a.delta[o]
    w.left[d] -= a.duration[o]
    return begin + a.duration[o]


@inlined
def send(a, w, d, o, k, finish, top):
    """Sends what the k-th op of type o made and wakes the devices that get it; returns the new top of the stack."""
    for x in range(a.out_first[o], a.out_first[o + 1]):
        e = a.out_edge[x]
        link = a.edge_link[e]
        t = max(finish, w.link_free[link]) + a.edge_work[e]
        w.link_free[link] = t
        w.arrive[e, k] = t + a.edge_lag[e]
        target = a.edge_target[e]
        if target != d and not w.queued[target]:
            w.queued[target] = True
            w.stack[top] = target
            top += 1
    return top


@inlined
def copy(work, engine, link_free, now):
    """Starts a copy on an engine; returns when it has left."""
    link_free[engine] = max(now, link_free[engine]) + work
    return link_free[engine]


@inlined
def leave(a, w, d, u, k, now):
    """The stash of a forward that has ended leaves its device."""
    w.gone[u, k] = copy(a.copy_work[u], a.copy_out[u], w.link_free, now)
    w.emptied[d] = max(w.emptied[d], w.gone[u, k])
    x = a.lent[u]
    if x >= 0:
        w.guests[x] += a.delta[FETCH * len(a.batches) + u]
        w.most_guests[x] = max(w.most_guests[x], w.guests[x])


@inlined
def come_back(a, w, d, u, k, now):
    """A stash comes back: from the host behind all that has left before, from another device once it is there."""
    t = max(now, w.gone[u, k] + a.copy_lag[u])
    x = a.lent[u]
    if x < 0:
        t = max(t, w.emptied[d])
    else:
        w.guests[x] -= a.delta[FETCH * len(a.batches) + u]
    w.back[u, k] = copy(a.copy_work[u], a.copy_in[u], w.link_free, t) + a.copy_lag[u]


@lean
def hosted(a, w):
    """Whether every device had room for the most guests that it had, beside the most of its own."""
    devices = len(a.first) - 1
    for x in range(len(w.most_guests)):
        w.peak[x % devices] += w.most_guests[x]
    fits = True
    for d in range(devices):
        fits &= w.peak[d] <= a.limit[d]
    return fits


@inlined
def arrival(a, w, o, k):
    """When the inputs of the k-th op of type o are there; -1 when that is not known yet."""
    t = 0.0
    for x in range(a.in_first[o], a.in_first[o + 1]):
        found = w.arrive[a.in_edge[x], k]
        if found < 0.0:
            return -1.0
        t = max(t, found)
    return t


@inlined
def reset(a, w):
    """Before the first op."""
    w.counts[:] = 0
    w.ran[0] = 0
    w.link_free[:] = 0.0
    w.arrive[:] = -1.0
    w.emptied[:] = 0.0
    w.peak[:] = 0
    w.guests[:] = 0
    w.most_guests[:] = 0
    w.clock[:] = 0.0
    w.held[:] = 0
    for d in range(len(a.load)):
        w.left[d] = a.load[d]
        w.written[d] = a.first[d]


@lean
def run(a, w, seq, begin_at, stop_at, fill, worst):
    """Makespan of an order, every op as early as it can; NEVER when it cannot run, does not fit, or passes `worst`.

    seq[begin_at[d]:stop_at[d]] is device d's order. fill < 0: it is complete. Otherwise it lacks the weight halves;
    one runs before an op that has to wait for at least `fill` of its length or needs its memory, the rest at the end.
    """
    units = len(a.batches)
    devices = len(a.first) - 1
    reset(a, w)
    left = 0
    for d in range(devices):
        w.pointer[d] = begin_at[d]
        left += stop_at[d] - begin_at[d]
        w.stack[d] = devices - 1 - d
        w.queued[d] = True
        w.wait_first[d] = w.wait_last[d] = a.first[d]
    top = devices
    makespan = 0.0
    while top > 0:
        top -= 1
        d = w.stack[top]
        w.queued[d] = False
        now = w.clock[d]
        p = w.pointer[d]
        while p < stop_at[d]:
            o = seq[p]
            kind = o // units
            u = o - kind * units
            k = w.counts[o]
            begin = now
            if kind <= B:
                t = arrival(a, w, o, k)
                if t < 0.0:
                    break
                begin = max(now, t)
                if kind == B:
                    if w.counts[u] <= k or (a.remade[u] and w.counts[R * units + u] <= k):
                        return NEVER
                    if a.away[u]:
                        if w.counts[FETCH * units + u] <= k:
                            return NEVER
                        begin = max(begin, w.back[u, k])
            elif kind == W:
                if w.counts[B * units + u] <= k:
                    return NEVER
            elif w.counts[(FREE if kind == FETCH else F) * units + u] <= k:
                return NEVER
            elif kind == FREE:
                begin = max(now, w.gone[u, k])
            while w.wait_first[d] < w.wait_last[d]:
                x = w.waiting[w.wait_first[d]]
                room = w.held[d] + a.need[o] <= a.limit[d]
                if room and begin - now < fill * a.duration[x] * (1 - _CLOSE):
                    break
                if w.held[d] + a.need[x] > a.limit[d]:
                    if room:
                        break
                    return NEVER
                w.wait_first[d] += 1
                now = write(a, w, d, x, now)
                if w.counts[x] == a.batches[x - W * units]:
                    makespan = max(makespan, now + a.tail[x - W * units])
                begin = max(begin, now)
            if w.held[d] + a.need[o] > a.limit[d]:
                return NEVER
            now = write(a, w, d, o, begin)
            if now + w.left[d] + a.done[d] > worst:
                return NEVER
            p += 1
            left -= 1
            if kind <= B:
                top = send(a, w, d, o, k, now, top)
                if kind == F and a.away[u]:
                    leave(a, w, d, u, k, now)
            elif kind == FETCH:
                come_back(a, w, d, u, k, now)
            if kind == B and fill >= 0.0 and a.split[u]:
                w.waiting[w.wait_last[d]] = W * units + u
                w.wait_last[d] += 1
            if k + 1 == a.batches[u] and (kind == W or (kind == B and not a.split[u])):
                makespan = max(makespan, now + a.tail[u])
        if p == stop_at[d]:
            while w.wait_first[d] < w.wait_last[d]:
                x = w.waiting[w.wait_first[d]]
                if w.held[d] + a.need[x] > a.limit[d]:
                    return NEVER
                w.wait_first[d] += 1
                now = write(a, w, d, x, now)
                if w.counts[x] == a.batches[x - W * units]:
                    makespan = max(makespan, now + a.tail[x - W * units])
            makespan = max(makespan, now + a.done[d])
        w.pointer[d] = p
        w.clock[d] = now
    if left > 0 or makespan > worst or (len(w.guests) > 0 and not hosted(a, w)):
        return NEVER
    return makespan


@lean
def critical(a, w, makespan, path, state):
    """Fills `path` with positions of a critical path of the order evaluated last, its end first; returns the length."""
    units = len(a.batches)
    position = -1
    ends = 0
    close = _CLOSE * makespan
    for u in range(units):
        if a.batches[u] == 0:
            continue
        o = (W if a.split[u] else B) * units + u
        p = w.place[o, a.batches[u] - 1]
        if w.start[p] + a.duration[o] + a.tail[u] >= makespan - close:
            ends += 1
            if draw(state) * ends < 1.0:
                position = p
    for d in range(len(a.done)):
        p = a.first[d + 1] - 1
        if p >= a.first[d] and w.start[p] + a.duration[w.full[p]] + a.done[d] >= makespan - close:
            ends += 1
            if draw(state) * ends < 1.0:
                position = p
    length = 0
    while position >= 0 and length < len(path):
        path[length] = position
        length += 1
        begin = w.start[position]
        if begin <= close:
            break
        o = w.full[position]
        before = -1
        if position > a.first[a.home[o]]:
            q = position - 1
            if abs(w.start[q] + a.duration[w.full[q]] - begin) <= close:
                before = q
        cause = -1
        k = w.count_at[position]
        u = o % units
        if o // units == FREE:
            cause = w.place[u, k]
        elif o < W * units:
            if o >= B * units and a.away[u] and abs(w.back[u, k] - begin) <= close:
                cause = w.place[FETCH * units + u, k]
            for x in range(a.in_first[o], a.in_first[o + 1]):
                e = a.in_edge[x]
                if abs(w.arrive[e, k] - begin) <= close:
                    cause = w.place[a.edge_source[e], k]
        position = before if before >= 0 and (cause < 0 or draw(state) < 0.5) else cause
    return length
