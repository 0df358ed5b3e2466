"""What a device holds over a period, added up: bytes from one time to another, in every period.

A stash that lives for 2.4 periods takes twice its bytes always and three times for 0.4 of a period.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Work

from __future__ import annotations

import math

from ..jit import CLOSE, inlined


@inlined
def span(w, d, a, b, size):
    """Notes that a device holds bytes from a to b."""
    n = w.noted[0]
    w.spans[0, n], w.spans[1, n], w.spans[2, n], w.spans[3, n] = d, a, b, size
    w.noted[0] = n + 1


@inlined
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


@inlined
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
