"""The compiled list scheduler: a block repeated every period says in which order ops come, costs say when.

    pause   F0 ---> F1 ---> F2 ---> ... I2 ---> I1 ---> I0      one pass; W where its device would wait
            |<------ period ------>|                            the next pass begins

A block's times are priorities, no start times: devices run what comes next in them, or W, or what is ready and stands
a little later, and an F waits until there is room. So a block need not be exact, and warm-up and cool-down are packed.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import numpy as np

from ..jit import lean

NEVER = 1e300
AHEAD = 8  # ops of a list that are looked at when its first one cannot run
_CLOSE = 1e-9
_SHORTEST = 1e-100
PERIOD, WEIGHT_GAP, OTHER_GAP = range(3)
"""Of a block's rules: its period, in loads of the busiest device; shares of its time for which a W, and another op out
of turn, goes into a wait."""
RULES = 3


@lean
def place(c, w, pauses, period):
    """When the ops of a block begin: every one after the one before, its message and its pause."""
    passes, ops = pauses.shape
    for j in range(passes):
        at = period * j / passes + pauses[j, 0]
        w.begins[j, 0] = at
        first = j % len(c.batches) * ops
        for x in range(1, ops):
            at += c.takes[first + x - 1] + c.lag[first + x - 1] + pauses[j, x]
            w.begins[j, x] = at


@lean
def within(c, w, d, passes, period):
    """The ops of a device in the order in which they come within a period, and how many of these they are late; returns
    their number."""
    pipelines, ops = len(c.batches), w.begins.shape[1]
    count = 0
    for p in range(pipelines):
        for y in range(c.first_mine[p, d], c.first_mine[p, d + 1]):
            x = c.mine[p, y]
            for j in range(p, passes, pipelines):
                late = np.floor(w.begins[j, x] / max(period, _SHORTEST))
                at = w.begins[j, x] - late * period
                n = count
                while n > 0 and w.at[n - 1] > at:
                    w.at[n], w.late[n], w.code[n] = w.at[n - 1], w.late[n - 1], w.code[n - 1]
                    n -= 1
                w.at[n], w.late[n], w.code[n] = at, late, p * ops + x
                count += 1
    return count


@lean
def unroll(c, w, passes, period):
    """Lists of F and I of every device in the order of the block's times, first in first out; returns their hash."""
    ops, mark = w.begins.shape[1], 0
    w.runs[:] = 0
    for d in range(len(c.room)):
        count = within(c, w, d, passes, period)
        n, turn = w.first[d], 0.0
        while n < w.first[d + 1]:
            before, later = n, np.inf
            for e in range(count):
                code = w.code[e]
                if w.runs[code] >= c.batches[code // ops]:
                    continue
                if w.late[e] > turn:
                    later = min(later, w.late[e])
                    continue
                w.runs[code] += 1
                w.todo[n] = code
                mark = mark * 1000003 + code
                n += 1
            turn = turn + 1.0 if n > before else later
    return mark


@lean
def weight(c, w, d):
    """Runs the W that has waited longest, from when the device was free on."""
    code = w.waiting[d, w.taken[d]]
    w.taken[d] += 1
    w.done[w.written[d]] = len(c.takes) + code
    w.written[d] += 1
    w.held[d] -= c.later[code]
    w.owing[0] -= c.weight[code]
    w.clock[d] += c.weight[code]
    w.left[d] -= c.weight[code]


@lean
def begin(c, w, d, code):
    """Runs an F or I as soon as it is there and the device is free."""
    k = w.runs[code]
    w.runs[code] = k + 1
    w.done[w.written[d]] = code
    w.written[d] += 1
    w.held[d] += c.held[code]
    w.alive[d] += c.alive[code]
    end = max(w.clock[d], w.arrive[code, k]) + c.takes[code]
    w.clock[d] = w.wake[d] = end
    w.left[d] -= c.takes[code]
    if not c.forward[code]:
        w.waiting[d, w.asked[d]] = code
        w.asked[d] += 1
        w.owing[0] += c.weight[code]
    if c.lag[code] < 0.0:
        n = k * len(c.batches) + code // w.begins.shape[1]
        w.ends[n], w.owed[n] = end, w.owing[0]
    else:
        other = c.device[code + 1]
        arrival = end + c.lag[code]
        w.arrive[code + 1, k] = arrival
        if other != d:
            w.wake[other] = min(w.wake[other], max(arrival, w.clock[other]))


@lean
def choose(c, w, d, now, gap):
    """The place in a device's list, from its first one on, of what may run now, -1 for none; when to look again; and
    whether there is room for the first one."""
    head, stop = w.head[d], w.first[d + 1]
    code = w.todo[head]
    first = w.arrive[code, w.runs[code]]
    room = c.room[d] * (1.0 + _CLOSE)
    fits = not c.forward[code] or w.held[d] + c.held[code] <= room
    if first <= now and fits:
        return 0, now, True
    soon = first if first > now else NEVER
    alive = w.alive[d] + c.alive[code]
    most = alive
    w.look[0] += 1
    w.looked[code] = w.look[0]
    for n in range(head + 1, min(head + AHEAD, stop)):
        code = w.todo[n]
        if w.looked[code] != w.look[0]:
            w.looked[code] = w.look[0]
            ready = w.arrive[code, w.runs[code]]
            if ready > now:
                soon = min(soon, ready)
            elif not fits:
                if not c.forward[code]:
                    return n - head, now, fits
            elif first - now >= gap * c.takes[code] and (
                not c.forward[code] or (w.held[d] + c.held[code] <= room and most + c.alive[code] <= room)
            ):
                return n - head, now, fits
        alive += c.alive[code]
        most = max(most, alive)
    return -1, soon, fits


@lean
def reset(c, w):
    """Nothing has run."""
    w.runs[:] = 0
    ops = w.begins.shape[1]
    w.left[:] = 0.0
    for code in range(len(c.takes)):
        w.left[c.device[code]] += (c.takes[code] + c.weight[code]) * c.batches[code // ops]
        known = 0.0 if code % ops == 0 else NEVER
        for k in range(w.arrive.shape[1]):
            w.arrive[code, k] = known
    for d in range(len(c.room)):
        w.clock[d] = w.wake[d] = w.held[d] = w.alive[d] = 0.0
        w.taken[d] = w.asked[d] = 0
        w.written[d], w.head[d] = w.first_done[d], w.first[d]
    w.owing[0] = 0.0


@lean
def soonest(w):
    """The device that is to be looked at first."""
    d = 0
    for e in range(1, len(w.wake)):
        if w.wake[e] < w.wake[d]:
            d = e
    return d


@lean
def schedule(c, w, rules, worst):
    """Runs the lists of `unroll`; returns the step, NEVER where they get stuck or take longer than `worst`.

    What ran, in which order, is in w.done afterwards.
    """
    devices = len(c.room)
    reset(c, w)
    while True:
        d = soonest(w)
        now = w.wake[d]
        if now >= NEVER:
            break
        if now > worst:
            return NEVER
        w.wake[d] = NEVER
        if w.head[d] >= w.first[d + 1]:
            while w.taken[d] < w.asked[d]:
                weight(c, w, d)
            continue
        k, soon, fits = choose(c, w, d, now, rules[OTHER_GAP])
        if k >= 0:
            n = w.head[d] + k
            code = w.todo[n]
            while n > w.head[d]:
                w.todo[n] = w.todo[n - 1]
                n -= 1
            w.head[d] += 1
            begin(c, w, d, code)
            if w.clock[d] + w.left[d] > worst * (1.0 + _CLOSE):
                return NEVER
            continue
        if w.taken[d] < w.asked[d]:
            takes = c.weight[w.waiting[d, w.taken[d]]]
            if not fits or soon - now >= rules[WEIGHT_GAP] * takes:
                weight(c, w, d)
                w.wake[d] = w.clock[d]
                continue
        w.wake[d] = soon
    step = 0.0
    for d in range(devices):
        if w.written[d] < w.first_done[d + 1]:
            return NEVER
        step = max(step, w.clock[d])
    return step


@lean
def lists(c, w, pauses, rules):
    """The lists of a block, and their hash."""
    period = rules[PERIOD] * c.load * pauses.shape[0]
    place(c, w, pauses, period)
    return unroll(c, w, pauses.shape[0], period)


@lean
def value_of(c, w, rules, more, worst):
    """The step of lists, with `more` further micro-batches at the rate of the middle; NEVER where they get stuck."""
    step = schedule(c, w, rules, worst - more * c.load)
    if more <= 0 or step >= NEVER:
        return step
    count = len(w.ends)
    near, far = count // 3, 2 * count // 3
    took = w.ends[far] - w.ends[near] + (w.owed[far] - w.owed[near]) / len(c.room)
    return step + more * max(c.load, took / max(1, far - near))
