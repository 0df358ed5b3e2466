"""Runs: ranks, their launch, watching, checkpoints."""

from .allocator import keep_freed_memory
from .launch import execute, prepare
from .rank import blueprint_of
from .result import RunResult
from .stopping import Interrupted, Terminated

__all__ = [
    "Interrupted",
    "RunResult",
    "Terminated",
    "blueprint_of",
    "execute",
    "keep_freed_memory",
    "prepare",
]
