"""Runs: ranks, their launch, watching, checkpoints."""

from .allocator import keep_freed_memory
from .launch import RunResult, execute, prepare
from .proc import die_with_parent, process_state
from .pulse import Stillness
from .rank import blueprint_of
from .stopping import Interrupted, Terminated

__all__ = [
    "Interrupted",
    "RunResult",
    "Stillness",
    "Terminated",
    "blueprint_of",
    "die_with_parent",
    "execute",
    "keep_freed_memory",
    "prepare",
    "process_state",
]
