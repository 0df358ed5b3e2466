"""Stashes that move, in the compiled dispatcher: to the device of their backward, away and back, and from the host.

A stash moves as soon as it may, the one that is needed first in front, where its link is idle and there is room. What
leaves is there until its FREE, which stands where an op needs the room. What comes is there from the end of an op on.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

from ..jit import NEVER, inlined, lean
from .events import AWAKE, CHANGED, DROPPED, GONE, coded, fill, note, push
from .tables import (
    AHEAD,
    AWAY,
    BEGUN,
    COMING,
    COPIED_IN,
    COPIED_OUT,
    DONE,
    FETCH,
    FREED,
    FRONT,
    GOING,
    GONE_BYTES,
    GONE_FIRST,
    GONE_LAST,
    HELD,
    HOP,
    HOST,
    IN,
    KEEP,
    MADE,
    MOST,
    OUT,
    POLICY,
    QUARTERS,
    REAR,
    RECEIVE,
    RECOMPUTE,
    REFUSED,
    RUNNING,
    SEND,
    SINCE,
    STAGE_AT,
    STAGES,
    STATE,
    TARGET,
    THERE,
    TURNS,
    USABLE,
    WAITING,
    WINDOW,
    B,
)  # fmt: skip


@lean
def policy(dec, s, k):
    """What becomes of a stash."""
    return dec[POLICY, s] if (dec[TURNS, s] >> (k & (QUARTERS - 1))) & 1 else KEEP


@lean
def destination(dec, s, k):
    """Where a stash goes by message when it has been made; -1: nowhere."""
    p = policy(dec, s, k)
    if dec[FRONT, s] != dec[REAR, s]:
        return -1 if p == HOST else dec[REAR, s]
    return dec[TARGET, s] if p == AWAY and dec[TARGET, s] != dec[FRONT, s] else -1


@lean
def carry(pace, node, link, clock, a, b, size, now):
    """Sends bytes from device a to b; returns when they have left."""
    t = max(now, link[a, b])
    if node[a] != node[b]:
        t = max(t, clock[OUT, a], clock[IN, b])
    end = t + size * pace[a, b]
    link[a, b] = end
    if node[a] != node[b]:
        clock[OUT, a] = clock[IN, b] = end
    return end


@lean
def idle(node, link, clock, a, b, now):
    """Whether nothing is under way from device a to b."""
    t = link[a, b]
    if node[a] != node[b]:
        t = max(t, clock[OUT, a], clock[IN, b])
    return t <= now


@lean
def free(device, stage, gone, log, d, held, s, count):
    """Writes FREEs of what has left, oldest first, until a device holds no more than `held` bytes, and has freed so
    many stashes of stage s."""
    while device[GONE_FIRST, d] < device[GONE_LAST, d]:
        if device[HELD, d] <= held and stage[FREED, s] >= count:
            return
        code, size = gone[0, d, device[GONE_FIRST, d]], gone[1, d, device[GONE_FIRST, d]]
        device[GONE_FIRST, d] += 1
        device[GONE_BYTES, d] -= size
        device[HELD, d] -= size
        stage[FREED, (code >> STAGE_AT) & STAGES] += 1
        note(log, device, d, code)
        device[SINCE, d] = device[HELD, d]


@lean
def arrives(device, stage, gone, log, d, size):
    """Whether a stash may arrive on a device now: behind what has ended there, beside all that it has held since."""
    most = device[MOST, d]
    if device[SINCE, d] + size <= most:
        return True
    if device[RUNNING, d] or device[GONE_BYTES, d] == 0 or device[HELD, d] - device[GONE_BYTES, d] + size > most:
        return False
    free(device, stage, gone, log, d, most - size, 0, 0)
    return device[SINCE, d] + size <= most


@inlined
def ready(c, dec, w, s, k, leg, now):
    """Whether a stash that waits may move now: it is not too early, and its link is idle."""
    front, rear = dec[FRONT, s], dec[REAR, s]
    to = destination(dec, s, k) if leg == 0 else rear
    if to == rear:
        later = min(s + dec[AHEAD, s], w.cell.shape[1] - 1)
        if k - w.stage[DONE + B, s] >= dec[WINDOW, s] or (later > s and w.stage[BEGUN + B, later] <= k):
            return False
    if leg == 0:
        return idle(c.node, w.link, w.clock, front, to, now)
    if policy(dec, s, k) == HOST:
        return max(w.host[1, c.host[rear]], w.clock[COPIED_IN, rear], w.clock[COPIED_OUT, rear]) <= now
    return idle(c.node, w.link, w.clock, dec[TARGET, s], rear, now)


@inlined
def look(c, dec, lag, extra, w, now):
    """Writes the keys of stashes that may move now, the next of every stage out and back."""
    for s in range(w.cell.shape[1]):
        for leg in range(2):
            w.soon[leg, s] = NEVER
            if w.stage[WAITING + leg, s] == 0 or w.stage[REFUSED + leg, s]:
                continue
            waiting = MADE if leg == 0 else THERE
            k = w.stage[HOP + leg, s]
            while w.cell[STATE, s, k] > waiting:
                k += 1
            w.stage[HOP + leg, s] = k
            if w.cell[STATE, s, k] == waiting and ready(c, dec, w, s, k, leg, now):
                w.soon[leg, s] = k + lag[B, s] + extra[B, s, k]


@inlined
def first(soon):
    """Of the stashes that may move, the one with the least key: 2 * stage + leg (0: on its way out, 1: back)."""
    found, key = -1, NEVER
    for s in range(soon.shape[1]):
        for leg in range(2):
            if soon[leg, s] < key:
                found, key = 2 * s + leg, soon[leg, s]
    return found


@inlined
def move_stashes(c, dec, lag, extra, w, now, tiny):
    """Moves stashes whose turn it is and that have room where they go, those that are needed first in front."""
    w.stage[REFUSED] = 0
    w.stage[REFUSED + 1] = 0
    look(c, dec, lag, extra, w, now + tiny)
    while True:
        found = first(w.soon)
        if found < 0:
            break
        s, leg = found >> 1, found & 1
        k, rear = w.stage[HOP + leg, s], dec[REAR, s]
        p = policy(dec, s, k)
        size = c.moved[1 if p == RECOMPUTE else 0, s]
        a = dec[FRONT, s] if leg == 0 else dec[TARGET, s]
        b = destination(dec, s, k) if leg == 0 else rear
        if not arrives(w.device, w.stage, w.gone, w.log, b, size):
            w.stage[REFUSED + leg, s] = 1
            w.soon[leg, s] = NEVER
            continue
        w.stage[WAITING + leg, s] -= 1
        if leg == 1 and p == HOST:
            note(w.log, w.device, b, coded(FETCH, -1, s, k))
            end = now + size * c.host_pace[b]
            w.host[1, c.host[b]] = w.clock[COPIED_IN, b] = end
            push(w.times, w.items, end, coded(AWAKE, b, s, k), 0)
            push(w.times, w.items, end + c.host_lag[b], coded(CHANGED, b, s, k), USABLE)
            w.cell[STATE, s, k] = COMING
        else:
            note(w.log, w.device, a, coded(SEND, b, s, k))
            note(w.log, w.device, b, coded(RECEIVE, a, s, k))
            end = carry(c.pace, c.node, w.link, w.clock, a, b, size, now)
            w.clock[COPIED_OUT, a] = max(w.clock[COPIED_OUT, a], end)
            push(w.times, w.items, end, coded(GONE if leg == 0 else DROPPED, a, s, k), size)
            there = leg == 0 and b != rear
            w.cell[STATE, s, k] = GOING if there else COMING
            push(w.times, w.items, end + c.lag[a, b], coded(CHANGED, b, s, k), THERE if there else USABLE)
        fill(w.device, b, size)
        look(c, dec, lag, extra, w, now + tiny)
