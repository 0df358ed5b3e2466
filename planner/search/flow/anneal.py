"""Annealing of where stages end, of their devices, and of which stashes are made again."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import math

import numba

from ..jit import NEVER, draw, lean, pick
from .kernel import value_under

REMADE, ENDS, STAGES_MOVED, DEVICES_SWAPPED = 0.15, 0.6, 0.36, 0.24
"""Shares of moves that change what becomes of a stash, where it may be made again; of the others, those that move ends
of stages; of the rest, those by which two stages exchange devices, and those by which two devices change places from
some stage on."""
ONE_END, RUN = 0.4, 0.75


@lean
def move_ends(ends, state):
    """One end by a layer, or a run of them in one direction, or two each in its own; whether all stages have layers."""
    inner = len(ends) - 2
    one, other = 1 + pick(state, inner), 1 + pick(state, inner)
    by, r = 1 if draw(state) < 0.5 else -1, draw(state)
    if r < ONE_END:
        ends[one] += by
    elif r < RUN:
        for s in range(min(one, other), max(one, other) + 1):
            ends[s] += by
    else:
        ends[one] += by
        ends[other] += 1 if draw(state) < 0.5 else -1
    for s in range(len(ends) - 1):  # noqa: SIM110 compiled as it is
        if ends[s] >= ends[s + 1]:
            return False
    return True


@lean
def move_devices(c, dev, state):
    """Two stages exchange devices, or one comes to another device, or to its neighbour's; or two devices change places
    from some stage on."""
    s, r = pick(state, len(dev)), draw(state)
    if r < STAGES_MOVED:
        other = pick(state, len(dev))
        dev[s], dev[other] = dev[other], dev[s]
    elif r < STAGES_MOVED + DEVICES_SWAPPED:
        one, other = c.devices[pick(state, len(c.devices))], c.devices[pick(state, len(c.devices))]
        for k in range(s, len(dev)):
            dev[k] = other if dev[k] == one else one if dev[k] == other else dev[k]
    elif draw(state) < 0.5:
        dev[s] = c.devices[pick(state, len(c.devices))]
    else:
        dev[s] = dev[s - 1] if s > 0 and draw(state) < 0.5 else dev[min(s + 1, len(dev) - 1)]


@numba.njit(cache=True, nogil=True)
def improve(c, w, ends, dev, again, moves, hot, finer, state, stop):
    """Anneals `ends` [stages + 1], `dev` and `again` [stages] in place; returns the best value.

    hot: the first temperature, as a share of the value; it falls to nothing. Ends when stop[0] is not 0.
    """
    value = value_under(c, w, ends, dev, again, finer, NEVER)
    least = value
    best, found, kept = ends.copy(), dev.copy(), again.copy()
    now, there, made = ends.copy(), dev.copy(), again.copy()
    for n in range(moves):
        if stop[0] != 0:
            break
        now[:] = ends
        there[:] = dev
        made[:] = again
        if c.remakes and draw(state) < REMADE:
            s = pick(state, len(dev))
            made[s] = 1 - made[s]
        elif draw(state) < ENDS:
            if len(ends) < 3 or not move_ends(now, state):
                continue
        else:
            move_devices(c, there, state)
        cooled = hot * (1.0 - n / moves) ** 2
        level = NEVER if value >= NEVER else value * (1.0 - cooled * math.log(draw(state) + 1e-300)) + 1e-12 * value
        new = value_under(c, w, now, there, made, finer, level)
        if new > level:
            continue
        value = new
        ends[:] = now
        dev[:] = there
        again[:] = made
        if value < least:
            least = value
            best[:] = now
            found[:] = there
            kept[:] = made
    ends[:] = best
    dev[:] = found
    again[:] = kept
    return least
