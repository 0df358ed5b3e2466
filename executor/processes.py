"""Ranks as local processes with gloo: spawned and watched here, or joined when torchrun has started them."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from . import spawned
from .allocator import keep_freed_memory
from .children import Children, Failure, ended_by_sigterm, one_line
from .errors import ExecutionError, RunError
from .rank import Job, Notice, RankReport, StepReport, run_rank
from .shared_file import SharedFile
from .transport import BACKSTOP_S, GlooTransport
from .watch import Board, Watcher, lost_another

if TYPE_CHECKING:
    from .launch import Collector

_LOOPBACK = ("lo", "lo0")


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
            rendezvous = SharedFile()
            closing.callback(rendezvous.close)
            children = Children(context, len(job.plan.orders), spawned.rank, (rendezvous, content, threads))
        except OSError as error:
            raise ExecutionError(f"no room for what the ranks share: {one_line(error)}") from None
        closing.callback(children.end)
        children.start()
        return children.collect(collected, Watcher(job.plan, job.timeout_s, orders_at=job.orders_at))


def run_spawned(
    rank: int, outbox: Connection, board: Board, rendezvous: SharedFile, content: bytes, threads: int
) -> bool:
    """One rank of `run_processes`: its result or its error goes to the outbox; whether it was a result."""

    def post(message: object) -> None:
        outbox.send_bytes(pickle.dumps(message))  # torch would otherwise share tensors with a process that ends

    job: Job | None = None
    try:
        job = pickle.loads(content)
        assert job is not None
        torch.set_num_threads(threads)
        listen_locally()
        ranks = len(job.plan.orders)
        store = dist.FileStore(rendezvous.path, ranks)  # type: ignore[attr-defined]
        limit = timedelta(seconds=BACKSTOP_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
        post(_run(job, post, board))
        dist.destroy_process_group()
    except Exception as error:
        lost = job is not None and lost_another(job.orders_at, rank, board.read(rank))
        post(Failure.of(error, rank, lost))
        return False
    return True


def listen_locally() -> None:
    """Ranks of one machine talk over its loopback interface, unless GLOO_SOCKET_IFNAME names another."""
    found = next((name for _, name in socket.if_nameindex() if name in _LOOPBACK), None)
    if found is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", found)


def _run(
    job: Job, report: Callable[[StepReport | Notice], None], board: Board, local_rank: int | None = None
) -> RankReport:
    keep_freed_memory()
    transport = GlooTransport(job.groups)
    result = run_rank(job, transport, report, board, local_rank)
    transport.barrier()
    transport.close()
    return result


def run_joined(job: Job, collected: Collector, threads: int) -> list[RankReport]:
    """This process is one rank, started by torchrun; every rank gets the result.

    Raises:
        RunError: the world size is not the plan's number of devices.
    """
    from .watchdog import Watchdog

    ranks, world, rank = len(job.plan.orders), int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if world != ranks:
        raise RunError(f"the plan is for {ranks} devices, but WORLD_SIZE is {world}")
    torch.set_num_threads(threads)
    board = Board(bytearray(Board.size(ranks)))
    with Watchdog(Watcher(job.plan, job.timeout_s, orders_at=job.orders_at), board, rank):
        dist.init_process_group("gloo", timeout=timedelta(seconds=BACKSTOP_S))
        try:
            told: list[StepReport | Notice] = []
            mine = _run(job, told.append, board, int(os.environ.get("LOCAL_RANK", rank)))
            gathered: list[Any] = [None] * world
            dist.all_gather_object(gathered, (mine, told))
        except RunError:
            raise
        except Exception as error:
            failure = Failure.of(error, rank, lost_another(job.orders_at, rank, board.read(rank)))
            failure.stand_back()
            raise ExecutionError(failure.text) from error
        finally:
            dist.destroy_process_group()
    for notice in (report for _, told in gathered for report in told if isinstance(report, Notice)):
        collected.add(notice)
    steps = [[report for report in told if isinstance(report, StepReport)] for _, told in gathered]
    for reports in zip(*steps, strict=True):
        for report in reports:
            collected.add(report)
    return [report for report, _ in gathered]
