"""Whether the compiled kernels of the order search are there."""

from __future__ import annotations

from pathlib import Path

from ..basics import cache_folder


def kernel_cache() -> tuple[Path | None, bool]:
    """The folder in which they are cached, where there is one, and whether they are in memory or on disk."""
    from .orders import compiled, run

    return cache_folder(run), compiled()
