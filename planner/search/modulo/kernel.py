"""The compiled timetable: start times of one micro-batch's passes that repeat every period, and the bytes they hold.

Modulo scheduling (Rau, Iterative Modulo Scheduling, MICRO 1994): a device that is busy in [a, b) is so in every
period. From the last stage to the first, a forward takes the latest free time before the next stage's, a backward the
earliest one after it, so stashes live as briefly as the free times allow. A stash that lives for 2.4 periods takes
twice its bytes always and three times for 0.4 of a period: the most that a device holds is exact for these times.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import math

from ..jit import lean
from .tables import (
    AHEAD,
    BACK_FIRST,
    BACKWARD,
    BEHIND,
    EARLY,
    END,
    FETCHED,
    FETCHING,
    FORWARD,
    FRONT,
    HALVED,
    HOST,
    LATE,
    LEFT,
    POLICY,
    REAR,
    RECEIVING,
    RECOMPUTE,
    RETURNED,
    RETURNING,
    SENT,
    WEIGHTS,
)

NEVER = 1e300
CLOSE = 1e-9  # of a period
_PROBES, _FINE = 9, 1e-3  # periods that are tried, and how closely


@lean
def reserve(w, d, start, length, period):
    """Notes that a device is busy from `start` on, in every period."""
    if length <= 0.0:
        return
    a = start - math.floor(start / period) * period
    b = a + length
    if b > period * (1.0 + CLOSE):
        insert(w, d, 0.0, b - period)
        w.wrapped[d] = a - period
        b = period
    insert(w, d, a, b)


@lean
def insert(w, d, a, b):
    """Puts an interval where it belongs in the order of time."""
    n = w.held[d]
    while n > 0 and w.busy[0, d, n - 1] > a:
        w.busy[0, d, n], w.busy[1, d, n] = w.busy[0, d, n - 1], w.busy[1, d, n - 1]
        n -= 1
    w.busy[0, d, n], w.busy[1, d, n] = a, b
    w.held[d] += 1


@lean
def after(w, d, earliest, length, period):
    """The first time from `earliest` on at which a device is free for so long; NEVER where there is none."""
    n = w.held[d]
    if length > period * (1.0 + CLOSE):
        return NEVER
    if n == 0 or length <= 0.0:
        return earliest
    close = CLOSE * period
    turn = math.floor(earliest / period) * period
    found = earliest - turn
    last = found + period
    k, shift = 0, 0.0
    while k < n and w.busy[1, d, k] <= found + close:
        k += 1
    while True:
        if k == n:
            k, shift = 0, shift + period
        if found + length <= w.busy[0, d, k] + shift + close:
            return found + turn
        found = max(found, w.busy[1, d, k] + shift)
        if found > last + close:
            return NEVER
        k += 1


@lean
def before(w, d, latest, length, period):
    """The last time up to `latest` from which on a device is free for so long; -NEVER where there is none."""
    n = w.held[d]
    if length > period * (1.0 + CLOSE):
        return -NEVER
    if n == 0 or length <= 0.0:
        return latest
    close = CLOSE * period
    end = latest + length
    turn = math.floor(end / period) * period
    found = end - turn
    first = found - period
    k, shift = n - 1, 0.0
    while k >= 0 and w.busy[0, d, k] >= found - close:
        k -= 1
    while True:
        if k < 0:
            k, shift = n - 1, shift - period
        if found - length >= w.busy[1, d, k] + shift - close:
            return found - length + turn
        found = min(found, w.busy[0, d, k] + shift)
        if found < first - close:
            return -NEVER
        k -= 1


@lean
def against(w, d, start, length, period, later):
    """A free time moved on to where the device's next op begins, or earlier to where the last one ended."""
    n = w.held[d]
    if n == 0 or length <= 0.0:
        return start
    close = CLOSE * period
    at = start + length if later else start
    x = at - math.floor(at / period) * period
    if later:
        k = 0
        while k < n and w.busy[0, d, k] < x - close:
            k += 1
        return start + (w.busy[0, d, k] if k < n else w.busy[0, d, 0] + period) - x
    k = n - 1
    while k >= 0 and w.busy[1, d, k] > x + close:
        k -= 1
    return start - x + (w.busy[1, d, k] if k >= 0 else w.busy[1, d, n - 1] - period)


@lean
def message_s(c, a, b, size):
    """Seconds until a tensor has arrived."""
    return 0.0 if a == b else size * c.pace[a, b] + c.lag[a, b]


@lean
def moved(c, dec, s):
    """Bytes of what a forward leaves that goes to its backward's device, or to the host and back."""
    first = dec[END, s - 1] if s else 0
    if dec[POLICY, s] == RECOMPUTE:
        return c.incoming[first, dec[END, s]]
    return c.stash[dec[END, s]] - c.stash[first]


@lean
def crossing_s(c, dec, s):
    """Seconds from the end of a forward to where its backward may begin."""
    a, b = dec[FRONT, s], dec[REAR, s]
    size = moved(c, dec, s)
    if dec[POLICY, s] == HOST:
        return size * (c.host_pace[a] + c.host_pace[b]) + c.host_lag[a] + c.host_lag[b]
    return message_s(c, a, b, size)


@lean
def carry(c, w, a, b, size):
    """Adds the time of a message a micro-batch."""
    if a == b:
        return
    seconds = size * c.pace[a, b]
    if c.node[a] == c.node[b]:
        w.link[a, b] += seconds
    else:
        w.nic[0, a] += seconds
        w.nic[1, b] += seconds


@lean
def halved(c, dec, s):
    """Whether a stage's backward is two ops: where there is a stage that waits for the first."""
    first = dec[END, s - 1] if s else 0
    return s > 0 and c.halves and dec[HALVED, s] and c.whole[dec[END, s]] == c.whole[first]


@lean
def least_s(c, dec, count, w):
    """Fills `w.lasts`; the period that the busiest device, link or host link needs at least."""
    w.load[:] = 0.0
    w.link[:] = 0.0
    w.nic[:] = 0.0
    w.copies[:] = 0.0
    for s in range(count):
        i, j = dec[END, s - 1] if s else 0, dec[END, s]
        a, b, p = dec[FRONT, s], dec[REAR, s], dec[POLICY, s]
        around = c.around[i, j]
        ahead = (c.forward[j] - c.forward[i] + around) / c.speed[a]
        again = (c.forward[j] - c.forward[i] + around) / c.speed[b] if p == RECOMPUTE else 0.0
        w.lasts[0, s] = ahead + c.predict[a, j] - c.predict[a, i]
        w.lasts[1, s] = again + (c.backward[j] - c.backward[i] + around) / c.speed[b] + c.step[b, j] - c.step[b, i]
        w.lasts[2, s] = again
        w.lasts[3, s] = w.lasts[1, s]
        if halved(c, dec, s):
            w.lasts[1, s] += around / c.speed[b]
            w.lasts[3, s] = again + (c.inputs[j] - c.inputs[i] + around) / c.speed[b]
        w.load[a] += w.lasts[0, s]
        w.load[b] += w.lasts[1, s]
        if p == HOST:
            w.copies[0, c.host[a]] += moved(c, dec, s) * c.host_pace[a]
            w.copies[1, c.host[b]] += moved(c, dec, s) * c.host_pace[b]
        else:
            carry(c, w, a, b, moved(c, dec, s))
        carry(c, w, b, a, (c.trained[j] - c.trained[i]) / c.update)
        if s + 1 < count:
            carry(c, w, a, dec[FRONT, s + 1], c.boundary[j])
            carry(c, w, dec[REAR, s + 1], b, c.boundary[j])
    found = 0.0
    for a in range(len(w.load)):
        found = max(found, w.load[a], w.nic[0, a], w.nic[1, a])
        for b in range(len(w.load)):
            found = max(found, w.link[a, b])
    for host in range(w.copies.shape[1]):
        found = max(found, w.copies[0, host], w.copies[1, host])
    return found


@lean
def placed(c, dec, slack, count, period, w):
    """Fills `w.starts`; whether every pass has a free time."""
    w.held[:] = 0
    w.wrapped[:] = 0.0
    for s in range(count - 1, -1, -1):
        a, b = dec[FRONT, s], dec[REAR, s]
        latest, earliest = 0.0, -NEVER
        if s + 1 < count:
            size = c.boundary[dec[END, s]]
            latest = w.starts[0, s + 1] - message_s(c, a, dec[FRONT, s + 1], size)
            earliest = w.starts[1, s + 1] + w.lasts[3, s + 1] + message_s(c, dec[REAR, s + 1], b, size)
            earliest += max(0.0, slack[BEHIND, s]) * period
        latest -= w.lasts[0, s] + max(0.0, slack[AHEAD, s]) * period
        across = w.lasts[0, s] + crossing_s(c, dec, s)
        first = 1 if dec[BACK_FIRST, s] and s + 1 < count else 0
        for turn in range(2):
            row = first if turn == 0 else 1 - first
            if row == 0:
                if turn == 1:
                    latest = min(latest, w.starts[1, s] - across)
                start = before(w, a, latest, w.lasts[0, s], period)
            else:
                if turn == 1:
                    earliest = max(earliest, w.starts[0, s] + across)
                start = after(w, b, earliest, w.lasts[1, s], period)
            if abs(start) >= NEVER:
                return False
            if slack[row, s] < 0.0:
                start = against(w, b if row else a, start, w.lasts[row, s], period, row == 1)
            w.starts[row, s] = start
            reserve(w, b if row else a, start, w.lasts[row, s], period)
    return True


@lean
def span(w, d, a, b, size):
    """Notes that a device holds bytes from a to b."""
    n = w.noted[0]
    w.spans[0, n], w.spans[1, n], w.spans[2, n], w.spans[3, n] = d, a, b, size
    w.noted[0] = n + 1


@lean
def hold(w, d, a, b, size, period):
    """Notes that a device holds bytes from a to b, in every period."""
    if size <= 0.0 or b <= a:
        return
    turns = math.floor((b - a) / period + CLOSE)
    w.base[d] += turns * size
    rest = b - a - turns * period
    if rest <= CLOSE * period:
        return
    a -= math.floor(a / period) * period
    b = a + rest
    if b >= period:
        w.base[d] += size
        b, a = a, b - period
        size = -size
    n = w.changes[d]
    close = CLOSE * period  # what is released at the same time is so first
    w.times[d, n], w.sizes[d, n] = a - (close if size < 0.0 else 0.0), size
    w.times[d, n + 1], w.sizes[d, n + 1] = b - (close if size > 0.0 else 0.0), -size
    w.changes[d] = n + 2


@lean
def most(w, d):
    """The most bytes that a device holds at once."""
    n = w.changes[d]
    for k in range(1, n):
        time, size = w.times[d, k], w.sizes[d, k]
        x = k
        while x > 0 and w.times[d, x - 1] > time:
            w.times[d, x], w.sizes[d, x] = w.times[d, x - 1], w.sizes[d, x - 1]
            x -= 1
        w.times[d, x], w.sizes[d, x] = time, size
    held = found = w.base[d]
    for k in range(n):
        held += w.sizes[d, k]
        found = max(found, held)
    return found


@lean
def running_since(w, d, t, period):
    """When the op that a device runs at a time began; that time where it runs none."""
    x = t - math.floor(t / period) * period
    close = CLOSE * period
    for k in range(w.held[d]):
        if w.busy[0, d, k] < x - close and w.busy[1, d, k] > x + close:
            since = w.busy[0, d, k]
            if since <= 0.0:
                since = w.wrapped[d]
            return t - (x - since)
    return t


@lean
def running_until(w, d, t, period):
    """When the op that a device runs at a time ends; that time where it runs none."""
    x = t - math.floor(t / period) * period
    close = CLOSE * period
    for k in range(w.held[d]):
        if w.busy[0, d, k] < x + close and w.busy[1, d, k] > x + close:
            end = w.busy[1, d, k]
            if end >= period * (1.0 - CLOSE) and w.held[d] and w.busy[0, d, 0] <= 0.0 and w.wrapped[d] < 0.0:
                end = period + w.busy[1, d, 0]
            return t + (end - x)
    return t


@lean
def sent_at(c, dec, slack, s, period, w):
    """When what a forward leaves begins its way to its backward's device: where that is not too late, when the op there
    has ended that runs then, since what is to be received is asked for before an op begins."""
    ready = w.starts[0, s] + w.lasts[0, s]
    if dec[POLICY, s] != LATE:
        return ready
    latest = w.starts[1, s] - message_s(c, dec[FRONT, s], dec[REAR, s], moved(c, dec, s))
    found = ready + max(0.0, latest - ready) * (1.0 - slack[EARLY, s])
    ended = running_until(w, dec[REAR, s], found, period)
    return ended if ended <= latest else found


@lean
def left_at(c, dec, slack, s, period, w):
    """When what a forward leaves is no longer on its device."""
    a, b = dec[FRONT, s], dec[REAR, s]
    if dec[POLICY, s] == HOST:
        return w.starts[0, s] + w.lasts[0, s] + moved(c, dec, s) * c.host_pace[a]
    return sent_at(c, dec, slack, s, period, w) + moved(c, dec, s) * c.pace[a, b]


@lean
def fetched_at(c, dec, s, w):
    """When a stash begins to come back from the host: as late as its backward is not delayed."""
    b = dec[REAR, s]
    ready = w.starts[0, s] + w.lasts[0, s] + moved(c, dec, s) * c.host_pace[dec[FRONT, s]] + c.host_lag[dec[FRONT, s]]
    return max(ready, w.starts[1, s] - moved(c, dec, s) * c.host_pace[b] - c.host_lag[b])


@lean
def hold_messages(c, dec, s, w):
    """Notes the tensors between a stage and the next one, there and back."""
    j = dec[END, s]
    size, a, e = c.boundary[j], dec[FRONT, s], dec[FRONT, s + 1]
    begin, end = w.starts[0, s], w.starts[0, s] + w.lasts[0, s]
    if a == e:
        span(w, a, begin, w.starts[0, s + 1], size)
    else:
        span(w, a, begin, end + size * c.pace[a, e], size)
        span(w, e, end, w.starts[0, s + 1], size)
    i, k = j, dec[END, s + 1]
    if dec[POLICY, s + 1] != RECOMPUTE:
        rest = size - min(size, c.stash[k] - c.stash[i])
        span(w, e, w.starts[0, s + 1], w.starts[0, s + 1] + w.lasts[0, s + 1], rest)
    a, e = dec[REAR, s + 1], dec[REAR, s]
    begin = w.starts[1, s + 1] + w.lasts[2, s + 1]
    end = w.starts[1, s + 1] + w.lasts[3, s + 1]
    done = w.starts[1, s] + w.lasts[1, s]
    if a == e:
        span(w, a, begin, done, size)
    else:
        span(w, a, begin, end + size * c.pace[a, e], size)
        span(w, e, end, done, size)


@lean
def hold_stash(c, dec, slack, s, period, w):
    """Notes what a stage's forward leaves, wherever it is, until its backward has ended, and the workspaces."""
    i, j = dec[END, s - 1] if s else 0, dec[END, s]
    a, b, p = dec[FRONT, s], dec[REAR, s], dec[POLICY, s]
    begin, end = w.starts[0, s], w.starts[0, s] + w.lasts[0, s]
    again, done = w.starts[1, s], w.starts[1, s] + w.lasts[1, s]
    stash, left = c.stash[j] - c.stash[i], moved(c, dec, s)
    span(w, a, begin, end, c.work[i, j] + (c.inner[i, j] if p == RECOMPUTE else 0.0))
    span(w, b, again, done, c.work[i, j])
    until = again if p == RECOMPUTE else done
    if p == HOST:
        span(w, a, begin, left_at(c, dec, slack, s, period, w), left)
        span(w, b, running_since(w, b, fetched_at(c, dec, s, w), period), until, left)
    elif a == b:
        span(w, a, begin, until, left)
    else:
        sent = sent_at(c, dec, slack, s, period, w)
        span(w, a, begin, left_at(c, dec, slack, s, period, w), left)
        span(w, b, running_since(w, b, sent, period), until, left)
    if p == RECOMPUTE:
        span(w, b, again, done, stash)


@lean
def hold_versions(c, dec, count, period, w):
    """Notes parameters and what is trained, and copies of older versions; predicted weights live as long as a pass, of
    which a device runs one at a time."""
    if c.predicts:
        for s in range(count):
            i, j = dec[END, s - 1] if s else 0, dec[END, s]
            for row in (FRONT, REAR):
                w.base[dec[row, s]] = max(w.base[dec[row, s]], c.trained[j] - c.trained[i])
    flying = 1.0
    for s in range(count - 1, -1, -1):
        flying = max(flying, in_flight(c, dec, s, period, w))
        i, j = dec[END, s - 1] if s else 0, dec[END, s]
        trained, a, b = c.trained[j] - c.trained[i], dec[FRONT, s], dec[REAR, s]
        w.base[b] += c.owned[j] - c.owned[i]
        if a != b:
            w.base[a] += c.lent[j] - c.lent[i] + trained
        if c.versions == 1:
            w.base[b] += math.ceil((flying - 1.0) / c.update - CLOSE) * trained
    if c.versions == 2:
        for s in range(count):
            i, j = dec[END, s - 1] if s else 0, dec[END, s]
            w.base[dec[REAR, s]] += math.ceil((flying - 1.0) / c.update - CLOSE) * (c.trained[j] - c.trained[i])


@lean
def in_flight(c, dec, s, period, w):
    """Micro-batches from a forward to the STEP whose parameters it finds."""
    j = dec[END, s]
    i = dec[END, s - 1] if s else 0
    a, b = dec[FRONT, s], dec[REAR, s]
    trip = w.starts[1, s] + w.lasts[1, s] - w.starts[0, s]
    if a == b:
        return math.ceil(trip / period - CLOSE)
    trip += message_s(c, b, a, c.trained[j] - c.trained[i])
    return math.ceil(trip / period - CLOSE) + c.update - 1.0


@lean
def lacking(c, dec, slack, lowered, count, period, w):
    """The largest share of its memory by which a device lacks some, at a period; NEVER where passes find no time."""
    if not placed(c, dec, slack, count, period, w):
        return NEVER
    w.changes[:] = 0
    w.base[:] = 0.0
    w.noted[0] = 0
    hold_versions(c, dec, count, period, w)
    for s in range(count):
        hold_stash(c, dec, slack, s, period, w)
        if s + 1 < count:
            hold_messages(c, dec, s, w)
    for n in range(w.noted[0]):
        hold(w, int(w.spans[0, n]), w.spans[1, n], w.spans[2, n], w.spans[3, n], period)
    worst = 0.0
    for d in range(len(c.speed)):
        over = most(w, d) + lowered[d] - c.limit[d]
        if over > 0.0:
            worst = max(worst, over / c.limit[d])
    return worst


@lean
def value_of(c, dec, slack, lowered, count, cap, level, w):
    """The least period up to `level` at which decisions fit, as far as halving intervals finds it; else NEVER.

    With level = cap: where they do not fit at `cap` either, more than that, by what is lacking.
    """
    low = least_s(c, dec, count, w) * (1.0 + CLOSE)
    high = level
    if low > level:
        return low if level >= cap and low < NEVER else NEVER
    for probe in range(_PROBES):
        period = low if probe == 0 else high if probe == 1 else math.sqrt(low * high)
        lack = lacking(c, dec, slack, lowered, count, period, w)
        if lack <= 0.0:
            high = period
        elif probe == 1:
            return cap * (2.0 + min(lack, 1e6)) if level >= cap else NEVER
        else:
            low = period
        if high <= low or (probe and high <= low * (1.0 + _FINE)):
            break
    return high


@lean
def times(c, dec, slack, lowered, count, period, w, out):
    """Fills `out` [TIMES; stages]; whether the decisions fit at a period."""
    least_s(c, dec, count, w)
    if lacking(c, dec, slack, lowered, count, period, w) > 0.0:
        return False
    for s in range(count):
        i, j = dec[END, s - 1] if s else 0, dec[END, s]
        a, b = dec[FRONT, s], dec[REAR, s]
        out[FORWARD, s], out[BACKWARD, s] = w.starts[0, s], w.starts[1, s]
        out[SENT, s], out[LEFT, s] = sent_at(c, dec, slack, s, period, w), left_at(c, dec, slack, s, period, w)
        out[FETCHED, s] = fetched_at(c, dec, s, w)
        out[WEIGHTS, s] = w.starts[1, s] + w.lasts[3, s] if halved(c, dec, s) else math.nan
        step = (c.update - 1) * (c.step[b, j] - c.step[b, i])
        out[RETURNED, s] = w.starts[1, s] + w.lasts[1, s] + step
        for row, asked, d in ((SENT, RECEIVING, b), (FETCHED, FETCHING, b), (RETURNED, RETURNING, a)):
            out[asked, s] = running_since(w, d, out[row, s], period)
        begun = math.floor((out[RETURNED, s] - w.starts[0, s]) / period + CLOSE)
        last = w.starts[0, s] + begun * period  # a forward that runs then has begun with the old ones
        if out[RETURNING, s] <= last + CLOSE * period:
            out[RETURNING, s] = last + 100 * CLOSE * period
    return True
