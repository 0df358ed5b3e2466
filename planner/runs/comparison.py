"""A run held against its forecast: op by op, device by device, and what explains the difference.

The step's difference is taken apart by simulating again: with the measured times of the operations, then with what
devices spent between operations as well. What is left is late messages, waiting, and single operations that took
longer than the median of their kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..forecast import Timeline
from ..plan import COMPUTE, COPIES, Forecast, Kind, Plan
from ..simulate import evaluate, simulate
from .calibration import calibrate
from .trace import DeviceTrace, RunTrace

_OPTIMIZER = frozenset({Kind.STEP, Kind.PREDICT})


@dataclass(frozen=True)
class OpRow:
    """One kind of op of one stage: how many, median seconds forecast and measured, and the spread of the measured.

    `overhead_s`: median time around each op (see `OpTrace`), not in `measured_s`.
    """

    kind: str
    stage: int
    count: int
    forecast_s: float
    measured_s: float
    spread_s: float
    overhead_s: float


@dataclass(frozen=True)
class DeviceRow:
    """One device: seconds it computed, idle share and peak bytes, forecast and measured; and where idle time went.

    `overhead_s` was spent between operations, `waited_s` for messages, copies and reductions.
    """

    device: int
    forecast_busy_s: float
    busy_s: float
    forecast_bubble: float
    bubble: float
    overhead_s: float
    waited_s: float
    forecast_peak_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Cause:
    """A part of the difference: seconds of the step, measured less forecast."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Everything that `compare --measured` says. The causes add up to `step_s - forecast_step_s`."""

    forecast_step_s: float
    step_s: float
    causes: tuple[Cause, ...]
    ops: tuple[OpRow, ...]
    devices: tuple[DeviceRow, ...]
    remark: str


def compare_run(plan: Plan, trace: RunTrace) -> Comparison:
    """Raises RunTraceError when the run is of another plan, PlanError when the plan cannot be simulated.

    Of an asynchronous plan a step is the whole run that was traced.
    """
    plan = trace.require_plan(plan)
    timeline = simulate(plan)
    forecast = timeline.forecast()
    ops, devices = _op_rows(timeline, trace), _device_rows(forecast, trace)
    causes = _causes(plan, timeline, trace)
    return Comparison(forecast.step_s, trace.step_s, causes, ops, devices, _remark(causes, ops, devices, trace.step_s))


# ---------------------------------------------------------------- rows


def _median(values: Iterable[float]) -> float:
    from statistics import median

    return float(median(values))


def _op_rows(timeline: Timeline, trace: RunTrace) -> tuple[OpRow, ...]:
    """Compute ops and copies; messages are as late as their receivers look, so they have no row."""
    planned: dict[tuple[int, Kind], list[float]] = {}
    for device, copies in zip(timeline.devices, timeline.copies, strict=True):
        for timed in (*device.ops, *copies):
            planned.setdefault((timed.op.stage, timed.op.kind), []).append(timed.end_s - timed.start_s)
    seen: dict[tuple[int, Kind], list[tuple[float, float, float]]] = {}
    for traced in trace.devices:
        for x in traced.ops:
            if x.op.kind in COMPUTE | COPIES:
                seen.setdefault((x.op.stage, x.op.kind), []).append((x.duration_s, x.spread_s, x.overhead_s))
    return tuple(
        OpRow(kind.name, stage, len(rows), _median(planned[stage, kind]), *map(_median, zip(*rows, strict=True)))
        for (stage, kind), rows in sorted(seen.items())
    )


def _device_rows(forecast: Forecast, trace: RunTrace) -> tuple[DeviceRow, ...]:
    return tuple(
        DeviceRow(
            index, planned.busy_s, seen.busy_s, planned.bubble, seen.bubble,
            sum(x.overhead_s for x in seen.ops), sum(x.waited_s for x in seen.ops),
            planned.peak_bytes, seen.peak_bytes,
        )
        for index, (planned, seen) in enumerate(zip(forecast.devices, trace.devices, strict=True))
    )  # fmt: skip


# ---------------------------------------------------------------- causes


def _causes(plan: Plan, timeline: Timeline, trace: RunTrace) -> tuple[Cause, ...]:
    """The difference taken apart; sums to it."""
    model = plan.problem.model
    computing = evaluate(plan, calibrate(model, [trace], overhead=False)).step_s
    occupied = evaluate(plan, calibrate(model, [trace])).step_s
    planned = max(sum(t.end_s - t.start_s for t in d.ops if t.op.kind in _OPTIMIZER) for d in timeline.devices)
    optimizer = max(map(_optimizer_s, trace.devices)) - planned
    return (
        Cause("operations", computing - timeline.step_s),
        Cause("time between operations", occupied - computing),
        Cause("optimizer steps", optimizer),
        Cause("messages and waiting", trace.step_s - occupied - optimizer),
    )


def _optimizer_s(device: DeviceTrace) -> float:
    return sum(x.duration_s + x.overhead_s for x in device.ops if x.op.kind in _OPTIMIZER)


def _remark(causes: tuple[Cause, ...], ops: tuple[OpRow, ...], devices: tuple[DeviceRow, ...], step_s: float) -> str:
    """One line: the largest cause, and where it shows most."""
    total, largest = sum(cause.seconds for cause in causes), max(causes, key=lambda cause: abs(cause.seconds))
    if abs(total) < 0.02 * step_s:
        return "the step is within 2 % of its forecast"
    if largest.what == "operations":
        computed = [row for row in ops if Kind[row.kind] not in _OPTIMIZER]
        worst = max(computed, key=lambda row: row.count * abs(row.measured_s - row.forecast_s))
        ratio = f"{worst.measured_s / worst.forecast_s:.2f} times" if worst.forecast_s > 0 else "not as long as"
        return f"operations explain most: {worst.kind} of stage {worst.stage} takes {ratio} its forecast"
    if largest.what == "time between operations":
        device = max(devices, key=lambda row: row.overhead_s)
        return f"time between operations explains most: {1e3 * device.overhead_s:.3g} ms on device {device.device}"
    if largest.what == "optimizer steps":
        return "optimizer steps explain most: the cluster's devices have no memory_bandwidth to forecast them from"
    late = max(devices, key=lambda row: row.waited_s)
    return f"messages and waiting explain most: device {late.device} waits {1e3 * late.waited_s:.3g} ms a step"
