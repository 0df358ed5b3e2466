"""Blocks at random, and annealing of the best of them: pauses, the period, and what a wait is filled with."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case and Work

from __future__ import annotations

import numba
import numpy as np

from ..jit import draw, lean, pick
from .kernel import NEVER, OTHER_GAP, PERIOD, WEIGHT_GAP, lists, value_of

SLOTS = (0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Pauses at random, in slots: F, I and W of one stage take three."""
GAPS = (0.0, 0.3, 0.6, 1.0)
SLOWER = 1.06
SLOWEST = 14  # periods at random, each so much longer than the one before


@lean
def slot(c):
    """A third of what F, I and W of a stage take, on average."""
    return c.load * len(c.room) * len(c.batches) / (1.5 * len(c.takes))


@lean
def invent(c, pauses, rules, state):
    """A random block, equal in all passes: one pause on every leg, one at every turn."""
    one = slot(c)
    for leg in range(len(c.legs) - 1):
        low, high = c.legs[leg], c.legs[leg + 1]
        turn, way = SLOTS[pick(state, len(SLOTS))] * one, SLOTS[pick(state, len(SLOTS))] * one
        for x in range(low, high):
            for j in range(pauses.shape[0]):
                pauses[j, x] = 0.0 if x == 0 else turn if x == low else way
    rules[PERIOD] = SLOWER ** pick(state, SLOWEST)
    rules[WEIGHT_GAP], rules[OTHER_GAP] = GAPS[pick(state, len(GAPS))], GAPS[pick(state, len(GAPS))]


@lean
def vary(c, pauses, rules, state):
    """Changes one thing."""
    passes, ops = pauses.shape
    low, high = 0, passes
    if passes > 1 and draw(state) < 0.6:
        low = pick(state, passes)
        high = low + 1
    r, one = draw(state), slot(c)
    more = (draw(state) - 0.5) * one * (4.0 if draw(state) < 0.5 else 0.5)
    leg = pick(state, len(c.legs) - 1)
    if r < 0.35:
        again = SLOTS[pick(state, len(SLOTS))] * one
        fresh = draw(state) < 0.3
        for j in range(low, high):
            for x in range(c.legs[leg] + 1, c.legs[leg + 1]):
                pauses[j, x] = again if fresh else max(0.0, pauses[j, x] + more)
    elif r < 0.55:
        x = c.legs[leg]
        for j in range(low, high):
            pauses[j, x] = max(0.0, pauses[j, x] + more)
    elif r < 0.75:
        x = pick(state, ops)
        for j in range(low, high):
            pauses[j, x] = max(0.0, pauses[j, x] + more)
            if x + 1 < ops and draw(state) < 0.5:
                pauses[j, x + 1] = max(0.0, pauses[j, x + 1] - more)
    elif r < 0.9:
        rules[PERIOD] = max(0.9, rules[PERIOD] * (1.0 + (draw(state) - 0.5) * (0.2 if draw(state) < 0.3 else 0.02)))
    elif r < 0.95:
        rules[WEIGHT_GAP] = draw(state) * 1.2 if draw(state) < 0.5 else GAPS[pick(state, len(GAPS))]
    else:
        rules[OTHER_GAP] = draw(state) * 1.2 if draw(state) < 0.5 else GAPS[pick(state, len(GAPS))]


@numba.njit(cache=True, nogil=True)
def improve(c, w, pauses, rules, more, tries, moves, hot, cold, state, stop):
    """The best of a block, of so many at random, and of annealing it, in place; returns its value.

    hot, cold: first and last temperature, as shares of the value. more: as in `value_of`. With no tries and no moves
    the block itself is scheduled. Ends when stop[0] is not 0.
    """
    value = best = level = NEVER
    best_pauses, best_rules = pauses.copy(), rules.copy()
    block, ways = pauses.copy(), rules.copy()
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature, mark = hot, -1
    for n in range(1 + tries + moves):
        if n > 0 and (stop[0] != 0 or (n > tries and value >= NEVER)):
            break
        if n > 0 and n <= tries:
            invent(c, block, ways, state)
            level = value
        elif n > 0:
            block[:] = pauses
            ways[:] = rules
            for _ in range(1 + int(draw(state) < 0.4)):
                vary(c, block, ways, state)
            temperature *= cooling
            level = value * (1.0 - temperature * np.log(draw(state) + 1e-300))
        listed = lists(c, w, block, ways)
        gaps = ways[WEIGHT_GAP] == rules[WEIGHT_GAP] and ways[OTHER_GAP] == rules[OTHER_GAP]
        new = value if n > 0 and gaps and listed == mark else value_of(c, w, ways, more, level)
        if new > level:
            continue
        value, mark = new, listed
        pauses[:] = block
        rules[:] = ways
        if value < best:
            best = value
            best_pauses[:] = block
            best_rules[:] = ways
    pauses[:] = best_pauses
    rules[:] = best_rules
    return best
