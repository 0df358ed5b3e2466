"""Writing files so that a failure leaves what was there, and what is no file stays what it is."""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

_LINKS = 40  # one after another, as in Linux
_DESCRIPTOR = re.compile(r"/(?:proc/(?:self|thread-self|[0-9]+)|dev)/fd/([0-9]+)")


def write_text(path: str | Path, text: str) -> None:
    """As `write_bytes`, in UTF-8; what is no letter becomes "?"."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a file through a temporary one beside it; an existing file is replaced only by a complete one.

    Through a link its target is written. An existing file keeps its mode, and its owner where that can be; a new one
    has what the umask leaves. Into a device, a pipe or a descriptor (/dev/stdout) it is written as it is.
    Raises OSError; then nothing has changed but what was written into a device or pipe.
    """
    found = where(path)
    if isinstance(found, int):
        _write_descriptor(found, content)
    elif _is_file(found):
        _replace(found, content)
    else:
        with found.open("wb", buffering=0) as stream:
            _write_all(stream.fileno(), content)


def where(path: str | Path) -> Path | int:
    """What is written to for this path: the file behind all links, or the number of a descriptor of this process.

    Raises OSError for links in a circle.
    """
    here = Path(path)
    for _ in range(_LINKS):
        match = _DESCRIPTOR.fullmatch(str(here))
        if match and _own(here):
            return int(match[1])
        if not here.is_symlink() or here.is_relative_to("/proc"):
            return here
        here = here.parent / here.readlink()
    raise OSError(f"too many links: {path}")


def _own(path: Path) -> bool:
    """Whether a descriptor's path is of this process."""
    return path.parts[2] in ("self", "thread-self", "fd", str(os.getpid()))


def refusal(path: str | Path) -> str | None:
    """Why this path cannot be written; None where nothing speaks against it. Opens nothing."""
    try:
        found = where(path)
        if isinstance(found, int):
            return None
        if found.is_dir():
            return f"{found} is a directory"
        if not _is_file(found):
            return None if os.access(found, os.W_OK) else f"{found} is not writable"
        if not found.parent.is_dir():
            return f"there is no directory {found.parent}"
        return None if os.access(found.parent, os.W_OK) else f"directory {found.parent} is not writable"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def _is_file(path: Path) -> bool:
    """Whether this is a regular file, or nothing yet."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


_OTHERWISE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""How a file is opened beside what is done with it: as far as the system knows it."""


def _replace(target: Path, content: bytes) -> None:
    before = target.stat() if target.exists() else None
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(8)}.part"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OTHERWISE, mode & 0o666)
    try:
        try:
            _write_all(handle, content)
            if before is not None and hasattr(os, "fchmod"):
                with suppress(PermissionError):
                    os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, mode)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_descriptor(number: int, content: bytes) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _write_all(number, content)


def _write_all(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]
