"""The compiled timetable of one pass that begins anew every period: the least period at which everything fits.

    F0 -> F1 -> F2 -> I2 -> I1 -> I0     each as soon as its device is free of what other passes do then
               W2    W1    W0            as soon as there is room in its device's period

Modulo scheduling, as in `jit/gaps.py`, of a pass whose op has one successor each.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import math

from ..jit import NEVER, after, lean, reserve

_CLOSE = 1e-9
_SHORTEST = 1e-100


@lean
def fill(c, w, ends, dev, again):
    """What the ops of these stages on these devices take, and bytes; returns the least period that may be possible."""
    stages = len(dev)
    for d in range(len(w.first)):
        w.first[d], w.load[d], w.bytes_s[d], w.left[d], w.tensors[d] = -1, 0.0, 0.0, c.room[d], 0.0
    for s in range(stages - 1, -1, -1):
        a, b, d = ends[s], ends[s + 1], dev[s]
        weight = c.weights[b] - c.weights[a]
        halves = c.single[b] == c.single[a]
        beside = c.around[a, b]
        w.forward[s] = (c.forward[b] - c.forward[a] + beside) / c.speed[d]
        w.inputs[s] = (c.inputs[b] - c.inputs[a] + beside + (0.0 if halves else weight)) / c.speed[d]
        w.weights[s] = (weight + c.aside) / c.speed[d] if halves else 0.0
        stash = c.stash[b] - c.unstashed[a]
        w.pending[s] = c.pending[b] - c.unpending[a] if halves else 0.0
        w.stash[s] = max(stash, w.pending[s])
        w.left[d] -= c.static[b] - c.static[a]
        w.remake[s] = w.forward[s] if again[s] else 0.0
        w.kept[s] = c.incoming[a] if again[s] else stash
        w.tensors[d] = max(w.tensors[d], c.boundary[a] + c.boundary[b])
        w.load[d] += w.forward[s] + w.remake[s] + w.inputs[s] + w.weights[s]
        w.following[s] = w.first[d]
        w.first[d] = s
        before = dev[s - 1] if s > 0 else d
        apart = before != d
        w.hop[s] = c.lag[before, d] + c.boundary[a] * c.pace[before, d] if apart else 0.0
        w.back[s] = c.lag[d, before] + c.boundary[a] * c.pace[d, before] if apart else 0.0
    held_s = 0.0
    for s in range(stages - 1, -1, -1):
        back_s = w.remake[s] + w.inputs[s]
        held_s += w.forward[s] + back_s
        w.bytes_s[dev[s]] += w.kept[s] * (held_s - back_s) + w.stash[s] * back_s + w.pending[s] * w.weights[s]
        held_s += w.hop[s] + w.back[s]
    least = _SHORTEST
    for d in range(len(w.first)):
        w.left[d] -= w.tensors[d]
        least = max(least, w.load[d])
        if w.bytes_s[d] > 0.0:
            if w.left[d] <= 0.0:
                return NEVER
            least = max(least, w.bytes_s[d] / w.left[d])
        elif w.left[d] < 0.0:
            return NEVER
    return least


@lean
def latency_of(w):
    """Seconds of a pass that waits for nothing."""
    total = 0.0
    for s in range(len(w.forward)):
        total += w.hop[s] + w.forward[s] + w.remake[s] + w.inputs[s] + w.back[s]
    return total


@lean
def timed(w, dev, period):
    """Gives every op its time, where the devices have any; whether they do."""
    stages = len(dev)
    for d in range(len(w.held)):
        w.held[d], w.wrapped[d] = 0, 0.0
    at = 0.0
    for x in range(2 * stages):
        s = x if x < stages else 2 * stages - 1 - x
        takes = w.forward[s] if x < stages else w.remake[s] + w.inputs[s]
        if x < stages:
            at += w.hop[s]
        elif x > stages:
            at += w.back[s + 1]
        at = after(w, dev[s], at, takes, period)
        if at >= NEVER:
            return False
        w.begins[x] = at
        reserve(w, dev[s], at, takes, period)
        at += takes
    for s in range(stages - 1, -1, -1):
        ready = w.begins[2 * stages - 1 - s] + w.remake[s] + w.inputs[s]
        w.done[s] = ready
        if w.weights[s] > 0.0:
            at = after(w, dev[s], ready, w.weights[s], period)
            if at >= NEVER:
                return False
            reserve(w, dev[s], at, w.weights[s], period)
            w.done[s] = at + w.weights[s]
    return True


@lean
def holds(w, dev, period):
    """Whether no device holds more than it has room for: it does most where an F begins, or a B that makes its stash
    again, or leaves more for its W than there was."""
    stages = len(dev)
    for y in range(2 * stages):
        s = y if y < stages else 2 * stages - 1 - y
        if y >= stages and w.stash[s] <= w.kept[s]:
            continue
        d, now, sum_bytes = dev[s], w.begins[y], 0.0
        r = w.first[d]
        while r >= 0:
            x = 2 * stages - 1 - r
            begun = math.floor((now - w.begins[r]) / period + _CLOSE)
            made = math.floor((now - w.begins[x]) / period + _CLOSE)
            back = math.floor((now - w.begins[x] - w.remake[r] - w.inputs[r]) / period - _CLOSE)
            done = math.floor((now - w.done[r]) / period - _CLOSE)
            sum_bytes += (begun - made) * w.kept[r] + (made - back) * w.stash[r] + (back - done) * w.pending[r]
            r = w.following[r]
        if sum_bytes > w.left[d] * (1.0 + _CLOSE):
            return False
    return True


@lean
def runs(w, dev, period):
    """Whether everything has its time, and its room, at a period."""
    return timed(w, dev, period) and holds(w, dev, period)


@lean
def longest_of(w, latency):
    """A period from which on none is looked at: nearly nothing runs beside anything else."""
    longest = 2.0 * latency
    for d in range(len(w.load)):
        longest = max(longest, 2.0 * w.load[d])
    return longest


@lean
def total_of(c, w, dev, period):
    """Seconds of all micro-batches, one a period, as they were timed last."""
    last = w.begins[2 * len(dev) - 1] + w.remake[0] + w.inputs[0] + w.weights[0]
    return (c.micro_batches - 1) * period + last


@lean
def value_of(c, w, ends, dev, again, finer):
    """Seconds of all micro-batches at the least period at which everything fits, of those tried, each `finer` times as
    long as the one before, and this period, at which everything has its time then; NEVER where nothing fits.
    """
    period = fill(c, w, ends, dev, again)
    longest = longest_of(w, latency_of(w)) if period < NEVER else 0.0
    while period <= longest:
        if runs(w, dev, period):
            return total_of(c, w, dev, period), period
        period *= finer
    return NEVER, NEVER


@lean
def value_under(c, w, ends, dev, again, finer, level):
    """Seconds of all micro-batches at a period at which everything fits, NEVER where they come to no less than `level`.

    Longer periods are taken to fit where shorter ones do: the longest that may be less than `level` is tried first,
    which rules out most moves, then the range is halved, until periods are less than `finer` times one another. Of what
    is only to fit, with `level` NEVER, all are tried.
    """
    if level >= NEVER:
        total, _ = value_of(c, w, ends, dev, again, finer)
        return total
    period = fill(c, w, ends, dev, again)
    if period >= NEVER:
        return NEVER
    least, more = latency_of(w), c.micro_batches - 1
    longest = longest_of(w, least)
    if more > 0:
        longest = min(longest, (level - least) / more)
    if period > longest:
        return NEVER
    low, high = -1, int(math.log(longest / period) / math.log(finer))
    if not runs(w, dev, period * finer**high):
        return NEVER
    total = total_of(c, w, dev, period * finer**high)
    while high - low > 1:
        middle = (low + high) // 2
        if runs(w, dev, period * finer**middle):
            high = middle
            total = total_of(c, w, dev, period * finer**high)
        else:
            low = middle
    return total
