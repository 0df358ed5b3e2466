"""A mode for every layer of a stage, so that it fits the memory in the time there is: a multiple-choice knapsack.

Three answers in turn: the linear relaxation (along the lower hulls of time over memory, best ratio first) rules out,
the same rounded up finds, and where they disagree all combinations that no other one dominates decide (Nemhauser and
Ullmann, 1969), unless they are too many.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
# compiled functions: numba infers their types

from __future__ import annotations

import numba
import numpy as np

NO, YES, UNKNOWN = 0, 1, 2
_MOST_STATES = 4096


@numba.njit(cache=True, nogil=True)
def choose(cost, memory, count, n, most_cost, most_memory):
    """Is there a mode for each of n items with costs and memory within these sums? NO, YES, or UNKNOWN.

    `cost` and `memory` have a row for every item, of which the first `count` columns are modes.
    """
    first = np.empty(n, np.int64)
    total, held, least = 0.0, 0.0, 0.0
    increments = 0
    for v in range(n):
        best = 0
        light = memory[v, 0]
        for k in range(1, count[v]):
            better = cost[v, k] < cost[v, best] or (cost[v, k] == cost[v, best] and memory[v, k] < memory[v, best])
            if better:
                best = k
            light = min(light, memory[v, k])
        first[v] = best
        total += cost[v, best]
        held += memory[v, best]
        least += light
        increments += count[v] - 1
    if total > most_cost or least > most_memory:
        return NO
    if held <= most_memory:
        return YES
    gains, prices = _hulls(cost, memory, count, n, first, increments)
    ratios = np.empty(len(gains))
    for i in range(len(gains)):
        ratios[i] = prices[i] / gains[i]
    order = ordered(ratios, len(ratios))  # of equal ones an item's earlier step first
    missing, spent = held - most_memory, total
    for i in order:
        if gains[i] >= missing:
            if spent + prices[i] * (missing / gains[i]) > most_cost:
                return NO
            break
        missing -= gains[i]
        spent += prices[i]
    if _rounded(gains, prices, order, held - most_memory, most_cost - total):
        return YES
    return _every(cost, memory, count, n, most_cost, most_memory)


@numba.njit(cache=True, nogil=True)
def _hulls(cost, memory, count, n, first, most):
    """Steps along every item's lower hull from its cheapest mode: bytes saved, and what they cost."""
    gains, prices = np.empty(most), np.empty(most)
    found = 0
    for v in range(n):
        here = first[v]
        while True:
            following, slope = -1, np.inf
            for k in range(count[v]):
                saved = memory[v, here] - memory[v, k]
                if saved > 0 and (cost[v, k] - cost[v, here]) / saved < slope:
                    following, slope = k, (cost[v, k] - cost[v, here]) / saved
            if following < 0:
                break
            gains[found] = memory[v, here] - memory[v, following]
            prices[found] = cost[v, following] - cost[v, here]
            found += 1
            here = following
    return gains[:found], prices[:found]


@numba.njit(cache=True, nogil=True)
def _rounded(gains, prices, order, missing, left):
    """Do whole steps, in this order, save enough?"""
    for i in order:
        missing -= gains[i]
        left -= prices[i]
        if left < 0:
            return False
        if missing <= 0:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def ordered(keys, n):
    """Positions of the first n keys, the smaller key first, equal ones as they are; compiles sooner than numpy's."""
    order, other = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        order[i] = i
    width = 1
    while width < n:
        for begin in range(0, n, 2 * width):
            a, b = begin, min(begin + width, n)
            middle, end = b, min(begin + 2 * width, n)
            for i in range(begin, end):
                if b >= end or (a < middle and keys[order[a]] <= keys[order[b]]):
                    other[i] = order[a]
                    a += 1
                else:
                    other[i] = order[b]
                    b += 1
        order, other = other, order
        width *= 2
    return order


@numba.njit(cache=True, nogil=True)
def _every(cost, memory, count, n, most_cost, most_memory):
    """The answer from all combinations that none dominates."""
    cheap, light = np.zeros(n + 1), np.zeros(n + 1)  # of the items from here on, at least
    for v in range(n - 1, -1, -1):
        low, small = cost[v, 0], memory[v, 0]
        for k in range(1, count[v]):
            low, small = min(low, cost[v, k]), min(small, memory[v, k])
        cheap[v] = cheap[v + 1] + low
        light[v] = light[v + 1] + small
    costs, sizes = np.zeros(1), np.zeros(1)
    states = 1
    for v in range(n):
        new_costs, new_sizes = np.empty(states * count[v]), np.empty(states * count[v])
        found = 0
        for k in range(count[v]):
            for i in range(states):
                c, m = costs[i] + cost[v, k], sizes[i] + memory[v, k]
                if c + cheap[v + 1] <= most_cost and m + light[v + 1] <= most_memory:
                    new_costs[found], new_sizes[found] = c, m
                    found += 1
        costs, sizes = np.empty(found), np.empty(found)
        states, smallest = 0, np.inf
        for i in ordered(new_costs, found):
            if new_sizes[i] < smallest:
                costs[states], sizes[states] = new_costs[i], new_sizes[i]
                smallest = new_sizes[i]
                states += 1
        if states == 0:
            return NO
        if states > _MOST_STATES:
            return UNKNOWN
    return YES
