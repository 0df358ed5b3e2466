"""A file that a process shares with those it spawns, and of which nothing is left, whoever dies."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from pathlib import Path
from typing import Any


class SharedFile:
    """So many bytes of zeros; picklable while processes are spawned.

    On Linux it has no name: it is gone with the last process that has it. Elsewhere it lies among the temporary files
    until `close` in the process that made it.

    Raises OSError: there is no room for it.
    """

    def __init__(self, size: int = 0) -> None:
        self._size = size
        self._name = ""
        if hasattr(os, "memfd_create"):
            self._handle = os.memfd_create("contraflow")
        else:
            self._handle, self._name = tempfile.mkstemp(prefix="contraflow-")
        if size:
            os.truncate(self._handle, size)
            os.pwrite(self._handle, bytes(size), 0)  # that there is no room is found here, not when it is mapped

    @property
    def path(self) -> str:
        """Under which this process can open it."""
        return self._name or f"/proc/self/fd/{self._handle}"

    def memory(self) -> mmap.mmap:
        """Its bytes, shared by all that ask for them."""
        return mmap.mmap(self._handle, self._size)

    def close(self) -> None:
        """This process needs it no more; what it has mapped stays."""
        os.close(self._handle)
        if self._name:
            Path(self._name).unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self._size, "name": self._name, "handle": reduction.DupFd(self._handle)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._size, self._name, self._handle = state["size"], state["name"], state["handle"].detach()
