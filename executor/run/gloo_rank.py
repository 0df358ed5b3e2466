"""One rank on torch's default process group, and a spawned one from the moment it is watched."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from ..basics import rank_name
from ..step import GROUP
from ..watch import Board, Shared, lost_another
from ..wires import BACKSTOP_S, GlooTransport, listen_locally
from .allocator import keep_freed_memory
from .children import Failure
from .job import Job
from .rank import RankRun, begun
from .reports import Notice, RankReport, StepReport
from .stopping import Stop, heed_signals


def run_spawned(rank: int, outbox: Connection, board: Board, shared: Shared) -> bool:
    """One spawned rank: its result or its error goes to the outbox; whether it was a result."""
    stop = Stop(shared.stopping.memory())

    def post(message: object) -> None:
        outbox.send_bytes(pickle.dumps(message))  # torch would otherwise share tensors with a process that ends

    job: Job | None = None
    try:
        job = pickle.loads(shared.job)
        assert job is not None
        torch.set_num_threads(shared.threads)
        if job.checkpoint is not None:
            heed_signals(stop)
        listen_locally()
        ranks = job.ranks
        store = dist.FileStore(shared.rendezvous.path, ranks)  # type: ignore[attr-defined]
        limit = timedelta(seconds=BACKSTOP_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
        post(run_here(job, post, board, stop))
        dist.destroy_process_group()
    except Exception as error:
        lost = job is not None and lost_another(job.orders_at, rank // job.team, board.read(rank))
        post(Failure.of(error, rank_name(rank, 1 if job is None else job.team), lost))
        return False
    return True


def run_here(
    job: Job, report: Callable[[StepReport | Notice], None], board: Board, stop: Stop, local_rank: int | None = None
) -> RankReport:
    """One rank on the default process group, which exists."""
    with begun_here(job, report, board, stop, local_rank) as run:
        return run.to_its_end()


@contextmanager
def begun_here(
    job: Job,
    report: Callable[[StepReport | Notice], None],
    board: Board,
    stop: Stop | None = None,
    local_rank: int | None = None,
) -> Iterator[RankRun]:
    """The same, ready for its first step; see `rank.begun`."""
    keep_freed_memory()
    transport = GlooTransport(job.groups, team=job.team, whole=(GROUP,))
    with begun(job, transport, report, board, local_rank, stop) as run:
        yield run
    transport.barrier()
    transport.close()
