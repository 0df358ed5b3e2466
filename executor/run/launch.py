"""Runs a plan: as threads of this process, as processes spawned here, or as one rank under torchrun."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from ...models import LayeredModel
from ...models.once import kept
from ...planner.graph import asynchronous
from ...planner.plan import Plan
from ...planner.runs import save_trace
from ..basics import ENGINES, ON_REQUEST, ExecutionError, RunError, RunOptions, foreign, keywords_of, ours
from ..place import require_device
from ..stage import require_compiler, run_dtype
from ..state import (
    MiniBatches,
    compiled_stages,
    feed_of,
    find_data,
    find_model,
    inputs_text,
    match_epochs,
    match_model,
    parts_fingerprint,
    require_executable,
)
from ..step import KEPT_OPS, lengthened
from .checkpoint import begin_at, check_resumable
from .children import ended_by_sigterm
from .collector import Collector
from .identity import RunIdentity
from .job import Job
from .metrics import metrics_file
from .reports import RankReport
from .result import RunResult
from .saving import kept_whole
from .stopping import ended_by

_LOG = logging.getLogger(__name__)


def run_plan(plan: Plan, options: RunOptions) -> RunResult:
    """Trains as the plan says, and measures.

    Raises:
        RunError: bad input, found before training starts. ExecutionError: a rank failed, was killed or hangs; one
            line that names rank, stage, op and micro-batch. Interrupted, Terminated: Ctrl-C or SIGTERM has ended a
            run with a checkpoint folder, which has its last step.
    """
    ready, run = _runner(plan, options)

    def make() -> Job:
        job = job_of(plan, options)
        if options.trace is not None:
            _require_traceable(job)
        return job

    with ready(make) as job, ExitStack() as closing:
        _LOG.info(
            "%s: steps %d to %d on %d ranks", plan.problem.model.name, job.first, job.first + job.steps, job.ranks
        )
        collected = Collector(job, options.on_step, closing.enter_context(metrics_file(options.metrics)))
        with nullcontext() if job.checkpoint is None else kept_whole(job.checkpoint.folder, collected.stop):
            reports = run(job, collected)
        result = collected.result(plan, reports) if collected.losses or options.evaluate_only else None
    _LOG.info("%s: %d steps taken", plan.problem.model.name, len(collected.losses))
    if result is not None and options.trace is not None and os.environ.get("RANK", "0") == "0":
        save_trace(result.trace, options.trace)
    if result is None or (collected.stop.number and len(collected.losses) < job.steps):
        raise ended_by(collected.stop.number, job.first + len(collected.losses), result)
    return result


execute = keywords_of(RunOptions)(run_plan)
"""`run_plan` as other programs call it: execute(plan, steps, model, ...), every field of `RunOptions` by keyword."""


def _require_traceable(job: Job) -> None:
    """Raises RunError where the run is too long to keep every op of it."""
    run = next(job.runs)
    longest = max(map(len, lengthened(job.plan, run.updates).orders))
    if longest > KEPT_OPS:
        raise RunError(
            f"a trace would hold {longest} ops of one device, at most {KEPT_OPS} are kept: run fewer updates without "
            "an evaluation between them"
        )


@kept()
def job_of(plan: Plan, options: RunOptions) -> Job:
    """The job that every rank runs, its inputs checked; errors as for `execute`."""
    _require_known(plan, options)
    asked = options.saving
    if options.evaluate_only:  # of what there is; one step, which nobody takes, makes it a run
        options, asked = replace(options, steps=1), None if asked is None else replace(asked, resume=True)
    first, steps, saving = begin_at(asked, options.steps)
    found = find_model(plan, options.model, options.seed)
    workload = plan.problem.workload
    training = options.rated.of_run(workload.optimizer, steps, saving is not None and saving.resume)
    if options.evaluate_only:
        training = replace(training, evaluate_every=ON_REQUEST)
    if asynchronous(plan) and training.agrees:
        raise RunError(f"{training.all_gradients} would drain the pipeline at every update: only for synchronous plans")
    dtype = run_dtype(workload.precision, options.dtype)
    source = find_data(found, options.data, feed_of(plan, training))
    sizes = MiniBatches.of_plan(plan, training, source).sizes(range(first, first + steps))
    match_epochs(plan, source, sizes)
    shapes = {samples: match_model(plan, found, source, dtype, samples) for samples in sizes}
    inputs = inputs_text(source, dtype, plan.problem.model.micro_batch_size)
    of = found.name, parts_fingerprint(plan, found)
    identity = RunIdentity.of(plan, options, training, dtype, model=of, inputs=inputs, data=source.name)
    if saving is not None and saving.resume:
        check_resumable(saving, first, identity)
    return Job(
        plan=plan,
        options=replace(options, model=_portable(plan, found, options.model), on_step=None),
        steps=steps,
        first=first,
        training=training,
        dtype=dtype,
        checkpoint=saving,
        shapes=shapes,
        identity=identity,
    )


prepare = keywords_of(RunOptions)(job_of)
"""`job_of` as `execute` is called: prepare(plan, steps, model, ...)."""


def _require_known(plan: Plan, options: RunOptions) -> None:
    """Raises RunError: something that there is not, or not here."""
    if not 0 < options.timeout_s < math.inf:
        raise RunError(f"timeout must be a finite number of seconds above 0, got {options.timeout_s}")
    require_executable(plan, options.device)
    if options.engine not in ENGINES:
        raise RunError(f"unknown engine {options.engine!r}; known: {', '.join(ENGINES)}")
    require_device(options.device)
    team = plan.problem.cluster.team
    if team > 1 and options.transport == "threads":
        raise RunError(f"the plan is for teams of {team} ranks, which are processes: run with --transport processes")
    if options.evaluate_only and (options.trace is not None or options.metrics is not None):
        raise RunError("an evaluation takes no step: there is nothing to trace, and no line of metrics")
    _require_compiler(plan, options)
    if options.steps < 1:
        raise RunError(f"steps must be at least 1, got {options.steps}")


def _require_compiler(plan: Plan, options: RunOptions) -> None:
    if not compiled_stages(plan, options.compiled):
        return
    try:
        require_compiler(options.device)
    except RunError as error:
        if options.compiled:
            raise
        raise RunError(
            f"the plan's layers were timed compiled, and {error}; --no-compile runs them as they are"
        ) from error


def _portable(plan: Plan, found: LayeredModel, given: LayeredModel | str | None) -> LayeredModel | str:
    """What other processes get: a name where there is one, since a name always pickles."""
    if isinstance(given, LayeredModel):
        return found
    return plan.problem.model.name if given is None else given


Runner = Callable[[Job, Collector], Sequence[RankReport]]
Ready = Callable[[Callable[[], Job]], AbstractContextManager[Job]]


def _runner(plan: Plan, options: RunOptions) -> tuple[Ready, Runner]:
    """(what makes the job and holds what all of the run needs, what runs it). Raises RunError."""
    if options.transport not in RUNNERS:
        raise RunError(f"unknown transport {options.transport!r}; known: {', '.join(RUNNERS)}")
    return RUNNERS[options.transport](plan, options)


def _threads(plan: Plan, options: RunOptions) -> tuple[Ready, Runner]:
    from .threaded import run_threads

    return partial(_here, _alone), run_threads


def _processes(plan: Plan, options: RunOptions) -> tuple[Ready, Runner]:
    """Joined where somebody else has started them."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from .joined import Joined

        joined = Joined(plan, options.timeout_s)
        return partial(_here, joined.ready), joined.run
    from .processes import run_processes

    return _alone, run_processes


RUNNERS: dict[str, Callable[[Plan, RunOptions], tuple[Ready, Runner]]] = {"processes": _processes, "threads": _threads}
"""By what `--transport` says; the names are those of `TRANSPORTS`, which the command knows without torch."""


@contextmanager
def _here(ready: Ready, make: Callable[[], Job]) -> Iterator[Job]:
    """Ranks of this process use the layers that were made for the job."""
    with kept(), ready(make) as job:
        yield job


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
