"""Processes of this computer that measure together: joined by gloo, with the environment that torchrun gives its ranks.

So what is measured here runs the same code as under torchrun.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, spawn

from ..basics import ExecutionError, RunError
from ..run import keep_freed_memory
from ..wires import listen_locally

Found = TypeVar("Found")
WORLD = ("RANK", "WORLD_SIZE")
_POLL_S = 0.1


def under_a_launcher() -> bool:
    """Whether torchrun, or somebody in its way, has started this process as a rank."""
    return all(name in os.environ for name in WORLD)


def among(processes: int, threads: int, work: Callable[[], Found]) -> Found:
    """What the first of so many processes of so many threads gets from `work`, which all of them do.

    Spawns them: a script that calls this needs the `if __name__ == "__main__"` guard.

    Raises:
        RunError: fewer than two processes: there is no link to measure. ExecutionError: one of them has failed.
    """
    if processes < 2:
        raise RunError(f"a cluster is measured between at least 2 processes, got {processes}")
    with tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        results = multiprocessing.get_context("spawn").SimpleQueue()
        arguments = (processes, threads, f"file://{Path(folder) / 'rendezvous'}", work, results)
        try:
            running = spawn(_rank, arguments, nprocs=processes, join=False)  # type: ignore[no-untyped-call]
            found: list[Found] = []
            while not running.join(timeout=_POLL_S):
                if not results.empty():
                    found.append(results.get())  # now: who puts more than a pipe holds waits for it
        except ProcessException as error:
            raise ExecutionError(f"measuring this computer: {str(error).strip().splitlines()[-1]}") from error
        return found[0] if found else results.get()


def _rank(rank: int, processes: int, threads: int, rendezvous: str, work: Callable[[], Any], results: Any) -> None:
    mine = dict(zip(WORLD, (rank, processes), strict=True))
    mine |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": processes, "GROUP_RANK": 0}
    os.environ.update({name: str(value) for name, value in mine.items()})
    listen_locally()
    keep_freed_memory()
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=processes)
    try:
        found = work()
        if rank == 0:
            results.put(found)
        dist.barrier()
    finally:
        dist.destroy_process_group()
