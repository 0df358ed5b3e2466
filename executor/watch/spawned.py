"""How a spawned rank begins: it is watched, and bound to its parent, before anything large is imported."""

from __future__ import annotations

import os
import pickle
import signal
from multiprocessing.connection import Connection
from typing import NamedTuple

from ..basics import SharedFile
from .board import Board
from .proc import die_with_parent
from .pulse import beat


class Shared(NamedTuple):
    """What all spawned ranks get.

    Attributes:
        work: a pickled function, imported once the rank is watched: work(rank, outbox, board, shared) says whether it
            went well.
        job: pickled, of `work`'s kind; its model may come from modules that fail to be imported.
        threads: of torch in each process.
        timeout_s: how long the parent may be stopped while ranks run.
        rendezvous, stopping: where ranks meet, and where the parent asks them to end early.
    """

    work: bytes
    job: bytes
    threads: int
    timeout_s: float
    rendezvous: SharedFile
    stopping: SharedFile


def spawned_rank(rank: int, outbox: Connection, file: SharedFile, shared: Shared) -> None:
    """A rank's process; `file` is the board's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent()
    board = Board(file.memory())
    over = beat(board, rank, shared.timeout_s)
    if not pickle.loads(shared.work)(rank, outbox, board, shared):
        os._exit(1)
    over.set()
