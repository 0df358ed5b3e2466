"""The hot loop of `squeezed`: one function, run as plain Python for a little work and compiled by numba for much."""

from __future__ import annotations

import heapq
import math
from typing import Any

LOOKAHEAD = 8
"""Ops of a list that are looked at when its first one is not ready."""


def squeeze(
    codes: Any, first: Any, batches: int, takes: Any, arrival: Any, device: Any, alive_of: Any, held_of: Any,
    weight: Any, later: Any, room: Any, weight_gap: float, other_gap: float,
    after: Any, pending: Any, ready: Any, clock: Any, lists: Any, count: Any,
) -> int:  # fmt: skip
    """Fills `lists` and, by device, `clock` (when it is done) and `count` (ops of its list); returns ops left over.

    An op is its unit times `batches` plus its micro-batch; units: the F of all stages, their I, their W. Consumes
    the last arguments. Arrays: codes [ops] F and I, device by device in the order given; first [devices+1] into
    codes; takes, device, alive_of, held_of [units of F and I]; arrival [stages-1] seconds; weight, later [stages]
    seconds of a W, and bytes that it frees; room [devices] bytes; after [ops] the op behind; pending [ops] room;
    ready [units of F and I * batches] seconds, infinite where an op waits for another; clock, count [devices] zeros;
    lists [2 * ops], of which device d has what begins at twice first[d].
    """
    devices, stages = len(room), len(weight)
    alive, held = [0.0] * devices, [0.0] * devices
    head, queued, begun = [0] * devices, [0] * devices, [0] * devices  # pending: begun of those that are queued
    events = [(0.0, 0)]
    events.pop()
    for d in range(devices):
        head[d] = first[d]
        events.append((0.0, d))
    left = len(codes)
    while len(events) > 0:
        now, d = heapq.heappop(events)
        if clock[d] > now:
            continue
        base, end = first[d], first[d + 1]
        p = head[d]
        if p == end:
            while begun[d] < queued[d]:
                code = pending[base + begun[d]]
                begun[d] += 1
                lists[2 * base + count[d]] = code + 2 * stages * batches
                count[d] += 1
                clock[d] += weight[code // batches]
                held[d] -= later[code // batches]
            continue
        ready_s = ready[codes[p]]
        chosen, before = -1, -1
        if ready_s <= now:
            chosen = p
        else:
            sum_alive = alive[d]
            most = sum_alive
            q, previous = p, -1
            for _ in range(LOOKAHEAD):
                if q == end:
                    break
                code = codes[q]
                unit = code // batches
                runs = ready[code] <= now and ready_s - now >= other_gap * takes[unit]
                if runs and (unit >= stages or most + alive_of[unit] <= room[d]):
                    chosen, before = q, previous
                    break
                sum_alive += alive_of[unit]
                most = max(most, sum_alive)
                previous = q
                q = after[q]
        code = codes[p] if chosen < 0 else codes[chosen]
        unit = code // batches
        fits = unit >= stages or held[d] + held_of[unit] <= room[d]
        waits = begun[d] < queued[d]
        if chosen >= 0 and fits:
            if before < 0:
                head[d] = after[chosen]
            else:
                after[before] = after[chosen]
            left -= 1
            lists[2 * base + count[d]] = code
            count[d] += 1
            alive[d] += alive_of[unit]
            held[d] += held_of[unit]
            done = now + takes[unit]
            clock[d] = done
            heapq.heappush(events, (done, d))
            if unit < stages - 1:
                follower, boundary = unit + 1, unit
            elif unit == stages - 1:
                follower, boundary = unit + stages, 0
            else:
                pending[base + queued[d]] = code - stages * batches
                queued[d] += 1
                follower, boundary = unit - 1, unit - stages - 1
                if unit == stages:
                    continue
            following = code + (follower - unit) * batches
            other = device[follower]
            if other == d:
                ready[following] = done
            else:
                arrives = done + arrival[boundary]
                ready[following] = arrives
                if clock[other] <= arrives:
                    heapq.heappush(events, (arrives, other))
        elif waits and (not fits or ready_s - now >= weight_gap * weight[pending[base + begun[d]] // batches]):
            code = pending[base + begun[d]]
            begun[d] += 1
            lists[2 * base + count[d]] = code + 2 * stages * batches
            count[d] += 1
            clock[d] = now + weight[code // batches]
            held[d] -= later[code // batches]
            heapq.heappush(events, (clock[d], d))
        elif now < ready_s < math.inf:
            heapq.heappush(events, (ready_s, d))
    return left
