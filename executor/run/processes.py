"""Ranks as local processes with gloo, spawned and watched here."""

from __future__ import annotations

import pickle
from contextlib import ExitStack

import torch.multiprocessing as multiprocessing

from ..basics import ExecutionError, RunError, SharedFile, one_line
from ..watch import Shared, Watcher, spawned_rank
from .children import Children, ended_by_sigterm
from .collector import Collector
from .gloo_rank import run_spawned
from .job import Job
from .reports import RankReport
from .stopping import Stop


def run_processes(job: Job, collected: Collector) -> list[RankReport]:
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
            shared = Shared(
                pickle.dumps(run_spawned),
                content,
                job.options.threads_per_process,
                job.options.timeout_s,
                rendezvous,
                stopping,
            )
            children = Children(context, job.ranks, spawned_rank, shared)
        except OSError as error:
            raise ExecutionError(f"no room for what the ranks share: {one_line(error)}") from None
        closing.callback(children.end)
        children.start()
        return children.collect(collected, Watcher(job.plan, job.options.timeout_s, orders_at=job.orders_at))
