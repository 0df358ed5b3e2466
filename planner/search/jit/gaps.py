"""Free times of devices and host links that repeat every period: when something may begin, and when it is posted.

Modulo scheduling (Rau, Iterative Modulo Scheduling, MICRO 1994): a device that is busy in [a, b) is so in every
period.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import math

from .options import inlined, lean

NEVER = 1e300
CLOSE = 1e-9  # of a period


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


@inlined
def ended(w, d, t, period):
    """When by then the last op of a device has ended, or the last wait for what leaves it at once: there is posted what
    is listed for that time. The time itself where a device runs nothing."""
    n = w.held[d] - (1 if w.wrapped[d] < 0.0 else 0)  # what begins last goes on in the next period
    if n == 0:
        return t
    x = t - math.floor(t / period) * period
    limit = x + CLOSE * period
    k = n - 1
    while k >= 0 and w.busy[1, d, k] > limit:
        k -= 1
    last = w.busy[1, d, k] if k >= 0 else w.busy[1, d, n - 1] - period
    for k in range(w.freed[d]):
        end = w.frees[d, k]
        last = max(last, end if end <= limit else end - period)
    return t - max(0.0, x - last)


@lean
def running_until(w, d, t, period):
    """When the op that a device runs at a time ends; that time where it runs none."""
    x = t - math.floor(t / period) * period
    close = CLOSE * period
    for k in range(w.held[d]):
        if w.busy[0, d, k] < x + close and w.busy[1, d, k] > x + close:
            end = w.busy[1, d, k]
            if end >= period - close and w.wrapped[d] < 0.0:
                end = period + w.busy[1, d, 0]
            return t + (end - x)
    return t


@lean
def runs(w, d, x, period):
    """Whether a device runs an op at a time within its period, which neither begins nor ends then."""
    close = CLOSE * period
    for k in range(w.held[d]):  # noqa: SIM110 compiled as it is
        if w.busy[0, d, k] < x - close and w.busy[1, d, k] > x + close:
            return True
    return False
