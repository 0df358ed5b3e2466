"""Processes that stay for the next test: starting one, with torch, takes longer than most of the tests' runs."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

_KEPT: list[tuple[Connection, SpawnProcess]] = []
"""Runs on fewer ranks take the first ones. A process ends with its pipe, as with this process."""


class Ranks:
    """So many processes. One that fails takes the others with it."""

    def __init__(self, count: int) -> None:
        while len(_KEPT) < count:
            _KEPT.append(_started(len(_KEPT)))
        self._pipes = [pipe for pipe, _ in _KEPT[:count]]
        self._processes = [process for _, process in _KEPT[:count]]

    def run(self, work: Callable[..., None], *arguments: Any, timeout_s: float | None = None) -> None:
        """Calls work(rank, *arguments) in every process.

        Raises AssertionError with the first traceback, TimeoutError where none has ended for so many seconds.
        """
        try:
            for pipe in self._pipes:
                pipe.send((work, arguments))
            waiting = list(self._pipes)
            while waiting:
                ready = wait(waiting, timeout_s)
                if not ready:
                    raise TimeoutError(f"nothing heard of {len(waiting)} ranks for {timeout_s:g} s")
                for pipe in ready:
                    assert isinstance(pipe, Connection)
                    failure = pipe.recv()
                    assert failure is None, failure
                    waiting.remove(pipe)
        except BaseException:
            _KEPT.clear()
            for process in self._processes:
                process.kill()
                process.join()
            raise


def kept(count: int) -> Ranks:
    """The processes for runs on so many ranks."""
    return Ranks(count)


def _started(rank: int) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(rank, theirs), daemon=True, name=f"kept rank {rank}")
    process.start()
    theirs.close()  # so that its death is the end of the pipe
    return mine, process


def _serve(rank: int, pipe: Connection) -> None:
    while True:
        try:
            work, arguments = pipe.recv()
        except EOFError:
            return
        try:
            work(rank, *arguments)
            pipe.send(None)
        except BaseException:
            pipe.send(f"rank {rank}: {traceback.format_exc()}")
