"""Annealing of decisions: one or two of them change, and the timetable says which period they fit at."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import numba
import numpy as np

from ..jit import NEVER, draw, lean, pick
from .kernel import value_of
from .passes import least_s
from .tables import BACK_FIRST, CLOSED, EARLY, END, FRONT, HALVED, HOST, KEEP, LATE, POLICY, REAR


@lean
def move_devices(dec, count, devices, apart, state):
    """Another forward or backward device for a stage, both, or two devices that change places."""
    s, r = pick(state, count), draw(state)
    if not apart:
        if r < 0.6:
            dec[FRONT, s] = dec[REAR, s] = pick(state, devices)
        else:
            t = pick(state, count)
            dec[FRONT, s], dec[FRONT, t] = dec[FRONT, t], dec[FRONT, s]
            dec[REAR, s], dec[REAR, t] = dec[REAR, t], dec[REAR, s]
    elif r < 0.12:
        dec[FRONT, s] = pick(state, devices)
    elif r < 0.24:
        dec[REAR, s] = pick(state, devices)
    elif r < 0.5:
        dec[FRONT, s] = dec[REAR, s] = pick(state, devices)
    elif r < 0.6:
        if draw(state) < 0.5:
            dec[FRONT, s] = dec[REAR, s]
        else:
            dec[REAR, s] = dec[FRONT, s]
    elif r < 0.84:
        t = pick(state, count)
        dec[FRONT, s], dec[FRONT, t] = dec[FRONT, t], dec[FRONT, s]
        dec[REAR, s], dec[REAR, t] = dec[REAR, t], dec[REAR, s]
    elif r < 0.92:
        row, t = FRONT if draw(state) < 0.5 else REAR, pick(state, count)
        dec[row, s], dec[row, t] = dec[row, t], dec[row, s]
    else:
        row, t = FRONT if draw(state) < 0.5 else REAR, pick(state, count)
        other = FRONT if draw(state) < 0.5 else REAR
        dec[row, s], dec[other, t] = dec[other, t], dec[row, s]


@lean
def move_end(dec, count, state):
    """Some layers of a stage go to the one beside it; neither becomes empty."""
    if count < 2:
        return
    s = pick(state, count - 1)
    first = dec[END, s - 1] if s else 0
    room = dec[END, s + 1] - first - 1
    if room < 2:
        return
    if draw(state) < 0.7:
        found = dec[END, s] + (1 if draw(state) < 0.5 else -1)
    else:
        found = first + 1 + pick(state, room)
    if first < found < dec[END, s + 1]:
        dec[END, s] = found


@lean
def copy(dec, slack, s, t, first):
    """Makes stage t like stage s, in its decisions from row `first` on."""
    for row in range(first, dec.shape[0]):
        dec[row, t] = dec[row, s]
    for row in range(slack.shape[0]):
        slack[row, t] = slack[row, s]


@lean
def split(dec, slack, count, state):
    """One stage becomes two; returns how many there are."""
    s = pick(state, count)
    first = dec[END, s - 1] if s else 0
    if count >= dec.shape[1] or dec[END, s] - first < 2:
        return count
    for t in range(count, s, -1):
        copy(dec, slack, t - 1, t, 0)
    dec[END, s] = first + 1 + pick(state, dec[END, s] - first - 1)
    return count + 1


@lean
def merge(dec, slack, count, state):
    """Two stages become one; returns how many there are."""
    if count < 2:
        return count
    s = pick(state, count - 1)
    if draw(state) < 0.5:
        copy(dec, slack, s, s + 1, 1)
    for t in range(s, count - 1):
        copy(dec, slack, t + 1, t, 0)
    return count - 1


@lean
def settle(c, dec, count):
    """Stashes go to the host only where both devices of a stage share it."""
    for s in range(count):
        if dec[POLICY, s] == HOST and c.node[dec[FRONT, s]] != c.node[dec[REAR, s]]:
            dec[POLICY, s] = KEEP


@lean
def change(c, dec, slack, count, menu, apart, state):
    """One random change; returns how many stages there are."""
    r, t = draw(state), pick(state, count)
    if r < 0.45:
        move_devices(dec, count, len(c.speed), apart, state)
    elif r < 0.6:
        move_end(dec, count, state)
    elif r < 0.75:
        dec[POLICY, t] = menu[pick(state, len(menu))]
        if dec[POLICY, t] == LATE:
            slack[EARLY, t] = draw(state) if draw(state) < 0.5 else 0.0
    elif r < 0.81:
        return split(dec, slack, count, state)
    elif r < 0.87:
        return merge(dec, slack, count, state)
    elif r < 0.92:
        row = HALVED if c.halves and draw(state) < 0.3 else BACK_FIRST
        dec[row, t] = 1 - dec[row, t]
    else:
        row, r = pick(state, slack.shape[0]), draw(state)
        slack[row, t] = draw(state) if r < 0.4 else 0.0 if r < 0.6 or row == EARLY else CLOSED
    return count


@lean
def spread_s(w):
    """The mean load of devices, weighted with their loads: between the mean load and the heaviest."""
    total = squares = 0.0
    for load in w.load:
        total += load
        squares += load * load
    return squares / total if total > 0.0 else 0.0


@numba.njit(cache=True, nogil=True)
def anneal(c, w, dec, slack, size, lowered, menu, apart, cap, moves, hot, cold, even, state, stop):
    """Anneals decisions in place to the best ones found; returns their period, above `cap` where none fit.

    size: one number, of the stages in use. menu: stash choices allowed. apart: whether a stage may have two devices.
    lowered: bytes taken off each device's limit. hot, cold: temperatures as shares of the period. Ends when stop[0] is
    not 0. No moves: their value. even: how many times `spread_s` is added to the period of what fits: the heaviest
    device alone says nothing of all the others, which have to become even before it can.
    """
    count = old = size[0]
    value = best = energy = NEVER
    best_count = count
    best_dec, best_slack = dec.copy(), slack.copy()
    old_dec, old_slack = dec.copy(), slack.copy()
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature = hot
    for move in range(moves + 1):
        if move and stop[0] != 0:
            break
        level = cap
        if move:
            temperature *= cooling
            old_dec[:] = dec
            old_slack[:] = slack
            old = count
            r = draw(state)
            for _ in range(1 if r < 0.6 else 2 if r < 0.9 else 3):
                count = change(c, dec, slack, count, menu, apart, state)
            level = energy * (1.0 - temperature * np.log(draw(state) + 1e-300))
        settle(c, dec, count)
        spread = 0.0
        if value <= cap:
            least_s(c, dec, count, w)
            spread = even * spread_s(w)
        # what does not fit at the cap is worth more than that, by what is lacking
        new = value_of(c, dec, slack, lowered, count, cap if value > cap else NEVER, min(cap, level - spread), value, w)
        if move and (new >= NEVER or new + spread > level):
            dec[:] = old_dec
            slack[:] = old_slack
            count = old
            continue
        value = new
        energy = new
        if new <= cap:
            least_s(c, dec, count, w)
            energy += even * spread_s(w)
        if value < best:
            best, best_count = value, count
            best_dec[:] = dec
            best_slack[:] = slack
    dec[:] = best_dec
    slack[:] = best_slack
    size[0] = best_count
    if best <= cap:  # where decisions before it had the same period, what is less was not looked for
        best = min(best, value_of(c, dec, slack, lowered, best_count, NEVER, best, NEVER, w))
    return best
