"""How much work fits some memory at most, and how fast memory can fill or empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Option = tuple[int, float]
"""(bytes held, seconds of work) of one micro-batch of one stage."""


class MostWork:
    """How much work some bytes can hold: at most one option for each of `count` equal things in (count, options).

    Exact for one class of at most two options. Otherwise Lagrange's bound, the least over prices p of a byte of
    p * room + sum of count * max(0, work - p * bytes), with the room rounded down to what sums can reach.
    """

    def __init__(self, classes: Iterable[tuple[int, Sequence[Option]]]) -> None:
        merged: dict[tuple[Option, ...], int] = defaultdict(int)
        for count, options in classes:
            useful = tuple(sorted({(b, v) for b, v in options if v > 0}))
            if useful and count > 0:
                merged[useful] += count
        self._merged = merged
        self._unit = gcd(*(b for options in merged for b, _ in options))

    def within(self, room: int) -> float:
        """No choice that takes at most `room` bytes has more work, in seconds."""
        if not self._merged:
            return 0.0
        room = max(room, 0)
        if len(self._merged) == 1:
            ((options, count),) = self._merged.items()
            if len(options) <= 2:
                return _one_class(count, options, room)
        prices, others = self._lines
        return float((prices * (room // self._unit * self._unit if self._unit else room) + others).min())

    @cached_property
    def _lines(self) -> tuple[Floats, Floats]:
        """Prices of a byte at which the least can be, ascending, and the sum of what is not the room's at each."""
        prices = {0.0}
        for options in self._merged:
            for k, (size, work) in enumerate(options):
                if size:
                    prices.add(work / size)
                prices |= {(work - v) / (size - b) for b, v in options[:k] if size > b and work > v}
        price = np.array(sorted(prices))
        total = np.zeros(len(price))
        for options, count in self._merged.items():
            size, work = np.array(options).T
            total += count * np.maximum(0.0, (work[:, None] - price * size[:, None]).max(axis=0))
        return price, total


def _one_class(count: int, options: Sequence[Option], room: int) -> float:
    (small, less), (large, more) = options[0], options[-1]
    if len(options) == 1 or small == large or less >= more:
        cheapest = max(options, key=lambda option: (option[1], -option[0])) if small == large else options[0]
        size, work = cheapest
        return work * (min(count, room // size) if size else count)
    k = np.arange(min(count, room // large) + 1)
    others = (room - k * large) // small if small else np.full(len(k), count)
    return float((k * more + np.minimum(count - k, others) * less).max())


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
