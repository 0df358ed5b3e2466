"""Ranks as threads of this process: run, watched, and ended together."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from ..basics import Aborted, ExecutionError, foreign, ours
from ..watch import Board, Watcher
from ..wires import Hub, reduce_groups
from .collector import Collector
from .job import Job
from .rank import run_rank
from .reports import Notice, RankReport, StepReport

_POLL_S = 0.2
_GRACE_S = 5.0
"""How long threads may take to end after one of them failed."""


def _of_rank(rank: int, error: BaseException) -> BaseException:
    """What a rank's thread raised, as one line that names the rank where the error was not written for the user."""
    if ours(error) or not isinstance(error, Exception):
        return error
    told = ExecutionError(f"rank {rank}: {foreign(error)}")
    told.__cause__ = error
    return told


def run_threads(job: Job, collected: Collector) -> list[RankReport]:
    """Every rank a thread of this process; torch's own thread count is left as it is.

    A thread that hangs cannot be ended: it is left behind, and ends with the process at the latest.
    """
    ranks = len(job.plan.orders)
    hub = Hub(ranks, {"all": range(ranks), **reduce_groups(job.plan)})
    board, watcher = (
        Board(bytearray(Board.size(ranks))),
        Watcher(job.plan, job.options.timeout_s, orders_at=job.orders_at),
    )
    inbox: queue.Queue[StepReport | Notice | RankReport | BaseException] = queue.Queue()

    def work(rank: int) -> None:
        try:
            inbox.put(run_rank(job, hub.transport(rank), inbox.put, board, stop=collected.stop))
        except BaseException as error:
            hub.abort()
            inbox.put(_of_rank(rank, error))

    workers = [threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    finished: dict[int, RankReport] = {}
    failures: list[BaseException] = []
    try:
        while len(finished) + len(failures) < ranks:
            try:
                message: Any = inbox.get(timeout=_POLL_S)
            except queue.Empty:
                hang = watcher.hang(board.read_all())
                if hang is None:
                    continue
                failed = next((f for f in failures if not isinstance(f, Aborted)), None)
                raise failed or ExecutionError(hang.text) from None
            if isinstance(message, (StepReport, Notice)):
                collected.add(message)
            elif isinstance(message, RankReport):
                finished[message.rank] = message
            else:
                failures.append(message)
    finally:
        if len(finished) < ranks:
            hub.abort()
        deadline = time.monotonic() + _GRACE_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
    if failures:
        raise next((f for f in failures if not isinstance(f, Aborted)), failures[0])
    return [finished[rank] for rank in range(ranks)]
