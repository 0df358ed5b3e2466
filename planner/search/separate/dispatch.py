"""The compiled dispatcher: runs decisions forward in time, event by event, and writes the lists that they lead to.

    decisions, by stage       device d at time t                       list of device d
    forward device       -->  idle: of the ops whose tensors are   --> 0F0 0SEND_S0>3 1RECV_S0<2 1B0 0FREE0 0F1 ...
    backward device           there and that have room, the one
    stash choice              with the least key starts
    caps, keys                stashes move when both ends have room

A stash moves as soon as it may, the one that is needed first in front. What a list cannot promise is not used: a
RECV_S stands where an op of its device has ended, so its memory is taken from there on; memory that a stash has left
is used behind its FREE. So the lists neither deadlock nor take longer than the dispatcher did.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

from ..jit import inlined, lean
from .tables import (
    AHEAD,
    AWAY,
    BATCH_AT,
    BATCHES,
    BEGUN,
    CAP,
    COMING,
    COPIED_IN,
    COPIED_OUT,
    DEVICE_AT,
    DONE,
    FETCH,
    FINISH,
    FREE,
    FREED,
    FRONT,
    GOING,
    GONE_BYTES,
    GONE_FIRST,
    GONE_LAST,
    HALF,
    HALVES,
    HELD,
    HOP,
    HOST,
    IN,
    KEEP,
    LEFT,
    LOAD,
    LOGGED,
    LOOK,
    MADE,
    MOST,
    OUT,
    OVER,
    POLICY,
    QUARTERS,
    REAR,
    RECEIVE,
    RECOMPUTE,
    REFUSED,
    REMADE,
    REMADE_F,
    RUNNING,
    SEND,
    SINCE,
    STAGE_AT,
    STAGES,
    STATE,
    TARGET,
    THERE,
    TURNS,
    UNITS,
    USABLE,
    WAITING,
    WINDOW,
    B,
    F,
    R,
    W,
)  # fmt: skip

NEVER = 1e300
_END, _DROP, _GONE, _TAKE, _WAKE, _STATE = range(6)
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
            push(w.times, w.items, begin, coded(_TAKE, e, 0, 0), size)
        push(w.times, w.items, end, coded(_DROP, d, 0, 0), size)
        t = end + c.lag[d, e]
        push(w.times, w.items, t, coded(_WAKE, e, 0, 0), 0)
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
            push(w.times, w.items, end, coded(_GONE, d, s, k), size)
            push(w.times, w.items, end + c.host_lag[d], coded(_STATE, d, s, k), THERE)
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
    push(w.times, w.items, now + seconds, coded(_END, d, 0, 0), 0)
    return now + seconds


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
            push(w.times, w.items, end, coded(_WAKE, b, s, k), 0)
            push(w.times, w.items, end + c.host_lag[b], coded(_STATE, b, s, k), USABLE)
            w.cell[STATE, s, k] = COMING
        else:
            note(w.log, w.device, a, coded(SEND, b, s, k))
            note(w.log, w.device, b, coded(RECEIVE, a, s, k))
            end = carry(c.pace, c.node, w.link, w.clock, a, b, size, now)
            w.clock[COPIED_OUT, a] = max(w.clock[COPIED_OUT, a], end)
            push(w.times, w.items, end, coded(_GONE if leg == 0 else _DROP, a, s, k), size)
            there = leg == 0 and b != rear
            w.cell[STATE, s, k] = GOING if there else COMING
            push(w.times, w.items, end + c.lag[a, b], coded(_STATE, b, s, k), THERE if there else USABLE)
        fill(w.device, b, size)
        look(c, dec, lag, extra, w, now + tiny)


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
    if kind == _END:
        return 0 if end_op(c, dec, w, d, now, tiny) == R else 1
    if kind == _DROP:
        w.device[HELD, d] -= size
    elif kind == _TAKE:
        fill(w.device, d, size)
    elif kind == _GONE:
        n = w.device[GONE_LAST, d]
        w.gone[0, d, n], w.gone[1, d, n] = coded(FREE, -1, s, k), size
        w.device[GONE_LAST, d] = n + 1
        w.device[GONE_BYTES, d] += size
        w.stage[LEFT, s] += 1
    elif kind == _STATE:
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
