"""The C library's allocator, told to keep memory that a step frees for the next one."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # malloc.h
_MOST = 2**31 - 1
_PAD_BYTES = 64 << 20


def keep_freed_memory(arenas: int = 1) -> None:
    """Lets this process keep what it frees. glibc only; does nothing elsewhere.

    By default glibc returns large blocks to the system as they are freed, and every page of the next one is a page
    fault: several thousand a step where stashes come and go. A rank needs its peak again in the next step.

    All its threads share one arena: blocks that a thread which copies stashes allocates and another one frees otherwise
    leave an arena of each a little larger every step (benchmarks/reliability/steps.py). `arenas`: 0 for as many as the
    C library makes of itself (benchmarks/overheads.py compares).
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    for parameter, value in (
        (_MMAP_THRESHOLD, 1 << 30),
        (_TRIM_THRESHOLD, _MOST),
        (_TOP_PAD, _PAD_BYTES),
        (_ARENA_MAX, arenas),
    ):
        library.mallopt(parameter, value)
