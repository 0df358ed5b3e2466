"""Copies of a piece of work that run beside it in other processes, so that it is measured under the load it will meet.

Processes that train at the same time share caches and the memory bus (and, on some computers, the clock's headroom), so
that each is slower than it would be alone.
"""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch.multiprocessing as multiprocessing

from ..basics import ExecutionError, RunError
from ..run import keep_freed_memory
from ..watch import Doing, Slot, Stillness, die_with_parent, process_state

PATIENCE_S = 300.0
"""How long one waits for the others at a pace before giving up."""
STOPPED_S = 10.0
"""How long one that was to come may be stopped."""
_POLL_S = 0.5

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
        content = pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        what = "a load above 1, or a team, sends the model to other processes"
        raise RunError(f"{what}, which cannot be done: {error}") from None
    context = multiprocessing.get_context("spawn")
    others = []
    try:
        for _ in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_companion, args=(content, theirs), daemon=True)
            others.append(_Companion(process, mine))
            process.start()
            theirs.close()  # so that its death is the end of the pipe
        yield lambda: _meet(others)
    finally:
        for other in others:
            other.pipe.close()
            if other.process.pid is not None:
                other.process.kill()  # it keeps nothing, and one that is stopped follows no request
                other.process.join()


class _Companion(NamedTuple):
    process: BaseProcess
    pipe: Connection


def _meet(others: Sequence[_Companion]) -> None:
    """Returns when all are here. Raises ExecutionError: one has failed or ended, with what it says, or is late."""
    coming = {other.pipe: other.process for other in others}
    stillness, deadline = Stillness(), time.monotonic() + PATIENCE_S
    while coming:
        here = wait(list(coming), _POLL_S)
        if any(seconds > STOPPED_S for seconds in _still(stillness, list(coming.values())).values()):
            raise ExecutionError("a process that was to run beside this one has been stopped")
        if not here and time.monotonic() > deadline:
            raise ExecutionError(f"a process that was to run beside this one is not ready after {PATIENCE_S:g} s")
        for pipe in here:
            assert isinstance(pipe, Connection)
            process = coming.pop(pipe)
            try:
                failure = pipe.recv()
            except (EOFError, OSError):
                process.join()
                failure = f"it ended with exit code {process.exitcode}"
            if failure is not None:
                raise ExecutionError(f"a process that was to run beside this one has failed: {failure}")
    for other in others:
        with suppress(OSError):  # one that is gone is found at the next meeting
            other.pipe.send(None)


def _still(stillness: Stillness, processes: Sequence[BaseProcess]) -> dict[int, float]:
    """Seconds for which processes have been stopped, by their numbers."""
    states = {number: process_state(process.pid or 0) for number, process in enumerate(processes)}
    return stillness.seconds([Slot(Doing.STARTING)] * len(processes), [0] * len(processes), states)


def _companion(content: bytes, pipe: Connection) -> None:
    """Tells what went wrong; ends quietly when the one that is measured has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    die_with_parent()

    def pace() -> None:
        pipe.send(None)
        pipe.recv()

    try:
        work = pickle.loads(content)  # here, so that a module that is not found is told
        keep_freed_memory()
        work(pace)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        with suppress(OSError):
            pipe.send(f"{type(error).__name__}: {reason}")
