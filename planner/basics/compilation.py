"""Whether a function that numba compiles has been compiled before: on disk it is loaded, else it takes seconds."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

try:
    import fcntl
except ImportError:  # no POSIX: kernels are compiled where they are first used
    fcntl = None  # type: ignore[assignment]


def cache_folder(function: object) -> Path | None:
    """Where numba keeps what it compiled of a function; None: nowhere."""
    path = getattr(getattr(function, "stats", None), "cache_path", None)
    return Path(str(path)) if path else None


def on_disk(function: object) -> bool:
    """Whether a jitted function is in memory, or on disk as its source is now.

    numba's own index says so where it can be read: it knows sources by what they say. Else files from no earlier than
    the source do.
    """
    if getattr(function, "signatures", None):
        return True
    index = getattr(getattr(getattr(function, "_cache", None), "_cache_file", None), "_load_index", None)
    if index is not None:
        try:
            return bool(index())
        except (OSError, ValueError, EOFError):
            return False
    folder, plain = cache_folder(function), getattr(function, "py_func", None)
    if folder is None or plain is None:
        return False
    try:
        since = Path(plain.__code__.co_filename).stat().st_mtime
        return any(file.stat().st_mtime >= since for file in folder.glob(f"*.{plain.__name__}-*.nbc"))
    except OSError:
        return False


def drop_stale(callers: Iterable[object], sources: Iterable[object]) -> None:
    """Removes what is on disk of jitted functions that call others, of these modules, which have changed since.

    numba looks at a function's own file only. Does nothing where no cache can be written.
    """
    texts = [Path(str(getattr(module, "__file__", ""))).read_bytes() for module in sources]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()[:16]
    for function in callers:
        folder, plain = cache_folder(function), getattr(function, "py_func", None)
        if folder is None or plain is None:
            continue
        stem = Path(plain.__code__.co_filename).stem
        marker = folder / f"{stem}.{digest}.kernels"
        try:
            if not folder.is_dir() or marker.exists():
                continue
            for pattern in (f"{stem}.*.nbi", f"{stem}.*.nbc", f"{stem}.*.kernels"):
                for old in folder.glob(pattern):
                    old.unlink(missing_ok=True)
            marker.touch()
        except OSError:
            continue


class Aside:
    """A function of a module, called in a process of its own for what it leaves on disk; ended with the `with`."""

    def __init__(self, module: str, name: str) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import {name}; {name}()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for the caller, who ends it
        )

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.running:
            self._process.kill()
        self._process.wait()

    @property
    def running(self) -> bool:
        """Whether the function has not returned yet."""
        return self._process.poll() is None


class Ahead:
    """A function of a module, called in a process of its own that may outlive this one: for what it leaves on disk.

    It runs at a low priority (nice 10), alone among all such processes of `folder`, hears no Ctrl-C, and ends
    itself after `seconds`. Nobody has to wait for it. Raises NotImplementedError where the system is no POSIX.
    """

    def __init__(self, module: str, name: str, folder: Path, seconds: int) -> None:
        if fcntl is None:
            raise NotImplementedError
        paths = os.pathsep.join(path for path in sys.path if path)
        code = f"from {__name__} import _alone; _alone({module!r}, {name!r}, {str(folder)!r}, {seconds})"
        nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
        self._lock = folder / "compiling.lock"
        self._process: int | None = None
        if not _held(self._lock):
            self._process = os.posix_spawn(
                sys.executable,
                [sys.executable, "-c", code],
                os.environ | {"PYTHONPATH": paths},
                file_actions=nowhere,
                setpgroup=0,  # Ctrl-C is for the caller
            )

    @property
    def running(self) -> bool:
        """Whether the function has not returned yet, here or in the process that was there first."""
        if self._process is not None:
            try:
                ended, _ = os.waitpid(self._process, os.WNOHANG)
            except ChildProcessError:  # a forked child of the caller asks
                ended = self._process
            self._process = None if ended else self._process
        return self._process is not None or _held(self._lock)


def _held(lock: Path) -> bool:
    """Whether some process is at work."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _alone(module: str, name: str, folder: str, seconds: int) -> None:
    """Calls a function unless somebody else does so for this folder."""
    os.nice(10)
    signal.alarm(seconds)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / "compiling.lock").open("w") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        getattr(import_module(module), name)()
