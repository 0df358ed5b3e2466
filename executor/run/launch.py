"""Runs a plan: as threads of this process, as processes spawned here, or as one rank under torchrun."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...models import Dataset, LayeredModel
from ...planner.graph import asynchronous
from ...planner.plan import Plan
from ...planner.runs import save_trace
from ..basics import Checkpointing, ExecutionError, RunError, Training, foreign, ours
from ..place import require_device
from ..stage import ENGINES, Engine, run_dtype
from ..state import MiniBatches, find_data, find_model, match_epochs, match_model, require_executable
from ..step import KEPT_OPS, lengthened
from ..watch import TIMEOUT_S
from .checkpoint import begin_at, check_resumable
from .children import ended_by_sigterm
from .collector import Collector, OnStep
from .identity import RunIdentity
from .job import Job
from .reports import RankReport
from .result import RunResult
from .saving import kept_whole
from .stopping import ended_by

if TYPE_CHECKING:
    pass


def execute(
    plan: Plan,
    steps: int = 10,
    model: LayeredModel | str | None = None,
    data: Dataset | str | None = None,
    seed: int = 0,
    lr: float | None = None,
    dtype: torch.dtype | None = None,
    transport: str = "processes",
    on_step: OnStep | None = None,
    threads_per_process: int = 1,
    trace: str | Path | None = None,
    checkpoint: Checkpointing | str | Path | None = None,
    resume: bool = False,
    self_check: bool = True,
    return_state: bool = False,
    timeout_s: float = TIMEOUT_S,
    training: Training | None = None,
    engine: Engine = "auto",
    device: str = "cpu",
    compiled: bool = False,
    enforce: bool = False,
) -> RunResult:
    """Trains `steps` steps as the plan says and measures.

    Args:
        model: default: the registry's model of the plan's name. A LayeredModel, or a registry name or
            "package.module:function", which every process resolves by itself.
        data: default: the model's own.
        seed: fixes parameters, data order and dropout, whatever the plan.
        lr: the rate of `training`.
        dtype: of the parameters; default: float32, or bfloat16 where the plan is in mixed precision.
        transport: "threads", or "processes" (gloo; joined, not spawned, when RANK and WORLD_SIZE are set).
        trace: where to write the trace of the steps.
        checkpoint: where, and when, to save what has been trained: a folder, or `Checkpointing` with more to say.
        resume: go on from the newest checkpoint there, made by any plan of the same training.
        self_check: compare every stage program with plain torch first.
        timeout_s: how long a rank may go without progress within a step before the run ends.
        training: optimizer options, schedule, clipping, loss scaling, evaluation; default: `Training()`.
        engine: "graph" or "eager" for all stages, or "auto": the graph of a stage, or where there can be no right
            one, torch's eager autograd, with an EngineNotice as a warning.
        device: "cpu", or "cuda": rank r of a machine on its device r, modulo how many it has (docs/cuda.md).
        compiled: run the stage programs through torch's compiler where that is possible.
        enforce: end before an op whose declared bytes would pass the device's planned peak, and right after one whose
            measured bytes did; hosts likewise. Memory is then followed in all steps, which takes time.

    Raises:
        RunError: bad input, found before training starts. ExecutionError: a rank failed, was killed or hangs; one
            line that names rank, stage, op and micro-batch. Interrupted, Terminated: Ctrl-C or SIGTERM has ended a
            run with a checkpoint folder, which has its last step.
    """
    ready, run = _runner(transport, plan, timeout_s)

    def make() -> Job:
        job = prepare(
            plan, steps, model, data, seed, lr, dtype, checkpoint, resume, self_check, return_state, training, engine,
            device, compiled, timeout_s, enforce,
        )  # fmt: skip
        if trace is not None:
            _require_traceable(job)
        return job

    with ready(make) as job:
        collected = Collector(len(plan.orders), on_step)
        with nullcontext() if job.checkpoint is None else kept_whole(job.checkpoint.folder, collected.stop):
            reports = run(job, collected, threads_per_process)
        result = collected.result(plan, reports) if collected.losses else None
    if result is not None and trace is not None and os.environ.get("RANK", "0") == "0":
        save_trace(result.trace, trace)
    if result is None or (collected.stop.number and len(collected.losses) < job.steps):
        raise ended_by(collected.stop.number, job.first + len(collected.losses), result)
    return result


def _require_traceable(job: Job) -> None:
    """Raises RunError where the run is too long to keep every op of it."""
    run = next(job.runs)
    longest = max(map(len, lengthened(job.plan, run.updates).orders))
    if longest > KEPT_OPS:
        raise RunError(
            f"a trace would hold {longest} ops of one device, at most {KEPT_OPS} are kept: run fewer updates without "
            "an evaluation between them"
        )


def prepare(
    plan: Plan,
    steps: int = 10,
    model: LayeredModel | str | None = None,
    data: Dataset | str | None = None,
    seed: int = 0,
    lr: float | None = None,
    dtype: torch.dtype | None = None,
    checkpoint: Checkpointing | str | Path | None = None,
    resume: bool = False,
    self_check: bool = True,
    return_state: bool = False,
    training: Training | None = None,
    engine: Engine = "auto",
    device: str = "cpu",
    compiled: bool = False,
    timeout_s: float = TIMEOUT_S,
    enforce: bool = False,
) -> Job:
    """The job that every rank runs, its inputs checked; arguments and errors as for `execute`."""
    if not 0 < timeout_s < math.inf:
        raise RunError(f"timeout must be a finite number of seconds above 0, got {timeout_s}")
    require_executable(plan, device)
    if engine not in ENGINES:
        raise RunError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    require_device(device)
    if compiled:
        from ..stage import require_compiler

        require_compiler(device)
    if steps < 1:
        raise RunError(f"steps must be at least 1, got {steps}")
    saving = Checkpointing.of(checkpoint, resume)
    first, steps, saving = begin_at(saving, steps)
    found = find_model(plan, model)
    workload, chosen = plan.problem.workload, training or Training()
    chosen = (chosen if lr is None else replace(chosen, lr=lr)).of_run(
        workload.optimizer, steps, saving is not None and saving.resume
    )
    if asynchronous(plan) and chosen.agrees:
        raise RunError(f"{chosen.all_gradients} would drain the pipeline at every update: only for synchronous plans")
    dtype = run_dtype(workload.precision, dtype)
    source = find_data(found, data)
    sizes = MiniBatches.of_plan(plan, chosen, source).sizes(range(first, first + steps))
    match_epochs(plan, source, sizes)
    shapes = {samples: match_model(plan, found, source, dtype, samples) for samples in sizes}
    inputs = str(shapes[plan.problem.model.micro_batch_size][0])
    identity = RunIdentity.of(plan, found.name, inputs, source.name, seed, dtype, chosen)
    if saving is not None and saving.resume:
        check_resumable(saving, first, identity)
    return Job(
        plan, _portable(plan, found, model), data, steps, seed, chosen, dtype,
        saving, self_check, return_state, identity, timeout_s, engine, device, compiled, shapes, enforce, first,
    )  # fmt: skip


def _portable(plan: Plan, found: LayeredModel, given: LayeredModel | str | None) -> LayeredModel | str:
    """What other processes get: a name where there is one, since a name always pickles."""
    if isinstance(given, LayeredModel):
        return found
    return plan.problem.model.name if given is None else given


Runner = Callable[[Job, Collector, int], Sequence[RankReport]]
Ready = Callable[[Callable[[], Job]], AbstractContextManager[Job]]


def _runner(transport: str, plan: Plan, timeout_s: float) -> tuple[Ready, Runner]:
    """(what makes the job and holds what all of the run needs, what runs it)."""
    if transport not in ("processes", "threads"):
        raise RunError(f"unknown transport {transport!r}; known: processes, threads")
    if transport == "threads":
        from .threaded import run_threads

        return _alone, run_threads
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from .joined import Joined

        joined = Joined(plan, timeout_s)
        return joined.ready, joined.run
    from .processes import run_processes

    return _alone, run_processes


@contextmanager
def _alone(make: Callable[[], Job]) -> Iterator[Job]:
    with ended_by_sigterm():
        try:
            job = make()
        except Exception as error:
            if ours(error):
                raise
            raise ExecutionError(f"before training: {foreign(error)}") from error
    yield job
