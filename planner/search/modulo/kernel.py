"""The compiled timetable: what devices hold while passes repeat every period, and the least period that fits."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import math

from ..jit import CLOSE, NEVER, ended, inlined, lean, running_until, runs
from .held import hold, most, span
from .passes import behind_s, halved, least_s, message_s, moved, placed
from .tables import (
    BACKWARD,
    BATCH,
    CURRENT,
    EARLY,
    END,
    ENTRY,
    FETCHED,
    FETCHING,
    FORWARD,
    FRONT,
    HOST,
    LATE,
    LEFT,
    POLICY,
    REAR,
    RECEIVING,
    RECOMPUTE,
    RETURNED,
    RETURNING,
    SENDING,
    SENT,
    WEIGHTS,
)

_HALVED, _FINE, _NEAR = 7, 1e-3, 1e-2  # how often an interval is halved, how closely, and what is near the least
_SHORTEST = 1e-110  # seconds of a period in which nothing takes any time: less than any time that is taken


@lean
def note_frees(c, dec, count, period, w):
    """Fills `w.frees`: when stashes have left that are sent, or copied, as soon as their forwards have ended."""
    w.freed[:] = 0
    for s in range(count):
        a, b = dec[FRONT, s], dec[REAR, s]
        if dec[POLICY, s] == HOST:
            left = w.copied[0, s] + moved(c, dec, s) * c.host_pace[a]
        elif a != b and dec[POLICY, s] != LATE:
            left = w.starts[0, s] + w.lasts[0, s] + moved(c, dec, s) * c.pace[a, b]
        else:
            continue
        x = left - math.floor(left / period) * period
        if not runs(w, a, x, period):  # else it has gone when the op has ended
            w.frees[a, w.freed[a]] = x
            w.freed[a] += 1


@lean
def sent_at(c, dec, slack, s, period, w):
    """When what a forward leaves begins its way to its backward's device: both have posted it, each behind an op.

    If that is not too late, behind the op that runs there when it is to be sent.
    """
    ready = w.starts[0, s] + w.lasts[0, s]
    if dec[POLICY, s] != LATE:
        return ready
    a, b = dec[FRONT, s], dec[REAR, s]
    latest = w.starts[1, s] - behind_s(c, w, a, b, moved(c, dec, s))
    listed = ready + max(0.0, latest - ready) * (1.0 - slack[EARLY, s])
    until = running_until(w, b, listed, period)
    listed = until if until <= latest else listed
    return max(ready, ended(w, a, listed, period), ended(w, b, listed, period))


@lean
def note_sent(c, dec, slack, count, period, w):
    """Fills `w.sent` and `w.left`: when what forwards leave begins its way, and when it has left their devices."""
    note_frees(c, dec, count, period, w)
    for s in range(count):
        a, b = dec[FRONT, s], dec[REAR, s]
        if dec[POLICY, s] == HOST:
            w.sent[s] = w.copied[0, s]
            w.left[s] = w.copied[0, s] + moved(c, dec, s) * c.host_pace[a]
        elif a != b:
            w.sent[s] = sent_at(c, dec, slack, s, period, w)
            w.left[s] = w.sent[s] + moved(c, dec, s) * c.pace[a, b]
        else:
            w.sent[s] = w.left[s] = w.starts[0, s] + w.lasts[0, s]


@lean
def note_posted(c, dec, count, period, w):
    """Fills `w.posted`: when stashes are asked for that come back from the host; whether that is after they leave.

    What leaves their device and is listed before must have left, so that is before what has not when they begin their
    way; and what is asked for earlier begins earlier.
    """
    close = CLOSE * period
    for s in range(count):
        w.listed[s] = ended(w, dec[FRONT, s], w.sent[s], period)
    for s in range(count):
        if dec[POLICY, s] == HOST:
            w.asked[s] = before_leaving(dec, s, count, period, w)
    for s in range(count):
        if dec[POLICY, s] != HOST:
            continue
        b, found = dec[REAR, s], w.asked[s]
        for t in range(count):
            if t != s and dec[POLICY, t] == HOST and dec[REAR, t] == b:
                later = math.ceil((w.copied[1, s] - w.copied[1, t] - close) / period) * period
                found = min(found, w.asked[t] + later)
        w.posted[s] = found
        if dec[FRONT, s] == b and found <= w.listed[s] + close:
            return False
    return True


@lean
def before_leaving(dec, s, count, period, w):
    """When a stash is to be asked for, so that no copy or message is listed before that has not left when it begins."""
    b, begin, close = dec[REAR, s], w.copied[1, s], CLOSE * period
    found, again = ended(w, b, begin, period), True
    while again:
        again = False
        for j in range(count):
            if dec[FRONT, j] == b and (dec[POLICY, j] == HOST or dec[REAR, j] != b):
                turns = math.ceil((found - w.listed[j] - close) / period) - 1
                if w.left[j] + turns * period > begin + close:
                    found, again = w.listed[j] + turns * period, True
    return found


@inlined
def hold_messages(c, dec, s, period, w):
    """Notes the tensors between a stage and the next one, there and back."""
    j = dec[END, s]
    size, a, e = c.boundary[j], dec[FRONT, s], dec[FRONT, s + 1]
    begin, end = w.starts[0, s], w.starts[0, s] + w.lasts[0, s]
    if a == e:
        span(w, a, begin, w.starts[0, s + 1], size)
    else:
        span(w, a, begin, end + size * c.pace[a, e], size)
        span(w, e, ended(w, e, end, period), w.starts[0, s + 1], size)
    i, k = j, dec[END, s + 1]
    if dec[POLICY, s + 1] != RECOMPUTE:
        rest = size - min(size, c.stash[k] - c.unstashed[i])
        span(w, e, w.starts[0, s + 1], w.starts[0, s + 1] + w.lasts[0, s + 1], rest)
    a, e = dec[REAR, s + 1], dec[REAR, s]
    begin = w.starts[1, s + 1] + w.lasts[2, s + 1]
    end = w.starts[1, s + 1] + w.lasts[3, s + 1]
    done = w.starts[1, s] + w.lasts[1, s]
    if a == e:
        span(w, a, begin, done, size)
    else:
        span(w, a, begin, end + size * c.pace[a, e], size)
        span(w, e, ended(w, e, end, period), done, size)


@inlined
def hold_stash(c, dec, s, period, w):
    """Notes what a stage's forward leaves, wherever it is, until its backward has ended, and the workspaces."""
    i, j = dec[END, s - 1] if s else 0, dec[END, s]
    a, b, p = dec[FRONT, s], dec[REAR, s], dec[POLICY, s]
    begin, end = w.starts[0, s], w.starts[0, s] + w.lasts[0, s]
    again, done = w.starts[1, s], w.starts[1, s] + w.lasts[1, s]
    stash, left = c.stash[j] - c.unstashed[i], moved(c, dec, s)
    span(w, a, begin, end, c.work[i, j] + (c.inner[i, j] if p == RECOMPUTE else 0.0))
    span(w, b, again, done, c.work[i, j])
    until = again if p == RECOMPUTE else done
    if p == HOST:
        span(w, a, begin, w.left[s], left)
        span(w, b, w.posted[s], until, left)
    elif a == b:
        span(w, a, begin, until, left)
    else:
        span(w, a, begin, w.left[s], left)
        span(w, b, ended(w, b, w.sent[s], period), until, left)
    if p == RECOMPUTE:
        span(w, b, again, done, stash)


@inlined
def comes_alone(dec, count, s):
    """Whether nothing but a stage's new parameters goes from its backward's device to its forward's.

    Then they are asked for only when they are of use. Else what is sent behind them would have to wait, too.
    """
    a, b = dec[FRONT, s], dec[REAR, s]
    for t in range(count):
        if t != s and dec[REAR, t] == b and dec[FRONT, t] == a:
            return False
        if dec[FRONT, t] == b and dec[REAR, t] == a and dec[POLICY, t] != HOST:
            return False
        if t + 1 < count:
            there = dec[FRONT, t] == b and dec[FRONT, t + 1] == a
            if there or (dec[REAR, t + 1] == b and dec[REAR, t] == a):
                return False
    return True


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
            w.base[a] += c.lent[j] - c.lent[i]
            if c.versions >= ENTRY and comes_alone(dec, count, s):
                span(w, a, w.starts[0, s] + w.lasts[0, s], w.starts[0, s] + period, trained)
            else:  # beside those in use what comes in, and what is there already but not yet in use
                w.base[a] += trained * (2.0 if c.versions >= ENTRY else 1.0)
            back = w.starts[1, s] + w.lasts[1, s]  # what is on its way back does not change while it is
            way = trained * c.pace[b, a]
            # one update may not have arrived when the next leaves, but only if every period has one
            span(w, b, back, back + (way if c.update == 1 else min(way, period)), trained)
        if c.versions == CURRENT:
            w.base[b] += math.ceil((flying - 1.0) / c.update - CLOSE) * trained
    if c.versions >= ENTRY:
        for s in range(count):
            i, j = dec[END, s - 1] if s else 0, dec[END, s]
            w.base[dec[REAR, s]] += math.ceil((flying - 1.0) / c.update - CLOSE) * (c.trained[j] - c.trained[i])


@lean
def in_flight(c, dec, s, period, w):
    """Micro-batches from a forward to the STEP whose parameters it finds."""
    i, j = dec[END, s - 1] if s else 0, dec[END, s]
    trip = w.starts[1, s] + w.lasts[1, s] - w.starts[0, s]
    trip += message_s(c, dec[REAR, s], dec[FRONT, s], c.trained[j] - c.trained[i])
    return math.ceil(trip / period - CLOSE)


@lean
def lacking(c, dec, slack, lowered, count, period, w):
    """The largest share of its memory by which a device lacks some, at a period; NEVER where passes find no time."""
    if not placed(c, dec, slack, count, period, w):
        return NEVER
    w.changes[:] = 0
    w.base[:] = 0.0
    w.noted[0] = 0
    note_sent(c, dec, slack, count, period, w)
    if not note_posted(c, dec, count, period, w):
        return NEVER
    hold_versions(c, dec, count, period, w)
    for s in range(count):
        hold_stash(c, dec, s, period, w)
        if s + 1 < count:
            hold_messages(c, dec, s, period, w)
    for n in range(w.noted[0]):
        hold(w, int(w.spans[0, n]), w.spans[1, n], w.spans[2, n], w.spans[3, n], period)
    worst = 0.0
    for d in range(len(c.speed)):
        over = most(w, d) + lowered[d] - c.limit[d]
        if over > 0.0:
            worst = max(worst, over / max(1.0, c.limit[d]))
    return worst


@lean
def value_of(c, dec, slack, lowered, count, cap, level, hint, w):
    """The least period up to `level` at which decisions fit, as far as halving intervals finds it; else NEVER.

    With level = cap: where they do not fit at `cap` either, more than that, by what is lacking. hint: the period of
    decisions like these: what fits at it mostly fits at nothing less, and what did at its least mostly still does.
    """
    low = max(least_s(c, dec, count, w) * (1.0 + CLOSE), _SHORTEST)
    if low > level:
        return low if level >= cap and low < NEVER else NEVER
    lack = lacking(c, dec, slack, lowered, count, level, w)
    if lack > 0.0:
        return cap * (2.0 + min(lack, 1e6)) if level >= cap else NEVER
    high, under = level, low
    if low * (1.0 + _NEAR) < hint < high:
        if lacking(c, dec, slack, lowered, count, hint, w) > 0.0:
            under = hint
        else:
            high, under = hint, hint / (1.0 + _FINE)
            if lacking(c, dec, slack, lowered, count, under, w) <= 0.0:
                high, under = under, low
    if under == low and lacking(c, dec, slack, lowered, count, low, w) <= 0.0:
        return low
    for _ in range(_HALVED):
        if high <= under * (1.0 + _FINE):
            break
        period = math.sqrt(under * high)
        if lacking(c, dec, slack, lowered, count, period, w) <= 0.0:
            high = period
        else:
            under = period
    return high


@inlined
def taken_later(c, dec, period, w, out):
    """How many micro-batches behind the last one of an update is the last that does not take what it made.

    The first stage says so. Elsewhere new parameters are of no use before, and would only be held beside those in use.
    """
    if dec[FRONT, 0] == dec[REAR, 0]:
        found = math.ceil((w.starts[1, 0] + w.lasts[1, 0] - w.starts[0, 0]) / period - CLOSE) - 1
    else:
        found = math.floor((out[RETURNING, 0] - w.starts[0, 0]) / period)
    return math.ceil(found / c.update) * c.update if c.versions == BATCH else found


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
        out[SENT, s], out[LEFT, s] = w.sent[s], w.left[s]
        out[FETCHED, s] = w.copied[1, s]
        out[WEIGHTS, s] = w.starts[1, s] + w.lasts[3, s] if halved(c, dec, s) else math.nan
        out[FETCHING, s] = w.posted[s]
        step = (c.update - 1) * (c.step[b, j] - c.step[b, i])
        out[RETURNED, s] = w.starts[1, s] + w.lasts[1, s] + step
        for row, asked, d in (
            (SENT, SENDING, a),
            (SENT, RECEIVING, b),
            (RETURNED, RETURNING, a),
        ):
            out[asked, s] = ended(w, d, out[row, s], period)
        begun = math.floor((out[RETURNED, s] - w.starts[0, s]) / period + CLOSE)
        last = w.starts[0, s] + begun * period  # a forward that runs then has begun with the old ones
        if out[RETURNING, s] <= last + CLOSE * period:
            out[RETURNING, s] = last + 100 * CLOSE * period
    if c.versions >= ENTRY:
        later = taken_later(c, dec, period, w, out)
        for s in range(count):
            if comes_alone(dec, count, s):
                out[RETURNING, s] = w.starts[0, s] + later * period + 100 * CLOSE * period
    return True
