"""The compiled dispatcher: devices run what is there in the order of keys, and memory is shared out among their stages.

    key of op x of micro-batch k = begin of x in a pass + pauses before it + k * period
    memory of a device:  |<-- F of its first stage -->|
                         |<-- F of its first two ------------>|
                         |<-- all of its F, its whole room ---------->|     so what is begun can go on to the end

Where a block's lists (`kernel.py`) hold back what comes much earlier than in the block, here nothing that could run
waits for its turn: with room for many stashes, devices are busy from the first micro-batch on. W fills waits.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case, Work and Legs

from __future__ import annotations

from ..jit import lean
from .kernel import NEVER, soonest, weight

PERIOD, WEIGHT_GAP, FIRST = range(3)
"""Of rules: the period, in seconds of the busiest device for a micro-batch; the share of its time for which a W goes
into a wait; then, part after part of a pass, pauses before its ops, in seconds of a device for one stage, those before
its first op, the same a device; then the shares of its room that a device's first stages may fill."""
_CLOSE = 1e-9


@lean
def keyed(c, g, rules):
    """Keys of a pass, from which those of all micro-batches follow."""
    one = c.load / g.visits
    parts = len(c.legs) - 1
    at = 0.0
    for part in range(parts):
        low, high = c.legs[part], c.legs[part + 1]
        at += rules[FIRST + parts + part] * one * len(c.room)
        for x in range(low, high):
            at += rules[FIRST + part] * one
            g.keys[x] = at
            at += c.takes[x] + max(0.0, c.lag[x])


@lean
def clear(c, w, g):
    """Nothing has run."""
    w.runs[:] = 0
    w.arrive[:] = NEVER
    w.arrive[0, :] = 0.0
    g.filled[:] = 0.0
    w.owing[0] = 0.0
    for d in range(len(c.room)):
        w.clock[d] = w.wake[d] = w.held[d] = 0.0
        w.taken[d] = w.asked[d] = 0
        w.written[d] = w.first_done[d]


@lean
def allowed(c, w, g, rules, d, x):
    """Whether an F finds room: 0 where the device has none, 1 where its stage has had its share, 2."""
    room = c.room[d] * (1.0 + _CLOSE)
    if w.held[d] + c.held[x] > room:
        return 0
    level = g.level[x]
    if level == g.visits - 1:
        return 2
    filled = c.alive[x]
    for one in range(level + 1):
        filled += g.filled[d, one]
    return 2 if filled <= rules[FIRST + 2 * (len(c.legs) - 1) + level] * room else 1


@lean
def least(c, w, g, rules, d, now):
    """The op with the least key among those that may run, -1 for none; when the next one is there; whether an F waits
    for room."""
    best, least_key, soon, blocked = -1, NEVER, NEVER, False
    period = rules[PERIOD] * c.load
    for y in range(c.first_mine[0, d], c.first_mine[0, d + 1]):
        x = c.mine[0, y]
        k = w.runs[x]
        if k >= c.batches[0]:
            continue
        if w.arrive[x, k] > now:
            soon = min(soon, w.arrive[x, k])
            continue
        key = g.keys[x] + k * period
        if c.forward[x]:
            room = allowed(c, w, g, rules, d, x)
            blocked = blocked or room == 0
            if room < 2:
                continue
        if key < least_key:
            best, least_key = x, key
    return best, soon, blocked


@lean
def start(c, w, g, d, x, now):
    """Runs an op now."""
    k = w.runs[x]
    w.runs[x] = k + 1
    w.done[w.written[d]] = x
    w.written[d] += 1
    w.held[d] += c.held[x]
    g.filled[d, g.level[x]] += c.alive[x]
    end = now + c.takes[x]
    w.clock[d] = w.wake[d] = end
    if not c.forward[x]:
        w.waiting[d, w.asked[d]] = x
        w.asked[d] += 1
    if c.lag[x] >= 0.0:
        other = c.device[x + 1]
        arrival = end + c.lag[x]
        w.arrive[x + 1, k] = arrival
        if other != d:
            w.wake[other] = min(w.wake[other], max(arrival, w.clock[other]))


@lean
def dispatch(c, w, g, rules, worst):
    """The step of these rules; NEVER where they get stuck or take longer than `worst`. What ran is in w.done."""
    keyed(c, g, rules)
    clear(c, w, g)
    while True:
        d = soonest(w)
        now = w.wake[d]
        if now >= NEVER:
            break
        if now > worst:
            return NEVER
        w.wake[d] = NEVER
        x, soon, blocked = least(c, w, g, rules, d, now)
        if x >= 0:
            start(c, w, g, d, x, now)
            continue
        if w.taken[d] < w.asked[d]:
            takes = c.weight[w.waiting[d, w.taken[d]]]
            if blocked or soon - now >= rules[WEIGHT_GAP] * takes:
                w.clock[d] = now
                weight(c, w, d)
                w.wake[d] = w.clock[d]
                continue
        w.wake[d] = soon
    step = 0.0
    for d in range(len(c.room)):
        if w.written[d] < w.first_done[d + 1]:
            return NEVER
        step = max(step, w.clock[d])
    return step if step <= worst else NEVER
