"""What takes turns in the executor benchmark: our plans and torch's schedules, in the same processes.

Contenders take turns, so that whatever else the computer does slows all of them alike: step by step, or where steps are
short some steps at a time, of which the first does not count: it finds nothing of its own in the caches, as no later
step of a run does.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from contraflow.executor.place.records import OpRecord
from contraflow.executor.run.allocator import keep_freed_memory
from contraflow.executor.run.job import Job
from contraflow.executor.run.rank import build_replicas
from contraflow.executor.state.replica import Blueprint
from contraflow.executor.state.validate import find_data, find_model, match_model
from contraflow.executor.step.course import Course
from contraflow.executor.step.interpreter import Interpreter
from contraflow.executor.step.training_work import TrainingWork
from contraflow.executor.step.worker import Worker
from contraflow.executor.wires.carriers import step_back
from contraflow.executor.wires.transport import GlooTransport


@dataclass
class Outcome:
    """One step of one rank: seconds from the common start, of processors, losses by micro-batch, and ours: its ops."""

    seconds: float = 0.0
    processor_s: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)
    ops: list[OpRecord] = field(default_factory=list)


class Contender(Protocol):
    """One rank of something that trains."""

    def prepare(self, step: int) -> None:
        """What is not part of the step's time."""

    def step(self, step: int) -> Outcome:
        """One optimizer step."""

    def close(self) -> None:
        """Releases threads."""


@dataclass(frozen=True)
class Entry:
    """A contender by name.

    Attributes:
        peer: the schedule of torch's that runs on the job's stages (None: our executor).
        pauses: of ours, whether ops pause where ranks have cores of their own.
        steps_back: of ours, whether threads that carry messages step back (see `wires.carriers`); torch's never do.
    """

    name: str
    job: Job
    peer: str | None = None
    pauses: bool = True
    steps_back: bool = True


@dataclass(frozen=True)
class Pacing:
    """Turns of every contender before those that count, and those. After `seconds` of both, `LEAST` must do.

    A turn has as many steps as the slowest makes in `turn_s`, at most `MOST`.
    """

    warmups: int
    rounds: int
    seconds: float
    turn_s: float = 0.5


LEAST, MOST = 3, 40
PIPELINE = "pipeline()"
"""The peer that splits the plan's module itself (see `any_model_speed`)."""

Rounds = list[list[Outcome]]
"""Outcomes by round and rank."""


class Ours:
    """One rank of the executor."""

    def __init__(self, job: Job, transport: GlooTransport, pauses: bool = True, steps_back: bool = True) -> None:
        self.steps_back = steps_back
        transport.pauses = transport.pauses and pauses
        plan, rank = job.plan, transport.rank
        model = find_model(plan, job.model)
        data = find_data(model, job.options.data)
        shapes = match_model(plan, model, data, job.dtype)
        blueprint = Blueprint(
            plan, model, data, shapes, job.options.seed, job.training, job.dtype, pauses=transport.pauses
        )
        replicas = build_replicas(job, blueprint, rank)
        worker = Worker(blueprint, transport, replicas)
        self._work = TrainingWork(worker)
        self._interpreter = Interpreter(worker, self._work)
        self._course = Course.of(plan, rank)

    def prepare(self, step: int) -> None:
        """Nothing: our step draws its data itself."""

    def step(self, step: int) -> Outcome:
        """One optimizer step."""
        (record,) = self._interpreter.run(self._course, step)
        return Outcome(losses=record.losses, ops=record.ops)

    def close(self) -> None:
        """Ends the threads that copy."""
        self._work.close()


def compete(entries: Sequence[Entry], pacing: Pacing, tell: Callable[[str], None]) -> dict[str, Rounds]:
    """Every contender's rounds that count, by name. `tell` is told about rounds as they end."""
    ranks = len(entries[0].job.plan.orders)
    with tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        told = multiprocessing.get_context("spawn").SimpleQueue()
        arguments = (ranks, list(entries), pacing, folder, told)
        running = multiprocessing.spawn(_rank, arguments, nprocs=ranks, join=False)
        while not running.join(timeout=0.5):
            while not told.empty():
                tell(told.get())
        parts = [pickle.loads((Path(folder) / f"rank{rank}").read_bytes()) for rank in range(ranks)]
    return {
        entry.name: [list(ranks) for ranks in zip(*(p[entry.name] for p in parts), strict=True)] for entry in entries
    }


def _rank(rank: int, ranks: int, entries: list[Entry], pacing: Pacing, folder: str, told: Any) -> None:
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks, timeout=timedelta(seconds=300)
    )
    contenders = {entry.name: _made(entry, rank) for entry in entries}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in contenders}
    began, first, steps = time.perf_counter(), 0, 1
    for turn in range(pacing.warmups + pacing.rounds):
        if turn >= pacing.warmups + LEAST and _anybody(time.perf_counter() - began > pacing.seconds):
            break
        if turn == pacing.warmups:
            steps = _in_a_turn(pacing, outcomes)
            outcomes = {name: [] for name in contenders}
        _turn(turn, range(first, first + steps), contenders, outcomes)
        first += steps
        if rank == 0:
            told.put(f"round {turn + 1} of {pacing.warmups + pacing.rounds}")
    for contender in contenders.values():
        contender.close()
    (Path(folder) / f"rank{rank}").write_bytes(pickle.dumps(outcomes))
    dist.barrier()
    dist.destroy_process_group()


def _anybody(mine: bool) -> bool:
    """Whether it is true on any rank."""
    flag = torch.tensor(int(mine))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def _in_a_turn(pacing: Pacing, outcomes: Mapping[str, list[Outcome]]) -> int:
    """How many steps, the same on all ranks, after turns of one."""
    if not pacing.warmups:
        return 1
    slowest = torch.tensor(max(found[-1].seconds for found in outcomes.values()))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(1, min(MOST, int(pacing.turn_s / float(slowest))))


def _turn(turn: int, steps: range, contenders: Mapping[str, Contender], outcomes: dict[str, list[Outcome]]) -> None:
    """Steps of everybody; every other turn the other way round, so that nobody always follows the same one."""
    names = list(contenders)
    for name in reversed(names) if turn % 2 else names:
        found = [_step(contenders[name], step) for step in steps]
        outcomes[name] += found[1:] or found


def _step(contender: Contender, step: int) -> Outcome:
    contender.prepare(step)
    step_back(isinstance(contender, Ours) and contender.steps_back)
    dist.barrier()
    began, spent = time.perf_counter(), time.process_time()
    outcome = contender.step(step)
    outcome.seconds, outcome.processor_s = time.perf_counter() - began, time.process_time() - spent
    return outcome


def _made(entry: Entry, rank: int) -> Contender:
    if entry.peer is None:
        return Ours(entry.job, GlooTransport(entry.job.groups), entry.pauses, entry.steps_back)
    if entry.peer == PIPELINE:
        from any_model_speed import Pipelined

        return Pipelined(entry.job, rank)
    from executor_peers import ALONE, DDP, DataParallel, OneProcess, TorchSchedule

    if entry.peer == DDP:
        return DataParallel(entry.job, rank)
    if entry.peer == ALONE:
        return OneProcess(entry.job, rank)
    return TorchSchedule(entry.peer, entry.job, rank)
