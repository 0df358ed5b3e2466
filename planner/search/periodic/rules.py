"""Rules of the dispatcher at random, and annealing of them."""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types from Case, Work and Legs

from __future__ import annotations

import math

import numba
import numpy as np

from ..jit import draw, lean, pick
from .dispatch import FIRST, PERIOD, WEIGHT_GAP, dispatch
from .kernel import NEVER

PAUSES = (0.0, 0.0, 0.2, 0.8)
"""Pauses at random before every F, in what a device takes for one stage."""
PAUSES_BACK = (0.0, 0.4, 0.8, 1.2, 1.6)
"""The same before every I."""
TURNS = (0.0, 0.0, 0.4, 0.8, -0.4)
"""The same before the first I, a device."""
GAPS = (0.0, 0.3, 0.5, 1.0)
LONGER = 1.06
LONGEST = 40  # periods at random, each so much longer than the one before
_STEP, _SHARE_STEP, _GAP_STEP = 0.13, 0.05, 0.2


@lean
def normal(state):
    """A number of the normal distribution (Box and Muller)."""
    return math.sqrt(-2.0 * math.log(draw(state) + 1e-300)) * math.cos(2.0 * math.pi * draw(state))


@lean
def ordered(rules, low):
    """Sorts the numbers of rules from `low` on, which are few."""
    for n in range(low + 1, len(rules)):
        at = n
        while at > low and rules[at - 1] > rules[at]:
            rules[at - 1], rules[at] = rules[at], rules[at - 1]
            at -= 1


@lean
def invent(c, g, rules, state):
    """Random rules: one pause for F and one for I, one turn."""
    parts = len(c.legs) - 1
    half = parts // 2
    rules[PERIOD] = LONGER ** pick(state, LONGEST) / g.visits
    rules[WEIGHT_GAP] = GAPS[pick(state, len(GAPS))]
    onward, back = PAUSES[pick(state, len(PAUSES))], PAUSES_BACK[pick(state, len(PAUSES_BACK))]
    for n in range(parts):
        rules[FIRST + n] = onward if n < half else back
        rules[FIRST + parts + n] = 0.0
    rules[FIRST + parts + half] = TURNS[pick(state, len(TURNS))]
    shared = draw(state) < 0.6
    for n in range(g.visits - 1):
        even = (n + 1.0) / g.visits
        rules[FIRST + 2 * parts + n] = min(1.0, even * (0.8 + draw(state))) if shared else 1.0
    ordered(rules, FIRST + 2 * parts)


@lean
def shift(g, rules, state, much):
    """Changes one thing."""
    parts = 2 * g.visits
    shares = FIRST + 2 * parts
    r = draw(state)
    more = _STEP * much * normal(state)
    if r < 0.125:
        rules[PERIOD] *= LONGER ** (much * normal(state))
    elif r < 0.25:
        rules[WEIGHT_GAP] = max(0.0, rules[WEIGHT_GAP] + _GAP_STEP * normal(state))
    elif r < 0.375 and g.visits > 1:
        for n in range(shares, len(rules)):
            rules[n] = min(1.0, max(0.02, rules[n] + _SHARE_STEP * much * normal(state)))
        ordered(rules, shares)
    elif r < 0.5:
        rules[FIRST + parts + pick(state, parts)] += more
    elif draw(state) < 0.5:
        rules[FIRST + pick(state, parts)] += more
    else:
        first = FIRST + g.visits * pick(state, 2)
        for n in range(first, first + g.visits):
            rules[n] += more


@numba.njit(cache=True, nogil=True)
def improve_rules(c, w, g, rules, value, tries, moves, hot, cold, much, state):
    """The best of rules whose value is known, of so many at random, and of so many moves, in place; returns its value.

    hot, cold: first and last temperature, as shares of the value. much: how large moves are. NEVER: not known.
    """
    best = value
    best_rules, now = rules.copy(), rules.copy()
    if best >= NEVER:
        best = dispatch(c, w, g, rules, NEVER)
    for _ in range(tries):
        invent(c, g, now, state)
        new = dispatch(c, w, g, now, best)
        if new < best:
            best = new
            best_rules[:] = now
    rules[:] = best_rules
    value = best
    temperature = hot
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    for _ in range(moves if value < NEVER else 0):
        now[:] = rules
        for _ in range(1 + int(draw(state) < 0.4)):
            shift(g, now, state, much)
        temperature *= cooling
        level = value * (1.0 - temperature * np.log(draw(state) + 1e-300))
        new = dispatch(c, w, g, now, level)
        if new <= level:
            value = new
            rules[:] = now
            if value < best:
                best = value
                best_rules[:] = now
    rules[:] = best_rules
    return best
