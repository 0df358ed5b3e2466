"""Ranks as local processes with gloo, spawned and watched here."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from ..basics import ExecutionError, RunError, SharedFile, one_line
from ..step import Board, Watcher, lost_another
from ..wires import BACKSTOP_S, GlooTransport, listen_locally
from . import spawned
from .allocator import keep_freed_memory
from .children import Children, Failure, ended_by_sigterm
from .rank import Job, Notice, RankReport, StepReport, run_rank
from .stopping import Stop, heed_signals

if TYPE_CHECKING:
    from .launch import Collector


def run_processes(job: Job, collected: Collector, threads: int) -> list[RankReport]:
    """Spawns a process per device, collects their reports, and leaves none behind whatever happens."""
    try:
        content = pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RunError(
            f"the model or data cannot be sent to other processes ({error}): give package.module:function"
        ) from None
    context = multiprocessing.get_context("spawn")
    with ended_by_sigterm(), ExitStack() as closing:
        try:
            rendezvous, stopping = SharedFile(), SharedFile(Stop.SIZE)
            closing.callback(rendezvous.close)
            closing.callback(stopping.close)
            collected.stop.share(stopping.memory())
            arguments = (job.timeout_s, rendezvous, content, threads, stopping)
            children = Children(context, len(job.plan.orders), spawned.rank, arguments)
        except OSError as error:
            raise ExecutionError(f"no room for what the ranks share: {one_line(error)}") from None
        closing.callback(children.end)
        children.start()
        return children.collect(collected, Watcher(job.plan, job.timeout_s, orders_at=job.orders_at))


def run_spawned(
    rank: int,
    outbox: Connection,
    board: Board,
    rendezvous: SharedFile,
    content: bytes,
    threads: int,
    stopping: SharedFile,
) -> bool:
    """One rank of `run_processes`: its result or its error goes to the outbox; whether it was a result."""
    stop = Stop(stopping.memory())

    def post(message: object) -> None:
        outbox.send_bytes(pickle.dumps(message))  # torch would otherwise share tensors with a process that ends

    job: Job | None = None
    try:
        job = pickle.loads(content)
        assert job is not None
        torch.set_num_threads(threads)
        if job.checkpoint is not None:
            heed_signals(stop)
        listen_locally()
        ranks = len(job.plan.orders)
        store = dist.FileStore(rendezvous.path, ranks)  # type: ignore[attr-defined]
        limit = timedelta(seconds=BACKSTOP_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
        post(run_here(job, post, board, stop))
        dist.destroy_process_group()
    except Exception as error:
        lost = job is not None and lost_another(job.orders_at, rank, board.read(rank))
        post(Failure.of(error, rank, lost))
        return False
    return True


def run_here(
    job: Job, report: Callable[[StepReport | Notice], None], board: Board, stop: Stop, local_rank: int | None = None
) -> RankReport:
    """One rank on the default process group, which exists."""
    keep_freed_memory()
    transport = GlooTransport(job.groups)
    result = run_rank(job, transport, report, board, local_rank, stop)
    transport.barrier()
    transport.close()
    return result
