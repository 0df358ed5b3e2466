"""The cores that a process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """How many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def at_once(threads: int) -> int:
    """How many processes of so many threads they run at a time, at least 1."""
    return max(1, cores() // threads)
