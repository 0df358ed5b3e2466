"""Events of the compiled dispatcher: their heap and codes, entries in lists, and bytes on devices."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

from ..jit import inlined, lean
from .tables import BATCH_AT, DEVICE_AT, HELD, LOGGED, MOST, OVER, SINCE, STAGE_AT

ENDED, DROPPED, GONE, TAKEN, AWAKE, CHANGED = range(6)
"""Events: an op ends, memory is released, a stash has left, a tensor begins to arrive, has come, a stash's state."""


@lean
def push(times, items, time, code, size):
    """Adds an event to the heap. items: codes, bytes, and in the last row how many there are."""
    n = items[2, 0]
    items[2, 0] = n + 1
    while n > 0:
        p = (n - 1) >> 1
        if times[p] <= time:
            break
        times[n], items[0, n], items[1, n] = times[p], items[0, p], items[1, p]
        n = p
    times[n], items[0, n], items[1, n] = time, code, size


@lean
def pop(times, items):
    """Takes the first event off; the caller has read it."""
    n = items[2, 0] - 1
    items[2, 0] = n
    time, code, size = times[n], items[0, n], items[1, n]
    p = 0
    while True:
        q = 2 * p + 1
        if q >= n:
            break
        if q + 1 < n and times[q + 1] < times[q]:
            q += 1
        if times[q] >= time:
            break
        times[p], items[0, p], items[1, p] = times[q], items[0, q], items[1, q]
        p = q
    times[p], items[0, p], items[1, p] = time, code, size


@inlined
def coded(kind, d, s, k):
    """The code of an event, or of an entry in a list, about stage s, micro-batch k, and device d (-1: none)."""
    return kind | (s << STAGE_AT) | (k << BATCH_AT) | ((d + 1) << DEVICE_AT)


@lean
def note(log, device, d, code):
    """Writes an entry into a list."""
    log[d, device[LOGGED, d]] = code
    device[LOGGED, d] += 1


@lean
def fill(device, d, size):
    """Puts bytes on a device."""
    held = device[HELD, d] + size
    device[HELD, d] = held
    if held > device[SINCE, d]:
        device[SINCE, d] = held
        device[OVER, d] = max(device[OVER, d], held - device[MOST, d])
