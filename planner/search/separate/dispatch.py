"""The compiled dispatcher: runs decisions forward in time, event by event, and writes the lists that they lead to.

    decisions, by stage       device d at time t                       list of device d
    forward device       -->  idle: of the ops whose tensors are   --> 0F0 0SEND_S0>3 1RECV_S0<2 1B0 0FREE0 0F1 ...
    backward device           there and that have room, the one
    stash choice              with the least key starts
    caps, keys                stashes move when both ends have room

What a list cannot promise is not used: a RECV_S stands where an op of its device has ended, so its memory is taken
from there on; memory that a stash has left is used behind its FREE. So the lists neither deadlock nor take longer than
the dispatcher did.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

from ..jit import NEVER, inlined, lean
from .events import AWAKE, CHANGED, DROPPED, ENDED, GONE, TAKEN, coded, fill, note, pop, push
from .moves import carry, destination, free, move_stashes, policy
from .tables import (
    BATCH_AT,
    BATCHES,
    BEGUN,
    CAP,
    COPIED_OUT,
    DEVICE_AT,
    DONE,
    FINISH,
    FREE,
    FRONT,
    GOING,
    GONE_BYTES,
    GONE_LAST,
    HALF,
    HALVES,
    HELD,
    HOST,
    LEFT,
    LOAD,
    LOOK,
    MADE,
    MOST,
    POLICY,
    REAR,
    RECOMPUTE,
    REMADE,
    REMADE_F,
    RUNNING,
    SINCE,
    STAGE_AT,
    STAGES,
    STATE,
    THERE,
    UNITS,
    USABLE,
    WAITING,
    B,
    F,
    R,
    W,
)  # fmt: skip


@inlined
def send(c, w, row, d, e, s, k, size, now, tiny):
    """Hands the tensor of an op on device d on to stage s on device e: row 0 to its forward, 1 to its backward."""
    t = now
    if d != e:
        end = carry(c.pace, c.node, w.link, w.clock, d, e, size, now)
        begin = end - size * c.pace[d, e]
        if begin <= now + tiny:
            fill(w.device, e, size)
        else:
            push(w.times, w.items, begin, coded(TAKEN, e, 0, 0), size)
        push(w.times, w.items, end, coded(DROPPED, d, 0, 0), size)
        t = end + c.lag[d, e]
        push(w.times, w.items, t, coded(AWAKE, e, 0, 0), 0)
    w.eta[row, s, k] = max(w.eta[row, s, k], t)
    w.cell[row, s, k] += 1


@inlined
def end_op(c, dec, w, d, now, tiny):
    """Ends the op that runs on device d; returns its kind."""
    code = w.device[RUNNING, d] - 1
    kind, s, k = code & 7, (code >> STAGE_AT) & STAGES, (code >> BATCH_AT) & BATCHES
    w.device[RUNNING, d] = 0
    w.device[LOOK, d] = 1
    w.stage[DONE + kind, s] += 1
    note(w.log, w.device, d, coded(kind, -1, s, k))
    p = policy(dec, s, k)
    row = kind
    if kind == F and p == RECOMPUTE:
        row = REMADE_F
    elif kind == B and dec[HALVES, s]:
        row = HALF
    w.device[HELD, d] += c.drop[row, s]
    w.device[SINCE, d] = w.device[HELD, d]
    if kind == F:
        there = destination(dec, s, k) < 0
        w.cell[STATE, s, k] = USABLE if there else MADE
        if p == HOST:
            size, h = c.moved[0, s], c.host[d]
            end = max(now, w.host[0, h], w.clock[COPIED_OUT, d]) + size * c.host_pace[d]
            w.host[0, h] = w.clock[COPIED_OUT, d] = end
            w.cell[STATE, s, k] = GOING
            push(w.times, w.items, end, coded(GONE, d, s, k), size)
            push(w.times, w.items, end + c.host_lag[d], coded(CHANGED, d, s, k), THERE)
        elif not there:
            w.stage[WAITING, s] += 1
        for x in range(c.out_first[s], c.out_first[s + 1]):
            t = c.out_stage[x]
            send(c, w, 0, d, dec[FRONT, t], t, k, c.out_bytes[x], now, tiny)
    elif kind == R:
        w.cell[STATE, s, k] = REMADE
    else:
        w.last[s] = now
        if kind == B:
            for x in range(c.in_first[s], c.in_first[s + 1]):
                t = c.in_stage[x]
                send(c, w, 1, d, dec[REAR, t], t, k, c.in_bytes[x], now, tiny)
    return kind


@inlined
def start_op(c, dec, w, d, kind, s, now):
    """Starts an op; returns its end."""
    k = w.stage[BEGUN + (B if kind == R else kind), s]  # some micro-batches may have no R: it is for the next B
    row, count = kind, 0
    if kind == F:
        if policy(dec, s, k) == RECOMPUTE:
            row = REMADE_F
        if dec[FRONT, s] != dec[REAR, s]:
            count = k + 1 - dec[CAP, s]
    elif kind == B and dec[HALVES, s]:
        row = HALF
    take = c.take[row, s]
    free(w.device, w.stage, w.gone, w.log, d, w.device[MOST, d] - take, s, count)
    fill(w.device, d, take)
    w.stage[BEGUN + kind, s] = k + 1
    if kind == B:
        for x in range(c.in_first[s], c.in_first[s + 1]):
            w.device[LOOK, dec[REAR, c.in_stage[x]]] = 1
    w.device[RUNNING, d] = 1 + coded(kind, -1, s, k)
    seconds = c.seconds[row, s] / c.speed[d]
    w.clock[FINISH, d] = now + seconds
    w.clock[LOAD, d] -= seconds
    push(w.times, w.items, now + seconds, coded(ENDED, d, 0, 0), 0)
    return now + seconds


@inlined
def asked_for(c, w, s, k):
    """Whether the gradient that a backward needs is made, or in the making."""
    found = c.out_first[s] == c.out_first[s + 1]
    for x in range(c.out_first[s], c.out_first[s + 1]):
        found = found or w.stage[BEGUN + B, c.out_stage[x]] > k
    return found


@inlined
def choose(c, dec, lag, extra, patience, w, d, now):
    """The op to start on an idle device, kind + 8 * stage; -1: none."""
    best, key, long = -1, NEVER, 0.0
    coming, coming_at = NEVER, NEVER
    blocked = False
    room = w.device[MOST, d] - w.device[HELD, d] + w.device[GONE_BYTES, d]
    for x in range(w.device[UNITS, d]):
        s = w.unit[d, x]
        k = w.stage[BEGUN + B, s]
        if dec[REAR, s] == d and k < w.stage[BEGUN + F, s]:
            value = k + lag[B, s] + extra[B, s, k]
            remade, degree = policy(dec, s, k) == RECOMPUTE, c.out_first[s + 1] - c.out_first[s]
            row = -1
            if remade and w.cell[STATE, s, k] == USABLE and w.stage[BEGUN + R, s] <= k:
                if asked_for(c, w, s, k):
                    row = R
            elif w.cell[STATE, s, k] == (REMADE if remade else USABLE) and w.cell[1, s, k] == degree:
                row = HALF if dec[HALVES, s] else B
                if w.eta[1, s, k] > now:
                    row = -1
                    if value < coming:
                        coming, coming_at = value, w.eta[1, s, k]
            if row >= 0:
                if c.take[row, s] > room:
                    blocked = True
                elif value < key:
                    best, key, long = (R if row == R else B) + 8 * s, value, c.seconds[row, s]
        k = w.stage[BEGUN + W, s]
        if dec[REAR, s] == d and dec[HALVES, s] and k < w.stage[DONE + B, s]:
            value = k + lag[W, s] + extra[W, s, k]
            if c.take[W, s] > room:
                blocked = True
            elif value < key:
                best, key, long = W + 8 * s, value, c.seconds[W, s]
        k = w.stage[BEGUN + F, s]
        if dec[FRONT, s] != d or k >= w.cell.shape[2]:
            continue
        released = w.stage[DONE + B, s] if dec[REAR, s] == d else w.stage[LEFT, s]
        if k - released >= dec[CAP, s] or w.cell[0, s, k] < c.in_first[s + 1] - c.in_first[s]:
            continue
        value = k + lag[F, s] + extra[F, s, k]
        if w.eta[0, s, k] > now:
            if value < coming:
                coming, coming_at = value, w.eta[0, s, k]
            continue
        if value >= key or c.take[REMADE_F if policy(dec, s, k) == RECOMPUTE else F, s] > room:
            continue
        best, key, long = F + 8 * s, value, c.seconds[F, s]
    if best >= 0 and coming < key and coming_at - now <= patience[d] * long / c.speed[d]:
        return -1
    return -1 if blocked and best >= 0 and (best & 7) == F else best


@inlined
def place(c, dec, w):
    """Puts stages on their devices: what they hold all the time, and their work."""
    for s in range(w.cell.shape[1] - 1, -1, -1):
        a, b = dec[FRONT, s], dec[REAR, s]
        w.device[HELD, b] += c.owned[s]
        w.unit[b, w.device[UNITS, b]] = s
        w.device[UNITS, b] += 1
        if a != b:
            w.device[HELD, a] += c.lent[s]
            w.unit[a, w.device[UNITS, a]] = s
            w.device[UNITS, a] += 1
        remade = 0
        if dec[POLICY, s] == RECOMPUTE:
            for k in range(c.batches):
                remade += policy(dec, s, k) == RECOMPUTE
        w.clock[LOAD, a] += c.batches * c.seconds[F, s] / c.speed[a]
        back = c.seconds[HALF, s] + c.seconds[W, s] if dec[HALVES, s] else c.seconds[B, s]
        w.clock[LOAD, b] += (remade * c.seconds[R, s] + c.batches * back) / c.speed[b]
    for t in range(c.member.shape[0]):
        for d in range(w.device.shape[1]):
            owns = lends = False
            for s in range(w.cell.shape[1]):
                if c.member[t, s]:
                    owns = owns or dec[REAR, s] == d
                    lends = lends or dec[FRONT, s] == d
            if owns:
                w.device[HELD, d] += c.tied_owned[t]
            elif lends:
                w.device[HELD, d] += c.tied_lent[t]


@inlined
def updates(c, dec, w):
    """When the last optimizer step has ended and new parameters are where only forwards run."""
    stages, end = w.cell.shape[1], 0.0
    for d in range(w.device.shape[1]):
        t = w.clock[FINISH, d]
        end = max(end, t)
        after = -1.0
        while True:
            soonest = NEVER
            for s in range(stages):
                if dec[REAR, s] == d and after < w.last[s] < soonest:
                    soonest = w.last[s]
            if soonest >= NEVER:
                break
            after = soonest
            for s in range(stages):
                if dec[REAR, s] != d or w.last[s] != after:
                    continue
                t += c.step[s, d]
                end = max(end, t)
                a = dec[FRONT, s]
                if a != d and c.trained[s] > 0:
                    end = max(end, carry(c.pace, c.node, w.link, w.clock, d, a, c.trained[s], t) + c.lag[d, a])
    return end


@inlined
def take_event(c, dec, w, now, tiny):
    """What comes of the first event; returns 1 where an op has ended that every micro-batch has once."""
    code, size = w.items[0, 0], w.items[1, 0]
    pop(w.times, w.items)
    kind, s, k, d = code & 7, (code >> STAGE_AT) & STAGES, (code >> BATCH_AT) & BATCHES, (code >> DEVICE_AT) - 1
    w.device[LOOK, d] = 1
    if kind == ENDED:
        return 0 if end_op(c, dec, w, d, now, tiny) == R else 1
    if kind == DROPPED:
        w.device[HELD, d] -= size
    elif kind == TAKEN:
        fill(w.device, d, size)
    elif kind == GONE:
        n = w.device[GONE_LAST, d]
        w.gone[0, d, n], w.gone[1, d, n] = coded(FREE, -1, s, k), size
        w.device[GONE_LAST, d] = n + 1
        w.device[GONE_BYTES, d] += size
        w.stage[LEFT, s] += 1
    elif kind == CHANGED:
        w.cell[STATE, s, k] = size
        w.stage[WAITING + 1, s] += size == THERE
    return 0


@lean
def dispatch(c, dec, lag, extra, patience, lowered, w, worst):
    """Seconds of a step by these decisions; NEVER where they get stuck, do not fit, or take longer than `worst`.

    dec [ROWS, stages]: see `tables`. An op of micro-batch k has the key k + lag [F, B, W; stages] + extra [F, B, W;
    stages, micro-batches]. patience [devices]: an op waits for one with a smaller key that is known to come within this
    share of its length. lowered: bytes taken off every device's limit.
    """
    devices = w.device.shape[1]
    w.device[:] = 0
    w.clock[:] = 0.0
    w.stage[:] = 0
    w.cell[:] = 0
    w.eta[:] = 0.0
    w.link[:] = 0.0
    w.host[:] = 0.0
    w.items[2, 0] = 0
    place(c, dec, w)
    tiny = 0.0
    for d in range(devices):
        most = c.limit[d] - lowered[d]
        w.device[MOST, d] = most
        w.device[SINCE, d] = w.device[HELD, d]
        w.device[LOOK, d] = 1
        if w.device[HELD, d] > most or w.clock[LOAD, d] > worst:
            return NEVER
        tiny = max(tiny, 1e-12 * w.clock[LOAD, d])
    left = 2 * w.cell.shape[1] * c.batches
    for s in range(w.cell.shape[1]):
        left += c.batches * dec[HALVES, s]
    now = 0.0
    while left > 0:
        again = True
        while again:  # what has begun now lets stashes move
            move_stashes(c, dec, lag, extra, w, now, tiny)
            again = False
            for d in range(devices):
                if w.device[LOOK, d] and w.device[RUNNING, d] == 0 and w.device[UNITS, d] > 0:
                    w.device[LOOK, d] = 0
                    found = choose(c, dec, lag, extra, patience, w, d, now + tiny)
                    if found >= 0:
                        again = again or found & 7 == B
                        end = start_op(c, dec, w, d, found & 7, found >> 3, now)
                        if end + w.clock[LOAD, d] > worst:
                            return NEVER
        if w.items[2, 0] == 0:
            return NEVER
        now = max(now, w.times[0])
        while w.items[2, 0] > 0 and w.times[0] <= now + tiny:
            now = max(now, w.times[0])
            left -= take_event(c, dec, w, now, tiny)
    end = updates(c, dec, w)
    return NEVER if end > worst else end
