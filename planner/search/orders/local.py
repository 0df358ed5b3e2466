"""What a move promises, without running the whole order: heads and tails, as in job-shop search.

A head is when an op starts, a tail how long the step lasts after its end at the least. An op moves within its device's
sequence, past a block of others. From the heads of what comes before the block, the tails of what comes after, and
those of each op's neighbours on other devices follow new heads and tails of the block alone: the longest path through
it (Taillard, European Journal of Operational Research 47, 1990, 65-74). Paths that leave the block and come back to it
are taken to be as long as before, so it is an estimate, while memory and the order of what a micro-batch does on the
device are exact. It takes time in proportion to the block, not to the order.

              before the block |  the block, one op moved  | after it
    device d  F4  B1  F5       |  B2  [F6]  B3  W1         | F7 ...
              heads as before  |  new heads ->             |
                               |              <- new tails | tails as before
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Arrays and Work

from __future__ import annotations

from ..jit import inlined, lean
from .kernels import FETCH, FREE, NEVER, B, F, R, W


@lean
def consumers(a, reader):
    """By edge, the type of op that reads what it brings."""
    for o in range(len(a.in_first) - 1):
        for x in range(a.in_first[o], a.in_first[o + 1]):
            reader[a.in_edge[x]] = o


@lean
def tail(a, w, reader, q):
    """Sets the tail of the op at position q without its device's next op; returns it with that."""
    units = len(a.batches)
    o, k = w.full[q], w.count_at[q]
    kind = o // units
    u = o - kind * units
    far = a.tail[u] if k + 1 == a.batches[u] and (kind == W or (kind == B and not a.split[u])) else 0.0
    if kind <= B:
        for y in range(a.out_first[o], a.out_first[o + 1]):
            e = a.out_edge[y]
            c = reader[e]
            far = max(far, a.edge_work[e] + a.edge_lag[e] + a.duration[c] + w.rest[w.place[c, k]])
        if kind == F and a.away[u]:
            far = max(far, a.copy_work[u] + w.rest[w.place[FREE * units + u, k]])
    elif kind == FETCH:
        c = B * units + u
        far = a.copy_work[u] + a.copy_lag[u] + a.duration[c] + w.rest[w.place[c, k]]
    w.far[q] = far
    if q + 1 < a.first[a.home[o] + 1]:
        return max(far, a.duration[w.full[q + 1]] + w.rest[q + 1])
    return max(far, a.done[a.home[o]])


@lean
def tails(a, w, reader):
    """Tails of the order evaluated last, which was complete: whole (rest), and without the device's next op (far)."""
    for x in range(w.ran[0] - 1, -1, -1):
        q = w.rank[x]
        w.rest[q] = tail(a, w, reader, q)


@inlined
def missing(w, o, k, lo, hi, serial):
    """Whether the k-th op of type o has not run when the block has come so far."""
    p = w.place[o, k]
    return p > hi or (p >= lo and w.mark[p] != serial)


@inlined
def left(a, w, u, k, lo):
    """When the stash of a forward that has run will have left, its engine being free."""
    p = w.place[F * len(a.batches) + u, k]
    return w.head[p] + a.duration[F * len(a.batches) + u] + a.copy_work[u] if p >= lo else w.gone[u, k]


@inlined
def begin(a, w, o, k, lo, hi, serial):
    """When an op of the block can start for what it reads; negative where it cannot run there."""
    units = len(a.batches)
    kind = o // units
    u = o - kind * units
    if kind == B and (
        missing(w, u, k, lo, hi, serial) or (a.remade[u] and missing(w, R * units + u, k, lo, hi, serial))
    ):
        return -1.0
    if kind == W and missing(w, B * units + u, k, lo, hi, serial):
        return -1.0
    if kind == R and missing(w, F * units + u, k, lo, hi, serial):
        return -1.0
    if kind == FREE:
        return -1.0 if missing(w, F * units + u, k, lo, hi, serial) else left(a, w, u, k, lo)
    if kind == FETCH:
        return -1.0 if missing(w, FREE * units + u, k, lo, hi, serial) else 0.0
    found = 0.0
    if kind == B and a.away[u]:
        if missing(w, FETCH * units + u, k, lo, hi, serial):
            return -1.0
        found = w.back[u, k]
        p = w.place[FETCH * units + u, k]
        if p >= lo:
            found = max(w.head[p], left(a, w, u, k, lo) + a.copy_lag[u]) + a.copy_work[u] + a.copy_lag[u]
    if kind <= B:
        for x in range(a.in_first[o], a.in_first[o + 1]):
            e = a.in_edge[x]
            t = w.arrive[e, k]
            source = a.edge_source[e]
            if a.home[source] == a.home[o]:
                if missing(w, source, k, lo, hi, serial):
                    return -1.0
                p = w.place[source, k]
                if p >= lo:
                    t = w.head[p] + a.duration[source] + a.edge_lag[e]
            found = max(found, t)
    return found


@lean
def promised(a, w, i, j):
    """Seconds of the longest path through the block when the op at position i moves to j; NEVER where that cannot be.

    The order evaluated last was complete and has its tails; of stashes that leave a device none does to another one.
    """
    o = w.full[i]
    d = a.home[o]
    lo, hi = min(i, j), max(i, j)
    w.ran[1] += 1
    serial = w.ran[1]
    k = w.count_at[i]
    for q in range(lo, i):
        if w.full[q] == o:
            k -= 1
    now, held = 0.0, w.room[lo]
    if lo > a.first[d]:
        now = w.start[lo - 1] + a.duration[w.full[lo - 1]]
    for q in range(lo, hi + 1):
        old = i if q == j else (q + 1 if i < j else q - 1)
        c = w.full[old]
        n = w.count_at[old]
        if c == o:
            n = k
            k += 1
        if held + a.need[c] > a.limit[d]:
            return NEVER
        held += a.delta[c]
        t = begin(a, w, c, n, lo, hi, serial)
        if t < 0.0:
            return NEVER
        p = w.place[c, n]
        w.head[p] = max(now, t)
        w.mark[p] = serial
        w.moved[q] = p
        now = w.head[p] + a.duration[c]
    longest, after = 0.0, a.done[d]
    if hi + 1 < a.first[d + 1]:
        after = a.duration[w.full[hi + 1]] + w.rest[hi + 1]
    for q in range(hi, lo - 1, -1):
        p = w.moved[q]
        after = a.duration[w.full[p]] + max(w.far[p], after)
        longest = max(longest, w.head[p] + after)
    return longest
