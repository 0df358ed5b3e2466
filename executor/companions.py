"""Copies of a piece of work that run beside it in other processes, so that it is measured under the load it will meet.

Processes that train at the same time share caches and the memory bus (and, on some computers, the clock's headroom), so
that each is slower than it would be alone.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.multiprocessing as multiprocessing

from .allocator import keep_freed_memory
from .errors import ExecutionError, RunError
from .process_state import die_with_parent

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

PATIENCE_S = 300.0
"""How long one waits for the others at a pace before giving up."""

Pace = Callable[[], None]
"""Called before every repetition: returns when everybody has called it."""


def alone() -> None:
    """The pace of work without companions."""


@contextmanager
def companions(count: int, work: Callable[[Pace], object]) -> Iterator[Pace]:
    """`count` processes that do `work(pace)`, as the body does with the pace it is given, call by call.

    The work must call its pace equally often everywhere. Spawns processes: a script needs the
    `if __name__ == "__main__"` guard.

    Raises:
        RunError: the work cannot be sent to other processes.
        ExecutionError: at the pace, when a companion has failed.
    """
    if count == 0:
        yield alone
        return
    try:
        pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RunError(f"a load above 1 sends the model to other processes, which cannot be done: {error}") from None
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count + 1)
    processes = [context.Process(target=_companion, args=(work, barrier), daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        yield lambda: _wait(barrier)
    finally:
        barrier.abort()
        for process in processes:
            process.terminate()
            process.join()


def _wait(barrier: Barrier) -> None:
    try:
        barrier.wait(PATIENCE_S)
    except threading.BrokenBarrierError:
        raise ExecutionError("a process that was to run beside this one has failed") from None


def _companion(work: Callable[[Pace], object], barrier: Barrier) -> None:
    """Ends quietly: the one that is measured has ended, or it meets the same error and tells of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    die_with_parent()
    keep_freed_memory()
    try:
        work(lambda: _wait(barrier))
    except Exception:
        barrier.abort()
