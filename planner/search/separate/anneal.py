"""Annealing of decisions: one or two of them change, and the dispatcher says what the step becomes."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import numba
import numpy as np

from ..jit import NEVER, draw, pick
from .dispatch import dispatch
from .tables import AHEAD, AWAY, CAP, FRONT, HALVES, HOST, KEEP, OVER, POLICY, REAR, TARGET, TURNS, WINDOW


@numba.njit(cache=True, nogil=True)
def few(state, most):
    """A whole number from 1 to `most`, small ones more often."""
    return 1 + min(most - 1, int(draw(state) ** 2 * most))


@numba.njit(cache=True, nogil=True)
def rooms(dec, s, batches, state):
    """New caps of a stage whose devices have changed."""
    dec[CAP, s] = few(state, batches)
    dec[WINDOW, s] = few(state, batches)
    dec[AHEAD, s] = pick(state, 4) if draw(state) < 0.5 else 0


@numba.njit(cache=True, nogil=True)
def move_devices(dec, devices, batches, state):
    """Another forward or backward device for a stage, both, or two devices that change places."""
    s = pick(state, dec.shape[1])
    r = draw(state)
    if r < 0.35:
        dec[FRONT, s] = pick(state, devices)
    elif r < 0.7:
        dec[REAR, s] = pick(state, devices)
    elif r < 0.78:
        dec[FRONT, s] = dec[REAR, s] = pick(state, devices)
    elif r < 0.9:
        row = FRONT if draw(state) < 0.5 else REAR
        t = pick(state, dec.shape[1])
        dec[row, s], dec[row, t] = dec[row, t], dec[row, s]
        rooms(dec, t, batches, state)
    else:
        a, b = pick(state, devices), pick(state, devices)
        for row in (FRONT, REAR, TARGET):
            for t in range(dec.shape[1]):
                if dec[row, t] == a:
                    dec[row, t] = b
                elif dec[row, t] == b:
                    dec[row, t] = a
        return
    if draw(state) < 0.6:
        rooms(dec, s, batches, state)


@numba.njit(cache=True, nogil=True)
def move_stash(dec, menu, devices, state):
    """Another stash choice for a stage: one of `menu`, for some of the micro-batches."""
    s = pick(state, dec.shape[1])
    dec[POLICY, s] = menu[pick(state, len(menu))]
    if dec[POLICY, s] == AWAY:
        dec[TARGET, s] = pick(state, devices)
    turns = (15, 5, 10, 1, 7, 11)
    dec[TURNS, s] = turns[pick(state, 6)]


@numba.njit(cache=True, nogil=True)
def settle(c, dec):
    """Stashes go to the host only where both devices of a stage share it."""
    for s in range(dec.shape[1]):
        if dec[POLICY, s] == HOST and c.node[dec[FRONT, s]] != c.node[dec[REAR, s]]:
            dec[POLICY, s] = KEEP


@numba.njit(cache=True, nogil=True)
def value_of(c, dec, lag, extra, patience, lowered, w, worst):
    """Seconds of a step; longer by the share of memory that tensors in transit take and that is not there."""
    found = dispatch(c, dec, lag, extra, patience, lowered, w, worst)
    if found < NEVER:
        for d in range(len(patience)):
            if w.device[OVER, d] > 0:
                found *= 1.0 + w.device[OVER, d] / c.limit[d]
    return found if found <= worst else NEVER


@numba.njit(cache=True, nogil=True)
def anneal(c, w, dec, lag, extra, patience, lowered, menu, may_split, moves, hot, cold, target, state, stop):
    """Anneals decisions in place to the best ones found; returns their value, NEVER where none fit.

    menu: stash choices allowed. may_split [stages]: where backwards may be split. hot, cold: first and last temperature
    as shares of the step. Ends at `target` seconds, or when stop[0] is not 0.
    """
    stages, devices, batches = dec.shape[1], len(patience), c.batches
    value = value_of(c, dec, lag, extra, patience, lowered, w, NEVER)
    best = value
    best_dec, best_lag, best_extra, best_patience = dec.copy(), lag.copy(), extra.copy(), patience.copy()
    old_dec, old_lag, old_patience = dec.copy(), lag.copy(), patience.copy()
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature = hot
    for _ in range(moves):
        if stop[0] != 0 or best <= target:
            break
        temperature *= cooling
        old_dec[:] = dec
        old_lag[:] = lag
        old_patience[:] = patience
        cell, old = -1, 0.0
        kind = s = k = 0
        for _ in range(1 if draw(state) < 0.65 else 2):
            r = draw(state)
            t = pick(state, stages)
            if r < 0.36:
                move_devices(dec, devices, batches, state)
            elif r < 0.5:
                dec[CAP, t] = max(1, min(batches, dec[CAP, t] + pick(state, 5) - 2)) if draw(state) < 0.7 else batches
            elif r < 0.57:
                dec[AHEAD, t] = pick(state, 4)
            elif r < 0.64:
                dec[WINDOW, t] = max(1, min(batches, dec[WINDOW, t] + pick(state, 5) - 2))
            elif r < 0.73 and len(menu) > 1:
                move_stash(dec, menu, devices, state)
            elif r < 0.84:
                lag[pick(state, 3), t] += (draw(state) - 0.5) * (2.0 if draw(state) < 0.5 else batches)
            elif r < 0.87:
                patience[pick(state, devices)] = draw(state) if draw(state) < 0.5 else 0.0
            elif r < 0.9 and may_split[t]:
                dec[HALVES, t] = 1 - dec[HALVES, t]
            elif cell < 0:
                kind, s, k = pick(state, 3), t, pick(state, batches)
                cell, old = 1, extra[kind, s, k]
                extra[kind, s, k] += (draw(state) - 0.5) * (2.0 if draw(state) < 0.7 else batches)
        settle(c, dec)
        level = NEVER if value >= NEVER else value * (1.0 - temperature * np.log(draw(state) + 1e-300))
        new = value_of(c, dec, lag, extra, patience, lowered, w, level)
        if new >= NEVER and value < NEVER:
            dec[:] = old_dec
            lag[:] = old_lag
            patience[:] = old_patience
            if cell > 0:
                extra[kind, s, k] = old
            continue
        value = new
        if value < best:
            best = value
            best_dec[:] = dec
            best_lag[:] = lag
            best_extra[:] = extra
            best_patience[:] = patience
    dec[:] = best_dec
    lag[:] = best_lag
    extra[:] = best_extra
    patience[:] = best_patience
    return best
