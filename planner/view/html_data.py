"""What the HTML page draws, as JSON: columns of the simulator's figures, nothing worked out anew.

An *item* is an op that has a job in the simulation, and every REDUCE, TIE and GATHER, which has its reduction's job;
items stand in the order of the devices' lists. Columns have one entry an item. A *coded* column is {"table": values,
"index": for every entry its value's place in the table}. Times are seconds from the start of the step, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..forecast import jobs_of_ops
from ..graph import Floats, Ints, copied_bytes
from ..plan import COLLECTIVES, COPIES, IN_LINE, Forecast, Kind, Plan
from ..runs import calibrate, compare_run
from ..search import facts
from .critical import CriticalPath, Waiting, all_waiting
from .palette import direction
from .reasons import binding
from .run_path import RunPath
from .text import among, count_pipelines, device_limit, updating

if TYPE_CHECKING:
    from ..forecast import Timeline
    from ..runs import DeviceTrace, RunTrace


def page_data(plan: Plan, timeline: Timeline, forecast: Forecast, run: RunTrace | None = None) -> dict[str, Any]:
    """Everything the page shows. Raises RunTraceError when the run is not of this plan."""
    items = _Items(plan, timeline)
    path = CriticalPath.of(timeline)
    return {
        "model": plan.problem.model.name,
        "source": plan.provenance.source or "plan",
        "pipelines": count_pipelines(plan),
        "micro_batches": plan.problem.workload.micro_batches,
        "updating": updating(plan),
        "kinds": [kind.name for kind in Kind],
        "stages": [list(stage) for stage in plan.stages],
        "routes": _routes(plan),
        "route_of": _route_of(plan),
        "forecast": {
            "step_s": forecast.step_s,
            "period_s": forecast.period_s,
            "bound_s": forecast.bound_s or None,
            "gap": forecast.gap,
            "among": among(plan, forecast),
            "bubble": forecast.bubble,
            "status": forecast.status,
            "binding": binding(facts(plan), len(plan.orders)),
            "path": [items.of_job(job)[0] for job in path.jobs],
        },
        "devices": _devices(plan, forecast),
        "memory": [_curve(timeline, device) for device in range(len(timeline.device_memory))],
        "items": items.columns(),
        "waits": items.waits(),
        "run": None if run is None else _measured(plan, items, run) | _explained(plan, run),
    }


def coded(values: Ints | Floats) -> dict[str, list[Any]]:
    """A column as a table of its values, ascending, and for every entry its place there."""
    table, index = np.unique(values, return_inverse=True)
    return {"table": table.tolist(), "index": index.reshape(-1).tolist()}


class _Items:
    """Which ops are items, and their columns."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        self.plan, self.timeline, self.jobs = plan, timeline, timeline.jobs
        ops = self.jobs.ops
        self.op = np.flatnonzero(
            (self.jobs.rank[: len(ops)] >= 0) | np.isin(ops.kind, [kind.value for kind in COLLECTIVES])
        )
        self.job = jobs_of_ops(self.jobs)[self.op]
        self._number = np.full(len(self.jobs.start), -1, dtype=np.int64)
        self._number[self.job[::-1]] = np.arange(len(self.job))[::-1]
        self._reductions = {job: np.flatnonzero(self.job == job).tolist() for job in self.jobs.reduce_job.values()}

    def of_job(self, job: int) -> list[int]:
        """The items of a job: several for a reduction, one on every device."""
        return self._reductions.get(job) or [int(self._number[job])]

    def columns(self) -> dict[str, Any]:
        """Kind, stage, micro-batch (-1: none), device, target (of messages, else -1), start, duration, bytes, and the
        latency after which a message has arrived."""
        ops, messages = self.jobs.ops, self.jobs.messages
        target, latency = np.full(len(self.jobs.start), -1), np.zeros(len(self.jobs.start))
        target[messages.send] = ops.device[messages.receive]
        latency[messages.send] = self.jobs.message_latency_s
        return {
            "kind": ops.kind[self.op].tolist(),
            "stage": ops.stage[self.op].tolist(),
            "micro_batch": ops.micro_batch[self.op].tolist(),
            "device": ops.device[self.op].tolist(),
            "target": target[self.job].tolist(),
            "start_s": coded(self.jobs.start[self.job]),
            "duration_s": coded(self.jobs.duration[self.job]),
            "latency_s": coded(latency[self.job]),
            "bytes": coded(self._bytes()),
        }

    def _bytes(self) -> Ints:
        """Of messages, copies and reductions; 0 for what computes."""
        ops, costs, messages = self.jobs.ops, self.timeline.costs, self.jobs.messages
        size = np.zeros(len(self.jobs.start), dtype=np.int64)
        size[messages.send] = messages.bytes
        copies = ops.where(*sorted(COPIES))
        size[copies] = copied_bytes(self.plan, costs, ops, copies)
        tied = {tie.number: tie.trained_bytes for tie in costs.ties}
        for (kind, number, _), job in self.jobs.reduce_job.items():
            size[job] = tied[number] if kind == Kind.TIE else costs.own_trained_bytes[number]
        return np.asarray(size[self.job], dtype=np.int64)

    def waits(self) -> dict[str, Any]:
        """What items wait for. `count`: of how many items each waits; one entry each, item after item, in `back` (its
        number, counted back from the waiting item's) and `lag_s`."""
        before, after, lag = self.waiting
        count = np.bincount(after, minlength=len(self.op))
        return {"count": count.tolist(), "back": (after - before).tolist(), "lag_s": coded(lag)}

    @cached_property
    def waiting(self) -> Waiting:
        """The same as pairs of items, sorted by the waiting one."""
        found = all_waiting(self.jobs)
        before, after, lag = self._pairs(found.before, found.after, found.lag)
        order = np.lexsort((before, after))
        before, after, lag = before[order], after[order], lag[order]
        once = np.append(True, (before[1:] != before[:-1]) | (after[1:] != after[:-1]) | (lag[1:] != lag[:-1]))
        once = once[: len(before)]
        return Waiting(before[once], after[once], lag[once])

    def _pairs(self, before: Ints, after: Ints, lag: Floats) -> tuple[Ints, Ints, Floats]:
        """Jobs to items. A reduction waits on every device; what follows it waits for the item of its own device."""
        ops = self.jobs.ops
        plain = (before < len(ops)) & (after < len(ops))
        parts = [(self._number[before[plain]], self._number[after[plain]], lag[plain])]
        others = zip(before[~plain].tolist(), after[~plain].tolist(), lag[~plain].tolist(), strict=True)
        extra: list[tuple[int, int, float]] = []
        for a, b, seconds in others:
            for waiting in self.of_job(b):
                device = ops.device[self.op[waiting]]
                candidates = self.of_job(a)
                here = [item for item in candidates if ops.device[self.op[item]] == device]
                extra.append(((here or candidates)[0], waiting, seconds))
        if extra:
            columns = list(zip(*extra, strict=True))
            parts.append((np.array(columns[0]), np.array(columns[1]), np.array(columns[2], dtype=np.float64)))
        return (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            np.concatenate([part[2] for part in parts]),
        )


def _routes(plan: Plan) -> list[dict[str, Any]]:
    """Every pipeline: its hue (0 runs down the devices, 1 up), and which of its stages come to a device again."""
    return [
        {
            "hue": direction(p, len(plan.orders)),
            "again": [device in p.forward[:stage] for stage, device in enumerate(p.forward)],
            "stash": list(row),
        }
        for p, row in zip(plan.pipelines, plan.stash, strict=True)
    ]


def _route_of(plan: Plan) -> list[int]:
    """Pipeline of every micro-batch."""
    found = {m: k for k, p in enumerate(plan.pipelines) for m in p.micro_batches}
    return [found.get(m, 0) for m in range(max(found, default=-1) + 1)]


def _devices(plan: Plan, forecast: Forecast) -> list[dict[str, Any]]:
    kinds = [device.kind.name for device in plan.problem.cluster.devices]
    return [
        {
            "kind": kinds[index],
            "busy_s": device.busy_s,
            "bubble": device.bubble,
            "peak_bytes": device.peak_bytes,
            "peak_at_s": device.peak_at_s,
            "peak_parts": list(map(list, device.peak_parts)),
            "limit_bytes": device_limit(plan, index),
        }
        for index, device in enumerate(forecast.devices)
    ]


def _curve(timeline: Timeline, device: int) -> dict[str, Any]:
    """Memory of a device: at every time at which it changes the most it holds then (`most`), and what stays."""
    times, bytes_ = map(np.asarray, timeline.memory(device))
    first = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
    stays = bytes_[np.append(first[1:], len(times)) - 1]
    most = np.maximum.reduceat(bytes_, first)
    return {"times_s": coded(times[first]), "stays": coded(stays), "most": coded(most)}


def _measured(plan: Plan, items: _Items, run: RunTrace) -> dict[str, Any]:
    """A run of the plan: times of every item, to the nanosecond, which item decided when each started (-1: none), and
    the path of those that decided when the last one did. Raises RunTraceError when it is of another plan."""
    run.require_plan(plan)
    ran = [timed for device in run.devices for timed in device.ops]
    path = RunPath.of(items.jobs, items.op, items.waiting, run)
    return {
        "step_s": run.step_s,
        "devices": [{"busy_s": d.busy_s, "bubble": d.bubble, "peak_bytes": d.peak_bytes} for d in run.devices],
        "memory": [_held(device) for device in run.devices],
        "start_s": [round(ran[k].start_s, 9) for k in items.op],
        "end_s": [round(ran[k].end_s, 9) for k in items.op],
        "decided": path.decided,
        "path": path.items,
    }


def _explained(plan: Plan, run: RunTrace) -> dict[str, Any]:
    """What binds when the plan is simulated with the times that the run measured, and what the forecast missed."""
    model = calibrate(plan.problem.model, [run])
    found = facts(replace(plan, problem=replace(plan.problem, model=model), forecast=None))
    return {
        "binding": binding(found, len(plan.orders)),
        "simulated_s": found.step_s,
        "remark": compare_run(plan, run).remark,
    }


def _held(device: DeviceTrace) -> dict[str, list[Any]]:
    """The most that a run held on a device during each op in line, where it is known."""
    timed = [t for t in device.ops if t.op.kind in IN_LINE and t.peak_bytes > 0]
    return {
        "start_s": [round(t.start_s, 9) for t in timed],
        "end_s": [round(t.end_s, 9) for t in timed],
        "peak_bytes": [t.peak_bytes for t in timed],
    }


def columns_of(data: Mapping[str, Any]) -> list[Any]:
    """The entries of a coded column."""
    return [data["table"][place] for place in data["index"]]
