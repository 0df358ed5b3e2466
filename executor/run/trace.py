"""From the steps of a run to its trace (`planner.run_trace`): median times and memory of every op."""

from __future__ import annotations

import os
import platform
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ... import __version__
from ...planner.graph import Floats
from ...planner.plan import COMPUTE, IN_LINE, Op, Plan
from ...planner.runs import DeviceTrace, LaneTrace, OpTrace, RunTrace, plan_fingerprint
from ..place import OpRecord
from ..step import KEPT_OPS, StepRecord, lengthened
from ..wires import Transport
from .job import Job
from .reports import RankReport

KEPT_STEPS = 32
"""So many last steps are kept of a run of any length: enough for a median."""


class StepSamples:
    """One rank's steps, op by op; of an asynchronous plan its runs, each by its first update.

    Times come from the steps without memory tracking, the first step left out; where a run has none, from what there
    is. Memory comes from the tracked ones. Runs that are not as long as the first are left out.

    Attributes:
        timed_steps, tracked_steps: their numbers.
    """

    def __init__(self, order: Sequence[Op]) -> None:
        self._order = order
        most = max(1, min(KEPT_STEPS, KEPT_OPS // max(1, len(order))))
        self._timed: deque[tuple[int, list[OpRecord]]] = deque(maxlen=most)
        self._tracked: list[tuple[int, list[OpRecord]]] = []

    def add(self, step: int, record: StepRecord, tracked: bool) -> None:
        """One step more."""
        if len(record.ops) == len(self._order):
            (self._tracked if tracked else self._timed).append((step, record.ops))

    @property
    def _timing(self) -> list[tuple[int, list[OpRecord]]]:
        return list(self._timed) or self._tracked[1:] or self._tracked

    @property
    def timed_steps(self) -> tuple[int, ...]:
        return tuple(step for step, _ in self._timing)

    @property
    def tracked_steps(self) -> tuple[int, ...]:
        return tuple(step for step, _ in self._tracked)

    def ops(self) -> tuple[OpTrace, ...]:
        """Every op of the list; medians keep the order of what followed one another in every step."""
        if not self._order or not self._timing:
            return ()
        timing = [[(r.start_s, r.end_s, r.waited_s) for r in ops] for _, ops in self._timing]
        start, end, waited = np.array(timing).transpose(2, 0, 1)  # each [step, op]
        quartiles = np.quantile(end - start, (0.25, 0.5, 0.75), axis=0)
        columns = (
            np.median(start, 0),
            np.median(end, 0),
            quartiles[1],
            quartiles[2] - quartiles[0],
            np.median(waited, 0),
            np.median(self._overhead(start, end, waited), 0),
        )
        seconds = np.round(np.stack(columns, axis=1), 9).tolist()
        memory = [[(r.moved_bytes, r.live_bytes, r.peak_bytes) for r in ops] for _, ops in self._tracked]
        sizes = np.array(memory).max(axis=0).clip(min=0).tolist()
        return tuple(OpTrace(op, *s, *b) for op, s, b in zip(self._order, seconds, sizes, strict=True))

    def _overhead(self, start: Floats, end: Floats, waited: Floats) -> Floats:
        """Per [step, op]: from the end of the in-line op before to the start of an in-line op, less the waiting."""
        found = np.zeros_like(start)
        free, blocked = np.zeros(len(start)), np.zeros(len(start))
        for position, op in enumerate(self._order):
            blocked += waited[:, position]
            if op.kind in IN_LINE:
                found[:, position] = np.maximum(0.0, start[:, position] - free - blocked)
                free, blocked = end[:, position], np.zeros(len(start))
        return found


def environment(job: Job, transport: Transport) -> dict[str, str | int]:
    """What a run's times depend on besides the plan."""
    return {
        "contraflow": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "host_cpus": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "transport": type(transport).__name__.removesuffix("Transport").lower(),
        "dtype": str(job.dtype).removeprefix("torch."),
    }


def _busy_s(report: RankReport) -> float:
    return sum(op.duration_s for op in report.ops if op.op.kind in COMPUTE)


def by_device(plan: Plan, reports: Sequence[RankReport]) -> list[RankReport]:
    """One report a device, from those of all ranks in their order: times of its slowest lane, the most bytes of any."""
    team = plan.problem.cluster.team
    found = []
    for first in range(0, len(reports), team):
        mates = reports[first : first + team]
        fullest, slowest = max(mates, key=lambda mate: mate.peak_bytes), max(mates, key=_busy_s)
        allocated = [mate.allocated_bytes for mate in mates if mate.allocated_bytes is not None]
        reserved = [mate.reserved_bytes for mate in mates if mate.reserved_bytes is not None]
        ops = tuple(
            replace(op, live_bytes=max(o.live_bytes for o in same), peak_bytes=max(o.peak_bytes for o in same))
            for op, *same in zip(slowest.ops, *(mate.ops for mate in mates), strict=True)
        )
        found.append(
            replace(
                slowest,
                ops=ops,
                peak_bytes=fullest.peak_bytes,
                peak_op=fullest.peak_op,
                allocated_bytes=max(allocated, default=None),
                reserved_bytes=max(reserved, default=None),
            )
        )
    return found


def trace_of(
    plan: Plan, reports: Sequence[RankReport], step_times: Sequence[float], losses: Sequence[float]
) -> RunTrace:
    """The trace of a run from what every rank left at its end, in rank order."""
    first, model = reports[0], plan.problem.model
    starts = [step - first.first_step for step in first.timed_steps]
    step_s = statistics.median(sum(step_times[k : k + first.updates]) for k in starts) if starts else sum(step_times)
    ran = lengthened(plan, first.updates)
    devices = []
    for report, device in zip(by_device(plan, reports), plan.problem.cluster.devices, strict=True):
        busy = _busy_s(report)
        bubble = max(0.0, 1 - busy / step_s) if step_s > 0 else 0.0
        mates = [other for other in reports if other.rank == report.rank]
        lanes = tuple(LaneTrace(_busy_s(mate), mate.peak_bytes) for mate in mates) if len(mates) > 1 else ()
        devices.append(DeviceTrace(busy, bubble, report.peak_bytes, device.kind.speed, report.ops, lanes))
    return RunTrace(
        plan=plan_fingerprint(ran),
        model=model.name,
        model_fingerprint=model.fingerprint,
        micro_batch_size=model.micro_batch_size,
        stages=plan.stages,
        pipelines=ran.pipelines,
        stash=ran.stash,
        environment=first.environment,
        step_s=step_s,
        step_times=tuple(step_times),
        losses=tuple(losses),
        timed_steps=first.timed_steps,
        tracked_steps=first.tracked_steps,
        devices=tuple(devices),
        overhead=plan.problem.cluster.around,
    )
