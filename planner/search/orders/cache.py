"""Keeps the compiled kernels on disk true to their source.

numba looks at a function's own file only: a change to `kernels.py` would leave what calls it as it was.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from . import anneal, greedy, kernels


def refresh() -> None:
    """Removes compiled callers of kernels that have changed since; does nothing where no cache can be written."""
    digest = hashlib.sha256(Path(kernels.__file__).read_bytes()).hexdigest()[:16]
    for module, function in ((anneal, anneal.anneal), (greedy, greedy.hunt)):
        folder = Path(str(function.stats.cache_path))
        stem = Path(str(module.__file__)).stem
        marker = folder / f"{stem}.{digest}.kernels"
        try:
            if not folder.is_dir() or marker.exists():
                continue
            for old in (
                *folder.glob(f"{stem}.*.nbi"),
                *folder.glob(f"{stem}.*.nbc"),
                *folder.glob(f"{stem}.*.kernels"),
            ):
                old.unlink(missing_ok=True)
            marker.touch()
        except OSError:
            continue
