"""What the operating system says about processes: whether one is stopped, whose child it is, and when it dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_STOPPED = frozenset("Tt")
_OVER = frozenset("ZX")


class ProcessState(NamedTuple):
    """One process: its state as a letter of proc(5), "" where the system does not tell, and its parent."""

    letter: str = ""
    parent: int = 0

    @property
    def known(self) -> bool:
        """Whether the system tells."""
        return self.letter != ""

    @property
    def stopped(self) -> bool:
        """By a signal, or by a debugger."""
        return self.letter in _STOPPED

    @property
    def over(self) -> bool:
        """Ended, whether or not its parent has noticed."""
        return self.letter in _OVER


def process_state(pid: int) -> ProcessState:
    """Of a process that may have gone: then it is over, where the system tells at all."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ProcessState("X" if Path("/proc/self").exists() else "")
    except OSError:
        return ProcessState()
    letter, parent = content.rpartition(b")")[2].split()[:2]  # the name before may contain anything
    return ProcessState(letter.decode(), int(parent))


def children_of(pid: int) -> list[int]:
    """The processes whose parent it is; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()]
    except OSError:
        pass
    try:
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    except OSError:
        return []
    return [number for number in numbers if process_state(number).parent == pid]


def variable_of(pid: int, name: str) -> str | None:
    """A variable of the environment that a process was started with; None: it has none, or the system hides it."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    start = name.encode() + b"="
    return next((os.fsdecode(entry[len(start) :]) for entry in entries if entry.startswith(start)), None)


def die_with_parent() -> None:
    """Ends this process, which multiprocessing has started, with its parent, whatever either of them does then.

    On Linux the kernel kills it, so that it dies even while it is stopped; elsewhere a thread of it waits.
    """
    parent = parent_process()
    assert parent is not None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent.pid:  # it died before the kernel was told
            os._exit(1)
    threading.Thread(target=_follow, args=(parent,), daemon=True, name="parent").start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
