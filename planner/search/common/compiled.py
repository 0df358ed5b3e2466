"""Kernels of one part of the search: whether they are compiled, and who does it: it takes seconds the first time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from ...basics import Ahead, cache_folder, on_disk
from .clock import Clock
from .effort import SECONDS


class Kernels:
    """Jitted functions of a part whose module, by name, has a function `warm` that compiles them all."""

    def __init__(self, module: str, functions: Sequence[object]) -> None:
        self.module, self.functions = module, functions
        self._begin = threading.Lock()
        self._ahead: Ahead | None = None

    def compiled(self) -> bool:
        """Whether they are in memory or on disk."""
        return all(map(on_disk, self.functions))

    def ready(self, clock: Clock, seconds: float) -> bool:
        """Whether they can be used for so many `seconds` of a search.

        Where they are not on disk, a process of its own begins to compile them, which this call, if it lasts, and
        later ones find there. Where that cannot be, or with a deterministic limit, whose answer must not depend on it,
        they are compiled on first use if there is time: in these seconds, or in half of what is left of the whole call.
        """
        if self.compiled():
            return True
        if not clock.fixed and self._compiling():
            return False
        return seconds > SECONDS.compilation or clock.call_remaining_s > 2 * SECONDS.compilation

    def _compiling(self) -> bool:
        folder = cache_folder(self.functions[0])
        with self._begin:
            if self._ahead is None and folder is not None:
                with suppress(OSError, AttributeError, NotImplementedError):
                    self._ahead = Ahead(self.module, "warm", folder, SECONDS.ahead)
            return self._ahead is not None and self._ahead.running
