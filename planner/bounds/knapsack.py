"""How much work fits some memory at most, and how fast memory can fill or empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import gcd, inf

import numpy as np

Option = tuple[int, float]
"""(bytes held, seconds of work) of one micro-batch of one stage."""


def most_work(classes: Iterable[tuple[int, Sequence[Option]]], room: int) -> float:
    """No choice of at most one option for each of `count` equal things in (count, options) has more work in `room`.

    Exact for one class of at most two options. Otherwise Lagrange's bound, the least over prices p of a byte of
    p * room + sum of count * max(0, work - p * bytes), with the room rounded down to what sums can reach.
    """
    merged: dict[tuple[Option, ...], int] = defaultdict(int)
    for count, options in classes:
        useful = tuple(sorted({(b, v) for b, v in options if v > 0}))
        if useful and count > 0:
            merged[useful] += count
    if not merged:
        return 0.0
    room = max(room, 0)
    if len(merged) == 1:
        ((options, count),) = merged.items()
        if len(options) <= 2:
            return _one_class(count, options, room)
    unit = gcd(*(b for options in merged for b, _ in options))
    return _priced(merged, room // unit * unit if unit else room)


def _one_class(count: int, options: Sequence[Option], room: int) -> float:
    (small, less), (large, more) = options[0], options[-1]
    if len(options) == 1 or small == large or less >= more:
        cheapest = max(options, key=lambda option: (option[1], -option[0])) if small == large else options[0]
        size, work = cheapest
        return work * (min(count, room // size) if size else count)
    k = np.arange(min(count, room // large) + 1)
    others = (room - k * large) // small if small else np.full(len(k), count)
    return float((k * more + np.minimum(count - k, others) * less).max())


def _priced(merged: dict[tuple[Option, ...], int], room: int) -> float:
    prices = {0.0}
    for options in merged:
        for k, (size, work) in enumerate(options):
            if size:
                prices.add(work / size)
            prices |= {(work - v) / (size - b) for b, v in options[:k] if size > b and work > v}
    best = inf
    for price in prices:
        total = price * room
        for options, count in merged.items():
            total += count * max(0.0, max(v - price * b for b, v in options))
        best = min(best, total)
    return best


def ramp(steps: Iterable[tuple[int, float]], limit: int) -> tuple[float, float]:
    """(byte-seconds, seconds) at least that are lost until memory reaches `limit`, for ops of (bytes, seconds).

    Every op takes its bytes at its start and runs alone. Two staircases lie above the memory of every sequence:
    the largest bytes in the shortest time, and the largest bytes at once, then the best ratio as a line. The
    larger loss is returned.
    """
    useful = [(b, t) for b, t in steps if b > 0]
    if not useful or limit <= 0:
        return 0.0, 0.0
    if any(t <= 0 for _, t in useful):
        return 0.0, 0.0
    most, shortest = max(b for b, _ in useful), min(t for _, t in useful)
    levels = max(0, -(-limit // most) - 1)
    stairs = shortest * (levels * limit - most * levels * (levels + 1) / 2)
    rate, above = max(b / t for b, t in useful), max(0, limit - most)
    line = above * above / (2 * rate)
    return (stairs, shortest * levels) if stairs >= line else (line, above / rate)
