"""Whether the kernels can be used in the time that is left: their first compilation takes seconds."""

from __future__ import annotations

from pathlib import Path

from . import anneal, greedy, kernels

COMPILATION_S = 18.0
"""Time that a first compilation takes at most on a slow, busy computer."""


def ready(seconds: float) -> bool:
    """Whether the compiled kernels are in memory or on disk, or there is time to compile them."""
    return seconds > COMPILATION_S or all(map(_compiled, (anneal.anneal, greedy.hunt, kernels.run)))


def _compiled(function: object) -> bool:
    if getattr(function, "signatures", None):
        return True
    stats = getattr(function, "stats", None)
    folder, name = getattr(stats, "cache_path", None), getattr(function, "__name__", "")
    return bool(folder) and any(Path(str(folder)).glob(f"*.{name}-*.nbc"))
