"""Whether a function that numba compiles has been compiled before: on disk it is loaded, else it takes seconds."""

from __future__ import annotations

from pathlib import Path


def cache_folder(function: object) -> Path | None:
    """Where numba keeps what it compiled of a function; None: nowhere."""
    path = getattr(getattr(function, "stats", None), "cache_path", None)
    return Path(str(path)) if path else None


def on_disk(function: object) -> bool:
    """Whether a jitted function is in memory, or on disk from no earlier than its source."""
    if getattr(function, "signatures", None):
        return True
    folder, plain = cache_folder(function), getattr(function, "py_func", None)
    if folder is None or plain is None:
        return False
    try:
        since = Path(plain.__code__.co_filename).stat().st_mtime
        return any(file.stat().st_mtime >= since for file in folder.glob(f"*.{plain.__name__}-*.nbc"))
    except OSError:
        return False
