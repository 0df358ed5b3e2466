"""Processes that stay for the next test: starting one, with torch, takes longer than most of the tests' runs."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any


class Ranks:
    """So many processes, which end with this one. One that fails takes the others with it."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True, name=f"kept rank {rank}")
            process.start()
            theirs.close()  # so that its death is the end of the pipe
            self._pipes.append(mine)
            self._processes.append(process)

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
            kept.cache_clear()
            for process in self._processes:
                process.kill()
                process.join()
            raise


@cache
def kept(count: int) -> Ranks:
    """The processes for runs on so many ranks."""
    return Ranks(count)


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
