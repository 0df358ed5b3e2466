"""Times of one micro-batch's passes and copies that repeat every period.

From the last stage to the first, a forward takes the latest free time before the next stage's, a backward the earliest
one after it, so stashes live as briefly as the free times allow.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

from ..jit import CLOSE, NEVER, after, against, before, inlined, lean, reserve
from .tables import AHEAD, BACK_FIRST, BEHIND, END, FRONT, HALVED, HOST, POLICY, REAR, RECOMPUTE


@inlined
def message_s(c, a, b, size):
    """Seconds until a tensor has arrived."""
    return 0.0 if a == b else size * c.pace[a, b] + c.lag[a, b]


@inlined
def behind_s(c, w, a, b, size):
    """The same where the longest stash, or parameters, are on their way there: what is sent comes behind them.

    When they are is left open. Who waits so long for a message is never late, and has it earlier mostly.
    """
    if a == b:
        return 0.0
    ahead = w.link[1, a, b] if c.node[a] == c.node[b] else max(w.nic[2, a], w.nic[3, b])
    return c.lag[a, b] + max(size * c.pace[a, b], ahead)


@inlined
def moved(c, dec, s):
    """Bytes of what a forward leaves that goes to its backward's device, or to the host and back."""
    first = dec[END, s - 1] if s else 0
    if dec[POLICY, s] == RECOMPUTE:
        return c.incoming[first, dec[END, s]]
    return c.stash[dec[END, s]] - c.unstashed[first]


@inlined
def carry(c, w, a, b, size, every, long):
    """Adds the time a micro-batch of a message that there is once in so many; long: others may have to wait for it."""
    if a == b:
        return
    seconds = size * c.pace[a, b]
    if c.node[a] == c.node[b]:
        w.link[0, a, b] += seconds / every
        w.link[1, a, b] = max(w.link[1, a, b], seconds * long)
    else:
        w.nic[0, a] += seconds / every
        w.nic[1, b] += seconds / every
        w.nic[2, a] = max(w.nic[2, a], seconds * long)
        w.nic[3, b] = max(w.nic[3, b], seconds * long)


@inlined
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
            carry(c, w, a, b, moved(c, dec, s), 1, True)
        carry(c, w, b, a, c.trained[j] - c.trained[i], c.update, True)
        if s + 1 < count:
            carry(c, w, a, dec[FRONT, s + 1], c.boundary[j], 1, False)
            carry(c, w, dec[REAR, s + 1], b, c.boundary[j], 1, False)
    found = 0.0
    for a in range(len(w.load)):
        found = max(found, w.load[a], w.nic[0, a], w.nic[1, a])
        for b in range(len(w.load)):
            found = max(found, w.link[0, a, b])
    for host in range(w.copies.shape[1]):
        found = max(found, w.copies[0, host], w.copies[1, host])
    return found


@lean
def placed(c, dec, slack, count, period, w):
    """Fills `w.starts` and `w.copied`; whether every pass and every copy has a free time."""
    w.held[:] = 0
    w.wrapped[:] = 0.0
    for s in range(count - 1, -1, -1):
        a, b = dec[FRONT, s], dec[REAR, s]
        latest, earliest = 0.0, -NEVER
        if s + 1 < count:
            size = c.boundary[dec[END, s]]
            latest = w.starts[0, s + 1] - behind_s(c, w, a, dec[FRONT, s + 1], size)
            earliest = w.starts[1, s + 1] + w.lasts[3, s + 1] + behind_s(c, w, dec[REAR, s + 1], b, size)
            earliest += max(0.0, slack[BEHIND, s]) * period
        latest -= w.lasts[0, s] + max(0.0, slack[AHEAD, s]) * period
        first = 1 if dec[BACK_FIRST, s] and s + 1 < count else 0
        for turn in range(2):
            row = first if turn == 0 else 1 - first
            if row == 0:
                if turn == 1:
                    latest = min(latest, gone_by(c, dec, s, period, w) - w.lasts[0, s])
                if latest <= -NEVER:
                    return False
                start = before(w, a, latest, w.lasts[0, s], period)
            else:
                if turn == 1:
                    earliest = max(earliest, back_by(c, dec, s, period, w))
                if earliest >= NEVER:
                    return False
                start = after(w, b, earliest, w.lasts[1, s], period)
            if abs(start) >= NEVER:
                return False
            if slack[row, s] < 0.0:
                start = against(w, b if row else a, start, w.lasts[row, s], period, row == 1)
            w.starts[row, s] = start
            reserve(w, b if row else a, start, w.lasts[row, s], period)
        if dec[POLICY, s] == HOST and not copied(c, dec, s, period, w):
            return False
    return repeats(c, dec, count, period, w)


@lean
def repeats(c, dec, count, period, w):
    """Whether there are updates in which every device runs all of its passes: that part of a run is repeated."""
    for d in range(len(c.speed)):
        first, last = NEVER, -NEVER
        for s in range(count):
            for row in range(2):
                if dec[REAR if row else FRONT, s] == d:
                    first, last = min(first, w.starts[row, s]), max(last, w.starts[row, s])
        if last - first > c.apart * period:
            return False
    return True


@lean
def there(c, a):
    """The line of copies from a device to the host; that of those back comes next."""
    return len(c.speed) + 2 * c.host[a]


@lean
def back_by(c, dec, s, period, w):
    """When what a stage's forward leaves can be where its backward is; NEVER where a host link has no free time."""
    a, b = dec[FRONT, s], dec[REAR, s]
    size, left = moved(c, dec, s), w.starts[0, s] + w.lasts[0, s]
    if dec[POLICY, s] != HOST:
        return left + behind_s(c, w, a, b, size)
    out, back = size * c.host_pace[a], size * c.host_pace[b]
    left = after(w, there(c, a), left, out, period)
    if left >= NEVER:
        return NEVER
    found = after(w, there(c, b) + 1, left + out + c.host_lag[a], back, period)
    return NEVER if found >= NEVER else found + back + c.host_lag[b]


@lean
def gone_by(c, dec, s, period, w):
    """When a stage's forward must have ended for what it leaves to be where its backward is; -NEVER as above."""
    a, b = dec[FRONT, s], dec[REAR, s]
    size, needed = moved(c, dec, s), w.starts[1, s]
    if dec[POLICY, s] != HOST:
        return needed - behind_s(c, w, a, b, size)
    out, back = size * c.host_pace[a], size * c.host_pace[b]
    needed = before(w, there(c, b) + 1, needed - c.host_lag[b] - back, back, period)
    return -NEVER if needed <= -NEVER else before(w, there(c, a), needed - c.host_lag[a] - out, out, period)


@lean
def copied(c, dec, s, period, w):
    """Fills `w.copied`: there at once, back as late as the backward is not delayed; whether there is a free time."""
    a, b, size = dec[FRONT, s], dec[REAR, s], moved(c, dec, s)
    out, back = size * c.host_pace[a], size * c.host_pace[b]
    w.copied[0, s] = after(w, there(c, a), w.starts[0, s] + w.lasts[0, s], out, period)
    w.copied[1, s] = before(w, there(c, b) + 1, w.starts[1, s] - c.host_lag[b] - back, back, period)
    if w.copied[0, s] >= NEVER or w.copied[1, s] <= -NEVER:
        return False
    if w.copied[1, s] < w.copied[0, s] + out + c.host_lag[a] - CLOSE * period:
        return False
    reserve(w, there(c, a), w.copied[0, s], out, period)
    reserve(w, there(c, b) + 1, w.copied[1, s], back, period)
    return True
