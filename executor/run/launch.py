"""Runs a plan: as threads of this process, as processes spawned here, or as one rank under torchrun."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...models import Dataset, LayeredModel
from ...planner.graph import asynchronous, update_size
from ...planner.plan import Forecast, Plan
from ...planner.runs import RunTrace, save_trace
from ..basics import Checkpointing, ExecutionError, RunError, Training, foreign, ours
from ..place import require_device
from ..stage import ENGINES, Engine, run_dtype, warn
from ..state import MiniBatches, find_data, find_model, match_epochs, match_model, require_executable
from ..step import KEPT_OPS, TIMEOUT_S, lengthened
from .checkpoint import begin_at, check_resumable
from .children import ended_by_sigterm
from .excess import Excess, excesses
from .identity import RunIdentity
from .rank import Job, Notice, RankReport, StepReport
from .saving import kept_whole
from .stopping import Stop, ended_by
from .trace import trace_of

if TYPE_CHECKING:
    from torch import Tensor

TRACKED_STEPS = 2
"""Memory is followed in so many first steps, and not afterwards, so that it costs no time."""


def tracked_steps(plan: Plan) -> int:
    """First steps in which memory is followed: of an asynchronous plan, until its pipeline has been full for long."""
    return TRACKED_STEPS + (2 * _margin(plan) if asynchronous(plan) else 0)


def _margin(plan: Plan) -> int:
    """Updates while a pipeline fills or empties."""
    return -(-len(plan.stages) // update_size(plan))


def _steady(places: Sequence[int], margin: int) -> list[int]:
    """Of updates with these places in their runs, those with `margin` others of the run before and behind them."""
    ends = [k for k in range(len(places)) if k + 1 == len(places) or places[k + 1] == 0]
    left = {k: end - k for end in reversed(ends) for k in range(end - places[end], end + 1)}
    return [k for k, place in enumerate(places) if place >= margin and left[k] >= margin]


def _forecast_step_s(plan: Plan, forecast: Forecast) -> float:
    """Seconds a step; of an asynchronous plan, seconds an update once the pipeline is full."""
    return forecast.step_s if forecast.period_s is None else forecast.period_s * update_size(plan)


OnStep = Callable[[int, float, float], None]
"""Called with (step, loss, seconds) as steps complete."""


@dataclass(frozen=True)
class RunResult:
    """What training gave.

    Attributes:
        losses: mean over the samples, one a step (of an asynchronous plan: an update, here and below).
        step_s: median step time in seconds, the first step left out and the memory-tracked ones where there are
            others. step_times: all of them. Asynchronous: from an update's end to the next, while the pipeline is full.
        peak_bytes: measured per device, in the tracked steps. allocated_bytes: the most that CUDA's allocator gave
            every rank's process, with its rounding and the libraries' workspaces; None on the CPU.
        forecast_step_s, forecast_peak_bytes: what the plan said.
        first_step: 0, or where the run resumed.
        grad_norms: of the whole model before clipping, one a step where gradients are clipped or losses scaled
            dynamically; then a step whose norm is not finite was left out. loss_scales: what each step ran with.
        left_out: steps that no rank took, since a gradient (or, with `on_nan` "skip", a loss) was not finite.
        evaluations: mean held-out losses by the number of steps taken before.
        state: final tensors by checkpoint key, if asked for.
        trace: the steps op by op: median times, memory.
        excesses: the devices that held more than was planned.
    """

    losses: tuple[float, ...]
    step_s: float
    step_times: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    forecast_step_s: float
    forecast_peak_bytes: tuple[int, ...]
    first_step: int
    trace: RunTrace
    grad_norms: tuple[float, ...] = ()
    loss_scales: tuple[float, ...] = ()
    evaluations: dict[int, float] = field(default_factory=dict)
    state: dict[str, Tensor] | None = field(default=None, repr=False)
    allocated_bytes: tuple[int, ...] | None = None
    excesses: tuple[Excess, ...] = ()
    left_out: tuple[int, ...] = ()


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
        plan, _portable(plan, found, model), data, steps, seed, chosen, dtype, tracked_steps(plan),
        saving, self_check, return_state, identity, timeout_s, engine, device, compiled, shapes, enforce, first,
    )  # fmt: skip


def _portable(plan: Plan, found: LayeredModel, given: LayeredModel | str | None) -> LayeredModel | str:
    """What other processes get: a name where there is one, since a name always pickles."""
    if isinstance(given, LayeredModel):
        return found
    return plan.problem.model.name if given is None else given


Runner = Callable[[Job, "Collector", int], Sequence[RankReport]]
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


class Collector:
    """Puts the ranks' step reports together; tells `on_step` when all ranks have ended a step."""

    def __init__(self, ranks: int, on_step: OnStep | None, stop: Stop | None = None) -> None:
        self._ranks = ranks
        self._on_step = on_step
        self.stop = Stop(bytearray(Stop.SIZE)) if stop is None else stop
        self._pending: dict[int, list[StepReport]] = {}
        self._ended: tuple[int, float] = (-1, 0.0)  # first step of the run under way; when its last step has ended
        self._places: list[int] = []
        self._noticed: set[tuple[int, str]] = set()
        self.losses: list[float] = []
        self.times: list[float] = []
        self.norms: list[float] = []
        self.scales: list[float] = []
        self.evaluations: dict[int, float] = {}
        self.left_out: list[int] = []

    def add(self, report: StepReport | Notice) -> None:
        """One rank's report of one step, or its notice, which the user gets as a warning once a stage."""
        if isinstance(report, Notice):
            if (report.stage, report.subject) not in self._noticed:
                self._noticed.add((report.stage, report.subject))
                warn(report.text)
            return
        reports = self._pending.setdefault(report.step, [])
        reports.append(report)
        if len(reports) < self._ranks:
            return
        del self._pending[report.step]
        losses = {m: loss for r in reports for m, loss in r.losses.items()}
        self.losses.append(report.mini_batch.mean(losses))
        ended = max(r.seconds for r in reports)
        self.times.append(ended - (self._ended[1] if self._ended[0] == report.run else 0.0))
        self._ended = (report.run, ended)
        self._places.append(report.step - report.run)
        self.scales.append(report.loss_scale)
        if report.grad_norm is not None:
            self.norms.append(report.grad_norm)
        if report.left_out:
            self.left_out.append(report.step)
        held_out = {key: loss for r in reports for key, loss in (r.held_out or {}).items()}
        if held_out:
            self.evaluations[report.step + 1] = sum(held_out[key] for key in sorted(held_out)) / len(held_out)
        if self._on_step is not None:
            self._on_step(report.step, self.losses[-1], self.times[-1])

    def result(self, plan: Plan, reports: Sequence[RankReport]) -> RunResult:
        """The run's result from what every rank left at its end, in rank order."""
        forecast = plan.forecast
        assert forecast is not None  # require_executable saw to it
        peaks = tuple(report.peak_bytes for report in reports)
        state: dict[str, Tensor] = {}
        for report in reports:
            state |= report.state or {}
        times = self.times
        steady = _steady(self._places, _margin(plan)) if asynchronous(plan) else []
        settled = [times[k] for k in steady if k >= tracked_steps(plan)] or [times[k] for k in steady]
        allocated = [report.allocated_bytes for report in reports]
        return RunResult(
            tuple(self.losses),
            statistics.median(settled or times[TRACKED_STEPS:] or times[1:] or times),
            tuple(times),
            peaks,
            _forecast_step_s(plan, forecast),
            forecast.peak_bytes,
            reports[0].first_step,
            trace_of(plan, reports, times, self.losses),
            tuple(self.norms),
            tuple(self.scales),
            self.evaluations,
            state or None,
            None if None in allocated else tuple(bytes_ for bytes_ in allocated if bytes_ is not None),
            excesses(reports, forecast.peak_bytes),
            tuple(self.left_out),
        )
