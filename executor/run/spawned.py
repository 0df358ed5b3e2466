"""How a spawned rank begins: it is watched, and bound to its parent, before anything large is imported."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from ..basics import SharedFile
from ..step import Board
from .proc import die_with_parent
from .pulse import beat


def rank(
    number: int,
    outbox: Connection,
    file: SharedFile,
    timeout_s: float,
    rendezvous: SharedFile,
    job: bytes,
    threads: int,
    stopping: SharedFile,
) -> None:
    """A rank's process.

    `timeout_s`: how long its parent may be stopped while it runs. `job`: a pickled `rank.Job`, whose model may come
    from modules that fail to be imported.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent()
    board = Board(file.memory())
    over = beat(board, number, timeout_s)
    from .processes import run_spawned

    if not run_spawned(number, outbox, board, rendezvous, job, threads, stopping):
        os._exit(1)
    over.set()
