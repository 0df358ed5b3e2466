"""Fewer searches for circular garbage while a search makes millions of ops, none of which is any.

Op lists of 64 stages and 512 micro-batches are 200,000 tuples. Python's default looks through them after every 700th,
and through everything there is whenever a quarter is new: half of the time that such a plan takes.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 50_000
"""New objects between two looks at the youngest."""


class _Seldom:
    """How many want it, and what was set before the first did."""

    lock = threading.Lock()
    users = 0
    before = gc.get_threshold()


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """While it lasts, Python looks for circular garbage after `OBJECTS` new objects; never more often than before."""
    with _Seldom.lock:
        _Seldom.users += 1
        if _Seldom.users == 1:
            _Seldom.before = youngest, *older = gc.get_threshold()
            if youngest:
                gc.set_threshold(max(youngest, OBJECTS), *older)
    try:
        yield
    finally:
        with _Seldom.lock:
            _Seldom.users -= 1
            if not _Seldom.users:
                gc.set_threshold(*_Seldom.before)
