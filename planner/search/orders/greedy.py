"""A parametrised greedy: runs the devices forward in time and picks, on each, the op that its rules prefer."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Arrays and Work

from __future__ import annotations

import numba
import numpy as np

from ..jit import draw, lean
from .kernels import NEVER, B, R, W, arrival, reset, send, write

ALTERNATE, PICK_F, PICK_B, CAP_FIRST, CAP_LAST, LATER_FIRST, LATER_LAST, WAIT_FIRST, WAIT_LAST, AHEAD, RESERVE = range(
    11
)
"""Places of the rules in a parameter vector.

ALTERNATE: 0 backward first, 1 in turns, 2 forward first. PICK_F, PICK_B: which unit, 0 the first of the device, 1 the
last, 2 the one whose input came first. CAP and LATER: most stashes of a device's first unit and of its others, and
WAIT: most pending weight halves, each interpolated from the first device to the last. AHEAD: a weight half fills a
wait of at least this share of its length. RESERVE: later units' stashes for which memory is kept.
"""
PARAMETERS = 11


@lean
def build(a, w, rules):
    """Fills w.full with an order by these rules; returns its makespan, NEVER where the rules get stuck."""
    units = len(a.batches)
    devices = len(a.first) - 1
    reset(a, w)
    w.queued[:] = True
    last = w.pointer
    last[:] = 0
    left = a.first[devices]
    makespan = 0.0
    stalled = 0
    smallest = NEVER
    for o in range(len(a.duration)):
        if a.duration[o] > 0.0:
            smallest = min(smallest, a.duration[o])
    while left > 0:
        d = -1
        for x in range(devices):
            if w.written[x] < a.first[x + 1] and (d < 0 or w.clock[x] < w.clock[d]):
                d = x
        now = w.clock[d]
        share = d / (devices - 1) if devices > 1 else 0.0
        best_f = best_b = best_w = best_r = -1
        at_f = at_b = at_w = 0.0
        soon = NEVER
        memory_short = False
        pending = 0
        begin, stop = a.unit_first[d], a.unit_first[d + 1]
        remaking = 0  # room that the next recomputation needs
        for x in range(begin, stop):
            u = a.unit[x]
            if a.remade[u]:
                remaking = max(remaking, a.need[R * units + u], a.delta[R * units + u] + a.need[B * units + u])
        for x in range(begin, stop):
            u = a.unit[x]
            k = w.counts[u]
            if k < a.batches[u]:
                t = arrival(a, w, u, k)
                if t >= 0.0:
                    j = CAP_FIRST if x == begin else LATER_FIRST
                    cap = max(1, int(np.round(rules[j] + (rules[j + 1] - rules[j]) * share)))
                    more = max(a.need[u], a.delta[u] + remaking)
                    kept = rules[RESERVE]
                    for y in range(x + 1, stop):
                        v = a.unit[y]
                        live = w.counts[v] - w.counts[B * units + v]
                        if w.counts[v] < a.batches[v] and live < kept:
                            more += int(kept - live) * a.delta[v]
                        kept = 1.0
                    ok = k - w.counts[B * units + u] < cap
                    room = w.held[d] + more <= a.limit[d]
                    if ok and room:
                        if t <= now:
                            if best_f < 0 or rules[PICK_F] == 1 or (rules[PICK_F] == 2 and t < at_f):
                                best_f, at_f = u, t
                        else:
                            soon = min(soon, t)
                    elif ok and t <= now:
                        memory_short = True
            k = w.counts[B * units + u]
            if k < w.counts[u]:
                t = arrival(a, w, B * units + u, k)
                if t >= 0.0:
                    if t > now:
                        soon = min(soon, t)
                    elif a.remade[u] and w.counts[R * units + u] <= k:
                        if w.held[d] + remaking <= a.limit[d]:
                            best_r = u
                        else:
                            memory_short = True
                    elif best_b < 0 or rules[PICK_B] == 1 or (rules[PICK_B] == 2 and t < at_b):
                        best_b, at_b = u, t
            if a.split[u]:
                k = w.counts[W * units + u]
                if k < w.counts[B * units + u]:
                    pending += w.counts[B * units + u] - k
                    p = w.place[B * units + u, k]
                    if best_w < 0 or w.start[p] < at_w:
                        best_w, at_w = u, w.start[p]
        backlog = rules[WAIT_FIRST] + (rules[WAIT_LAST] - rules[WAIT_FIRST]) * share
        if best_b < 0 and best_r >= 0:
            best_b = best_r
        o = -1
        if best_w >= 0 and pending > backlog:
            o = W * units + best_w
        elif best_b >= 0 and (best_f < 0 or rules[ALTERNATE] == 0 or (rules[ALTERNATE] == 1 and last[d] != B)):
            o = (R if best_b == best_r else B) * units + best_b
        elif best_f >= 0:
            o = best_f
        elif best_w >= 0 and (memory_short or soon - now >= rules[AHEAD] * a.duration[W * units + best_w]):
            o = W * units + best_w
        if o < 0:
            t = soon
            for x in range(devices):
                if x != d and w.written[x] < a.first[x + 1]:
                    t = min(t, w.clock[x] if w.clock[x] > now * (1 + 1e-9) else now + smallest)
            stalled += 1
            if t >= NEVER or stalled > 64 * devices + 4096:
                return NEVER
            w.clock[d] = max(t, now * (1 + 1e-12) + 1e-300)
            continue
        stalled = 0
        kind = o // units
        u = o - kind * units
        k = w.counts[o]
        finish = write(a, w, d, o, now)
        w.clock[d] = finish
        if w.written[d] == a.first[d + 1]:
            makespan = max(makespan, finish + a.done[d])
        if kind <= B:
            send(a, w, d, o, k, finish, 0)
        if k + 1 == a.batches[u] and (kind == W or (kind == B and not a.split[u])):
            makespan = max(makespan, finish + a.tail[u])
        if kind != W:
            last[d] = kind
        left -= 1
    return makespan


@numba.njit(cache=True, nogil=True)
def hunt(a, w, tries, target, state, best, best_rules, stop):
    """Tries random rules and variations of the best ones; returns the best makespan, its order in `best`.

    Not for units that are offloaded. `stop`: as in anneal.
    """
    best_value = NEVER
    rules = best_rules.copy()
    units = len(a.batches)
    widest = 1.0
    for u in range(units):
        if a.delta[u] > 0:
            widest = max(widest, min(a.limit[a.home[u]] / a.delta[u], float(a.batches[u])))
    for n in range(tries):
        if best_value <= target or stop[0] != 0:
            break
        if n > tries // 4 and best_value < NEVER and draw(state) < 0.6:
            rules[:] = best_rules
            vary(rules, state)
        else:
            invent(rules, widest, state)
        value = build(a, w, rules)
        if value < best_value:
            best_value = value
            best[:] = w.full
            best_rules[:] = rules
    return best_value


@lean
def invent(rules, widest, state):
    """Random rules; `widest`: the most stashes that any device holds."""
    for j in (ALTERNATE, PICK_F, PICK_B):
        rules[j] = int(draw(state) * 3)
    for j in range(CAP_FIRST, WAIT_FIRST):
        rules[j] = 1e9 if draw(state) < 0.3 else draw(state) ** 2 * widest * 1.2 + 1
    if draw(state) < 0.3:
        rules[WAIT_FIRST] = rules[WAIT_LAST] = 1e9
    else:
        rules[WAIT_FIRST] = draw(state) * widest * 2
        rules[WAIT_LAST] = 1e9 if draw(state) < 0.2 else draw(state) * widest * 2
    rules[AHEAD] = 0.0 if draw(state) < 0.4 else draw(state) * 1.2
    rules[RESERVE] = 1 + (0 if draw(state) < 0.5 else int(draw(state) * 3))


@lean
def vary(rules, state):
    """Changes one of the rules a little."""
    j = int(draw(state) * PARAMETERS)
    if j <= PICK_B:
        rules[j] = int(draw(state) * 3)
    elif j < AHEAD:
        rules[j] = max(0.0, min(rules[j], 1e6) + (draw(state) - 0.5) * 4)
    elif j == AHEAD:
        rules[j] = draw(state) * 1.2
    else:
        rules[j] = 1 + int(draw(state) * 3)
