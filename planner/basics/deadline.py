"""An end for work that somebody waits for: what takes long asks from time to time whether there is time left.

The deadline is that of the thread's current context, so that nothing in between has to hand it on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .interrupts import end_asked

_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)


class OutOfTime(Exception):
    """The deadline came before the work was done: no PlanError, for what is left unfinished says nothing of a plan."""


@contextmanager
def until(deadline: float) -> Iterator[None]:
    """Work in this context ends at `deadline` (of time.monotonic()), or at one around it that is earlier."""
    token = _UNTIL.set(min(deadline, _UNTIL.get()))
    try:
        yield
    finally:
        _UNTIL.reset(token)


def time_left() -> float:
    """Seconds to the deadline of this context, 0 after Ctrl-C; infinite where there is none."""
    deadline = _UNTIL.get()
    if deadline == math.inf:
        return math.inf
    return 0.0 if end_asked() else deadline - time.monotonic()


def check_time() -> None:
    """Raises OutOfTime where the deadline of this context has passed."""
    if time_left() <= 0:
        raise OutOfTime("no time is left")
