"""Ranks as local processes with gloo: spawned and watched here, or joined when torchrun has started them."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from .allocator import keep_freed_memory
from .children import Children, Failure, die_with, ended_by_sigterm
from .errors import ExecutionError, RunError
from .rank import Job, Notice, RankReport, StepReport, run_rank
from .transport import BACKSTOP_S, GlooTransport
from .watch import Board, Watcher, lost_another

if TYPE_CHECKING:
    from .launch import Collector


def run_processes(job: Job, collected: Collector, threads: int) -> list[RankReport]:
    """Spawns a process per device, collects their reports, and leaves none behind whatever happens."""
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RunError(
            f"the model or data cannot be sent to other processes ({error}): give package.module:function"
        ) from None
    context = multiprocessing.get_context("spawn")
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        children = Children(context, len(job.plan.orders), _child, (job, folder, threads))
        try:
            children.start()
            return children.collect(collected, Watcher(job.plan, job.timeout_s, orders_at=job.orders_at))
        finally:
            children.end()


def _child(rank: int, outbox: Connection, memory: Any, job: Job, folder: str, threads: int) -> None:
    """A rank's process: its result or its error goes to the outbox; it dies with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with(parent, lambda: shutil.rmtree(folder, ignore_errors=True))

    def post(message: object) -> None:
        outbox.send_bytes(pickle.dumps(message))  # torch would otherwise share tensors with a process that ends

    board = Board(memory)
    try:
        torch.set_num_threads(threads)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=len(job.plan.orders),
            timeout=timedelta(seconds=BACKSTOP_S),
        )
        post(_run(job, post, board))
        dist.destroy_process_group()
    except Exception as error:
        post(Failure.of(error, rank, lost_another(job.orders_at, rank, board.read(rank))))
        os._exit(1)


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
