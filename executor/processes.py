"""Ranks as local processes with gloo: spawned and watched here, or joined when torchrun has started them."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from .errors import ExecutionError, RunError
from .rank import Job, RankReport, StepReport, run_rank
from .transport import TIMEOUT_S, GlooTransport

if TYPE_CHECKING:
    from .launch import Collector

_POLL_S = 0.2
_GRACE_S = 5.0
_REPORT_S = 2.0


def run_processes(job: Job, collected: Collector, threads: int) -> list[RankReport]:
    """Spawns a process per device, collects their reports, and leaves none behind whatever happens."""
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RunError(
            f"the model or data cannot be sent to other processes ({error}): give package.module:function"
        ) from None
    context = multiprocessing.get_context("spawn")
    inbox: Any = context.Queue()
    ranks = len(job.plan.orders)
    with tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        arguments = [(job, rank, ranks, f"file://{folder}/rendezvous", threads, inbox) for rank in range(ranks)]
        children = [context.Process(target=_child, args=a, daemon=True, name=f"rank {a[1]}") for a in arguments]
        try:
            for child in children:
                child.start()
            return _collect(children, inbox, collected)
        finally:
            _end(children)


def _collect(children: Sequence[BaseProcess], inbox: Any, collected: Collector) -> list[RankReport]:
    finished: dict[int, RankReport] = {}
    lost_polls = 0
    while len(finished) < len(children):
        try:
            message = pickle.loads(inbox.get(timeout=_POLL_S))
        except queue.Empty:
            lost = [r for r, c in enumerate(children) if c.exitcode is not None and r not in finished]
            lost_polls = lost_polls + 1 if lost else 0
            if lost_polls * _POLL_S > _REPORT_S:  # its last words had time to arrive
                code = children[lost[0]].exitcode
                raise ExecutionError(f"rank {lost[0]} ended without a result (exit code {code})") from None
            continue
        if isinstance(message, StepReport):
            collected.add(message)
        elif isinstance(message, RankReport):
            finished[message.rank] = message
        else:
            raise _first_cause(message, inbox, children)
    for child in children:
        child.join(_GRACE_S)
    return [finished[rank] for rank in sorted(finished)]


def _first_cause(message: tuple[str, str], inbox: Any, children: Sequence[BaseProcess]) -> Exception:
    """The error to report: bad input over failures, and a failure over the lost connections it causes."""
    messages = [message]
    try:
        while True:
            further = pickle.loads(inbox.get(timeout=_POLL_S))
            if isinstance(further, tuple):
                messages.append(further)
    except queue.Empty:
        pass
    for rank, child in enumerate(children):
        if child.exitcode is not None and child.exitcode < 0:
            return ExecutionError(f"rank {rank} was killed by signal {-child.exitcode}")
    kind, text = min(messages, key=lambda m: (m[0] != "input", "onnection" in m[1] or "imed out" in m[1]))
    return RunError(text) if kind == "input" else ExecutionError(text)


def _end(children: Sequence[BaseProcess]) -> None:
    """Terminates whoever still runs, and makes sure of it."""
    started = [child for child in children if child.pid is not None]
    for child in started:
        if child.is_alive():
            child.terminate()
    for child in started:
        child.join(_GRACE_S)
        if child.is_alive():
            child.kill()
            child.join()


def _child(job: Job, rank: int, ranks: int, rendezvous: str, threads: int, inbox: Any) -> None:
    """A rank's process: its result or its error goes to the inbox; it dies with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    _die_with_parent()

    def post(message: object) -> None:
        inbox.put(pickle.dumps(message))  # as bytes: torch would otherwise share tensors with a process that ends

    try:
        torch.set_num_threads(threads)
        dist.init_process_group(
            "gloo", init_method=rendezvous, rank=rank, world_size=ranks, timeout=timedelta(seconds=TIMEOUT_S)
        )
        post(_run(job, post))
        dist.destroy_process_group()
    except Exception as error:
        post(describe(error, rank))
        inbox.close()
        inbox.join_thread()
        os._exit(1)


def _run(job: Job, report: Callable[[StepReport], None], local_rank: int | None = None) -> RankReport:
    transport = GlooTransport(job.groups)
    result = run_rank(job, transport, report, local_rank)
    transport.barrier()
    transport.close()
    return result


def describe(error: Exception, rank: int) -> tuple[str, str]:
    """("input" or "failure", one line that names the rank)."""
    if isinstance(error, RunError):
        return "input", str(error)
    if isinstance(error, ExecutionError):
        text = str(error)
        return "failure", text if text.startswith("rank") else f"rank {rank}: {text}"
    reason = (str(error).strip().splitlines() or [""])[0]
    return "failure", f"rank {rank}: {type(error).__name__}: {reason}"


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_joined(job: Job, collected: Collector, threads: int) -> list[RankReport]:
    """This process is one rank, started by torchrun; every rank gets the result.

    Raises:
        RunError: the world size is not the plan's number of devices.
    """
    ranks, world = len(job.plan.orders), int(os.environ["WORLD_SIZE"])
    if world != ranks:
        raise RunError(f"the plan is for {ranks} devices, but WORLD_SIZE is {world}")
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    try:
        steps: list[StepReport] = []
        mine = _run(job, steps.append, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, (mine, steps))
    except RunError:
        raise
    except Exception as error:
        raise ExecutionError(describe(error, int(os.environ["RANK"]))[1]) from error
    finally:
        dist.destroy_process_group()
    for reports in zip(*(steps for _, steps in gathered), strict=True):
        for report in reports:
            collected.add(report)
    return [report for report, _ in gathered]
