"""Runs a plan: as threads of this process, as processes spawned here, or as one rank under torchrun."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..models import Dataset, LayeredModel
from ..planner.plan import Plan
from .errors import RunError
from .place import require_device
from .rank import Job, RankReport, StepReport, run_rank
from .replica import reduce_groups
from .trace import RunTrace, save_trace
from .validate import find_data, find_model, match_model, require_executable
from .weights import DEFAULT_RATES

if TYPE_CHECKING:
    from torch import Tensor

TRACKED_STEPS = 2
"""Memory is followed in so many first steps, and not afterwards, so that it costs no time."""

OnStep = Callable[[int, float, float], None]
"""Called with (step, loss, seconds) as steps complete."""


@dataclass(frozen=True)
class RunResult:
    """What training gave.

    Attributes:
        losses: mean over the micro-batches, one a step.
        step_s: median step time in seconds, the first step left out and the memory-tracked ones where there
            are others. step_times: all of them.
        peak_bytes: measured per device, in the tracked steps. allocated_bytes: the most that CUDA's allocator gave
            every rank's process, with its rounding and the libraries' workspaces; None on the CPU.
        forecast_step_s, forecast_peak_bytes: what the plan said.
        first_step: 0, or where the run resumed.
        state: final tensors by checkpoint key, if asked for.
        trace: the last step, op by op.
    """

    losses: tuple[float, ...]
    step_s: float
    step_times: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    forecast_step_s: float
    forecast_peak_bytes: tuple[int, ...]
    first_step: int
    trace: RunTrace
    state: dict[str, Tensor] | None = field(default=None, repr=False)
    allocated_bytes: tuple[int, ...] | None = None


def execute(
    plan: Plan,
    steps: int = 10,
    model: LayeredModel | str | None = None,
    data: Dataset | str | None = None,
    seed: int = 0,
    lr: float | None = None,
    dtype: torch.dtype = torch.float32,
    transport: str = "processes",
    on_step: OnStep | None = None,
    threads_per_process: int = 1,
    trace: str | Path | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    self_check: bool = True,
    return_state: bool = False,
    device: str = "cpu",
    compiled: bool = False,
) -> RunResult:
    """Trains `steps` steps as the plan says and measures.

    Args:
        model: default: the registry's model of the plan's name. A LayeredModel, or a registry name or
            "package.module:function", which every process resolves by itself.
        data: default: the model's own.
        seed: fixes parameters, data order and dropout, whatever the plan.
        lr: default: `DEFAULT_RATES` of the plan's optimizer.
        transport: "threads", or "processes" (gloo; joined, not spawned, when RANK and WORLD_SIZE are set).
        trace, checkpoint: where to write the last step's trace, and the state after the last step.
        resume: go on from the newest checkpoint there, made by any plan of the same model.
        self_check: compare every stage program with plain torch first.
        device: "cpu", or "cuda": rank r of a machine on its device r, modulo how many it has (docs/cuda.md).
        compiled: run the stage programs through torch's compiler where that is possible.

    Raises:
        RunError: bad input, found before training starts. ExecutionError: a rank failed.
    """
    if transport not in ("processes", "threads"):
        raise RunError(f"unknown transport {transport!r}; known: processes, threads")
    job = prepare(
        plan, steps, model, data, seed, lr, dtype, checkpoint, resume, self_check, return_state, device, compiled
    )
    collected = Collector(len(plan.orders), on_step)
    run = _runner(transport)
    result = collected.result(plan, run(job, collected, threads_per_process))
    if trace is not None and os.environ.get("RANK", "0") == "0":
        save_trace(result.trace, trace)
    return result


def prepare(
    plan: Plan,
    steps: int = 10,
    model: LayeredModel | str | None = None,
    data: Dataset | str | None = None,
    seed: int = 0,
    lr: float | None = None,
    dtype: torch.dtype = torch.float32,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    self_check: bool = True,
    return_state: bool = False,
    device: str = "cpu",
    compiled: bool = False,
) -> Job:
    """The job that every rank runs, its inputs checked; arguments and errors as for `execute`."""
    require_executable(plan)
    require_device(device)
    if compiled:
        from .compiled import require_compiler

        require_compiler(device)
    if steps < 1:
        raise RunError(f"steps must be at least 1, got {steps}")
    if resume and checkpoint is None:
        raise RunError("resume needs a checkpoint directory")
    if resume and checkpoint is not None:
        from .checkpoint import check_resumable

        check_resumable(checkpoint, plan)
    found = find_model(plan, model)
    match_model(plan, found, find_data(found, data), dtype)
    rate = DEFAULT_RATES[plan.problem.workload.optimizer] if lr is None else lr
    folder = None if checkpoint is None else str(checkpoint)
    return Job(
        plan, _portable(plan, found, model), data, steps, seed, rate, dtype, TRACKED_STEPS,
        folder, resume, self_check, return_state, device, compiled,
    )  # fmt: skip


def _portable(plan: Plan, found: LayeredModel, given: LayeredModel | str | None) -> LayeredModel | str:
    """What other processes get: a name where there is one, since a name always pickles."""
    if isinstance(given, LayeredModel):
        return found
    return plan.problem.model.name if given is None else given


Runner = Callable[[Job, "Collector", int], Sequence[RankReport]]


def _runner(transport: str) -> Runner:
    from . import processes

    if transport == "threads":
        return run_threads
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return processes.run_joined
    return processes.run_processes


class Collector:
    """Puts the ranks' step reports together; tells `on_step` when all ranks have ended a step."""

    def __init__(self, ranks: int, on_step: OnStep | None) -> None:
        self._ranks = ranks
        self._on_step = on_step
        self._pending: dict[int, list[StepReport]] = {}
        self.losses: list[float] = []
        self.times: list[float] = []

    def add(self, report: StepReport) -> None:
        """One rank's report of one step."""
        reports = self._pending.setdefault(report.step, [])
        reports.append(report)
        if len(reports) < self._ranks:
            return
        del self._pending[report.step]
        losses = {m: loss for r in reports for m, loss in r.losses.items()}
        self.losses.append(sum(losses[m] for m in sorted(losses)) / max(1, len(losses)))
        self.times.append(max(r.seconds for r in reports))
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
        allocated = [report.allocated_bytes for report in reports]
        return RunResult(
            tuple(self.losses),
            statistics.median(times[TRACKED_STEPS:] or times[1:] or times),
            tuple(times),
            peaks,
            forecast.step_s,
            forecast.peak_bytes,
            reports[0].first_step,
            RunTrace.of(reports, times[-1], self.losses),
            state or None,
            None if None in allocated else tuple(bytes_ for bytes_ in allocated if bytes_ is not None),
        )


def run_threads(job: Job, collected: Collector, threads: int) -> list[RankReport]:
    """Every rank a thread of this process; torch's own thread count is left as it is."""
    import queue
    import threading

    from .errors import Aborted
    from .threads import Hub

    ranks = len(job.plan.orders)
    hub = Hub(ranks, {"all": range(ranks), **reduce_groups(job.plan)})
    inbox: queue.Queue[StepReport | RankReport | BaseException] = queue.Queue()

    def work(rank: int) -> None:
        try:
            inbox.put(run_rank(job, hub.transport(rank), inbox.put))
        except BaseException as error:
            hub.abort()
            inbox.put(error)

    workers = [threading.Thread(target=work, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    for worker in workers:
        worker.start()
    finished: dict[int, RankReport] = {}
    failures: list[BaseException] = []
    try:
        while len(finished) + len(failures) < ranks:
            message: Any = inbox.get()
            if isinstance(message, StepReport):
                collected.add(message)
            elif isinstance(message, RankReport):
                finished[message.rank] = message
            else:
                failures.append(message)
    finally:
        if len(finished) < ranks:
            hub.abort()
        for worker in workers:
            worker.join()
    if failures:
        raise next((f for f in failures if not isinstance(f, Aborted)), failures[0])
    return [finished[rank] for rank in range(ranks)]
