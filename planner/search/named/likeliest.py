"""Which of many things to simulate next: the one that a guess says takes least, and guesses are corrected as one goes.

A guess that takes no work orders them all; what comes first is guessed again with more work, as in a search by lower
bounds. What something took beside its guess says by how much its like are misjudged.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from ..common import HOPE


class Guessed(Protocol):
    """Something to simulate: seconds it may take by a first and by a better guess, which is no less."""

    @property
    def hoped_s(self) -> float: ...

    @property
    def likely_s(self) -> float: ...


One = TypeVar("One", bound=Guessed)


class Likeliest(Generic[One]):
    """What is left to simulate.

    like: what tells things apart that are misjudged in different ways. hope: what the first of its like may come to,
    times its guess.
    """

    def __init__(self, among: Iterable[One], like: Callable[[One], Hashable], hope: float = 1.0) -> None:
        self.like, self.hope = like, hope
        self.ratio: dict[Hashable, float] = {}
        self.in_vain: list[One] = []
        self.heap = [(hope * one.hoped_s, number, False, one) for number, one in enumerate(among)]
        heapq.heapify(self.heap)

    def next_s(self) -> float:
        """Seconds that the next one is likely to take; infinite where nothing is left."""
        while self.heap:
            known_s, number, looked, one = self.heap[0]
            if looked:
                return known_s
            heapq.heapreplace(self.heap, (self._guess_s(one.likely_s, one), number, True, one))
        return math.inf

    def pop(self) -> One:
        """The next one. Raises IndexError where nothing is left."""
        self.next_s()
        return heapq.heappop(self.heap)[-1]

    def note(self, one: One, step_s: float) -> None:
        """It took so many seconds; infinite where it came to nothing.

        The least ratio of its like counts, and may be somewhat too large for others.
        """
        if math.isinf(step_s):
            self.in_vain.append(one)
            return
        key = self.like(one)
        ratio = step_s / one.likely_s if one.likely_s > 0 else 1.0  # nothing takes time
        self.ratio[key] = min(ratio, self.ratio.get(key, math.inf))
        self.heap = [(self._again_s(looked, x), number, looked, x) for _, number, looked, x in self.heap]
        heapq.heapify(self.heap)

    def _again_s(self, looked: bool, one: One) -> float:
        return self._guess_s(one.likely_s if looked else one.hoped_s, one)

    def _guess_s(self, seconds: float, one: One) -> float:
        key = self.like(one)
        return seconds * (self.ratio[key] / HOPE.misjudged if key in self.ratio else self.hope)
