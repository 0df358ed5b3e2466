"""The compiled kernels of all searches: whether they are there, and how to have them before anything is timed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..basics import cache_folder


def kernel_cache() -> tuple[Path | None, bool]:
    """The folder in which those of the order search are cached, where there is one, and whether they are in memory or
    on disk.
    """
    from .orders import compiled, run

    return cache_folder(run), compiled()


@cache
def warm() -> None:
    """Compiles the kernels of every search, or loads them from disk, once; minutes the first time.

    `plan` compiles beside the search what it needs and does not find; a benchmark of short searches calls this before.
    """
    from . import flow, modulo, orders, periodic, separate

    for room in (orders, periodic, flow, separate, modulo):
        room.warm()
