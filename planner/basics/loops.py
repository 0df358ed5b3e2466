"""Loops written once: run as plain Python for a little work, and compiled by numba for much."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .compilation import on_disk
from .deadline import time_left

COMPILATION_S, LOADING_S, LOADING_MORE_S = 10.0, 3.0, 1.0
"""Time left in which loops can be compiled, or loaded from disk, and these where the compiler is in memory, on a slow
and busy computer too."""
LIGHTER = 8
"""Times as little work is worth loading them where the compiler is in memory: 0.2 s, 1 to 2 with it."""


class Loops:
    """Functions as plain Python or compiled, whichever answers sooner in the time that is left.

    Attributes:
        small: pieces of work, such as jobs, that are no reason to load the compiler, however often there are so few.
        worth: pieces done by plain Python until what is compiled is worth loading, with the compiler.
        plain: pieces that plain Python has done so far, where there were more than `small` or the compiler is loaded.
    """

    def __init__(self, *sources: Callable[..., Any], small: int, worth: int) -> None:
        self.sources, self.small, self.worth = sources, small, worth
        self.plain = 0

    def compiled(self, pieces: int) -> bool:
        """Whether the next work, of so many pieces, is for the compiled functions; counts it where it is not."""
        if self.in_memory:
            return True
        if pieces <= self.small and "numba" not in sys.modules:
            return False
        there = "numba" in sys.modules
        done = self.plain + pieces
        if done > (self.worth / LIGHTER if there else self.worth):
            left_s = time_left()
            if left_s > COMPILATION_S and done > self.worth:
                return True
            if left_s > (LOADING_MORE_S if there else LOADING_S) and all(map(on_disk, self.functions)):
                return True
        self.plain += pieces
        return False

    @property
    def in_memory(self) -> bool:
        """Whether they have been compiled or loaded."""
        return "functions" in vars(self) and all(function.signatures for function in self.functions)

    @functools.cached_property
    def functions(self) -> tuple[Any, ...]:
        """As numba runs them."""
        import numba

        return tuple(numba.njit(cache=True)(source) for source in self.sources)
