"""A plan's forecast, a run of it, or both as Chrome trace events: what ui.perfetto.dev and chrome://tracing open.

A device is a process; its compute, its reductions, its copies to and from the host and every link are threads. Arrows
join a message's two ends and a stash's way to the host and back. Memory is a counter. Times are microseconds, whole
nanoseconds, from the start of the step, so that a forecast and a run of it lie over each other.

Perfetto draws an arrow only where its end is later than its beginning and both are in a slice. So a message that takes
no time lasts for a nanosecond, and its arrow as long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from ..basics import InputError, format_bytes, percent
from ..forecast import Timeline
from ..graph import StageCosts, messages, weights_offloaded
from ..plan import DeviceForecast, Forecast, Kind, Op, Plan
from ..runs import DeviceTrace, RunTrace
from .names import plain

_CATEGORY = {
    Kind.F: "forward", Kind.B: "backward", Kind.I: "backward", Kind.W: "backward", Kind.R: "recompute",
    Kind.REDUCE: "reduce", Kind.TIE: "reduce", Kind.GATHER: "gather", Kind.STEP: "optimizer", Kind.FREE: "wait",
    Kind.PREDICT: "predict",
    Kind.OFFLOAD: "copy", Kind.FETCH: "copy",
}  # fmt: skip
_COMPUTE, _REDUCE, _OUT, _IN, _SENDS, _RECEIVES = range(6)
_THREADS = ("compute", "reductions", "copies to the host", "copies from the host", "sends to device {}",
            "receives from device {}")  # fmt: skip
_ARROW = 1  # nanosecond: the shortest arrow that Perfetto draws
_LANES = {Kind.REDUCE: _REDUCE, Kind.TIE: _REDUCE, Kind.GATHER: _REDUCE, Kind.OFFLOAD: _OUT, Kind.FETCH: _IN}


class _Slice(NamedTuple):
    """One op on one thread, in nanoseconds; `flow`: the arrow that starts (+) or ends (-) here, 0 for none."""

    start: int
    end: int
    op: Op
    flow: int
    args: dict[str, Any]


@dataclass
class _Process:
    """A device or a host: its threads by (engine, device at the other end), its counters."""

    name: str
    label: str = ""
    threads: dict[tuple[int, int], list[_Slice]] = field(default_factory=dict)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(
        self, engine: int, op: Op, start_s: float, end_s: float, other: int = -1, flow: int = 0, **args: Any
    ) -> None:
        """One op of `engine`; messages say which device is at the other end."""
        start = _ns(start_s)
        made = _Slice(start, max(_ns(end_s), start + _ARROW) if flow else _ns(end_s), op, flow, args)
        self.threads.setdefault((engine, other), []).append(made)


def render(
    plan: Plan, timeline: Timeline, forecast: Forecast, run: RunTrace | None = None, only_run: bool = False
) -> str:
    """The trace as JSON text: the forecast, and after it the run where there is one.

    `only_run` leaves the forecast out. Raises InputError when the run is not one of this plan.
    """
    flows = count(1)
    other: dict[str, Any] = {"model": plain(plan.problem.model.name), "source": plain(plan.provenance.source)}
    processes: list[_Process] = []
    if not only_run:
        processes += _forecast(plan, timeline, forecast, flows)
        other["forecast_step_s"] = forecast.step_s
        if forecast.period_s is not None:
            other["forecast_period_s"] = forecast.period_s
    if run is not None:
        processes += _measured(plan, timeline.costs, run, flows)
        other["measured_step_s"] = run.step_s
    elif only_run:
        raise InputError("there is no run to draw alone")
    arrows = _arrows(processes)
    devices = len(plan.orders)
    events = [event for pid, process in enumerate(processes, 1) for event in _events(pid, process, arrows, devices)]
    return json.dumps({"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}, separators=(",", ":"))


# ---------------------------------------------------------------- what happened


def _sorted_name(number: int, count: int) -> str:
    """A number as long as the last of so many, so that names are in order where they are sorted: 02 of 16."""
    return str(number).rjust(len(str(max(0, count - 1))), "0")


def _device_processes(what: str, devices: Sequence[DeviceForecast | DeviceTrace]) -> list[_Process]:
    return [
        _Process(
            f"{what} device {_sorted_name(d, len(devices))}",
            f"bubble {percent(x.bubble)}, peak {format_bytes(x.peak_bytes)}",
        )
        for d, x in enumerate(devices)
    ]


def _forecast(plan: Plan, timeline: Timeline, forecast: Forecast, flows: Iterator[int]) -> list[_Process]:
    """Every device of a simulated step, then the hosts that hold stashes."""
    found = _device_processes("forecast", forecast.devices)
    for number, (process, device) in enumerate(zip(found, timeline.devices, strict=True)):
        for item in device.ops:
            process.add(_LANES.get(item.op.kind, _COMPUTE), item.op, item.start_s, item.end_s)
        process.counters["memory"] = _curve(*timeline.memory(number))
    receives = timeline.jobs.messages.receive.tolist()
    flat = [op for order in timeline.orders for op in order]
    for message, place in zip(timeline.messages, receives, strict=True):
        flow, delay = next(flows), message.arrival_s - message.end_s
        found[message.source].add(
            _SENDS, message.op, message.start_s, message.end_s, message.target, flow, bytes=message.bytes
        )
        found[message.target].add(
            _RECEIVES, flat[place], message.start_s + delay, message.arrival_s, message.source, -flow,
            bytes=message.bytes,
        )  # fmt: skip
    copied = [(d, item.op, item.start_s, item.end_s) for d, items in enumerate(timeline.copies) for item in items]
    _add_copies(plan, found, copied, timeline.costs, flows)
    nodes = len(timeline.host_memory)
    hosts = enumerate(timeline.host_memory)
    return found + [
        _Process(f"forecast host of node {_sorted_name(node, nodes)}", f"peak {format_bytes(memory.peak_bytes)}",
                 counters={"host memory": _curve(memory.times_s.tolist(), memory.bytes.tolist())})
        for node, memory in hosts if memory.peak_bytes
    ]  # fmt: skip


def _measured(plan: Plan, costs: StageCosts, run: RunTrace, flows: Iterator[int]) -> list[_Process]:
    """Every device of a run. A message takes from when it is posted to when it is known to be complete."""
    run.require_plan(plan)
    found = _device_processes("measured", run.devices)
    ran = [{item.op: item for item in device.ops} for device in run.devices]
    for process, device in zip(found, run.devices, strict=True):
        for item in device.ops:
            if item.op.kind in _CATEGORY and item.op.kind not in (Kind.OFFLOAD, Kind.FETCH):
                process.add(_LANES.get(item.op.kind, _COMPUTE), item.op, item.start_s, item.end_s)
        curve = _run_memory(device)
        if curve:
            process.counters["memory"] = curve
    for message in messages(plan, costs):
        sent, received, flow = ran[message.source][message.send], ran[message.target][message.receive], next(flows)
        found[message.source].add(_SENDS, sent.op, sent.start_s, sent.end_s, message.target, flow, bytes=message.bytes)
        found[message.target].add(
            _RECEIVES, received.op, received.start_s, received.end_s, message.source, -flow, bytes=message.bytes
        )
    copied = [
        (d, item.op, item.start_s, item.end_s)
        for d, device in enumerate(run.devices)
        for item in device.ops
        if item.op.kind in (Kind.OFFLOAD, Kind.FETCH)
    ]
    _add_copies(plan, found, copied, costs, flows)
    return found


def _add_copies(
    plan: Plan,
    found: list[_Process],
    copied: list[tuple[int, Op, float, float]],
    costs: StageCosts,
    flows: Iterator[int],
) -> None:
    """Copies to and from the host, each stash's two joined by an arrow."""
    away = weights_offloaded(plan)
    flow = {(op.stage, op.micro_batch): next(flows) for _, op, _, _ in copied if op.kind == Kind.OFFLOAD}
    for device, op, start_s, end_s in copied:
        number = flow.get((op.stage, op.micro_batch), 0)
        size = int(costs.stash_bytes[op.stage])
        if (op.stage, op.micro_batch) in away:
            size += int(costs.trained_bytes[op.stage])
        sign = 1 if op.kind == Kind.OFFLOAD else -1
        found[device].add(_LANES[op.kind], op, start_s, end_s, flow=sign * number, bytes=size)


def _curve(times_s: list[float], totals: list[int]) -> list[tuple[int, int]]:
    """A counter's points; several at one time are kept, so that a peak of no length is not lost."""
    return [(_ns(at), total) for at, total in zip(times_s, totals, strict=True)]


def _run_memory(device: DeviceTrace) -> list[tuple[int, int]]:
    """Most bytes during every in-line op from its start on, where it is known."""
    inline = [x for x in device.ops if x.op.kind in _CATEGORY and x.op.kind not in _LANES]
    points = [(_ns(x.start_s), x.peak_bytes) for x in inline if x.peak_bytes > 0]
    return sorted(points, key=lambda point: point[0])


# ---------------------------------------------------------------- as events


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _arrows(processes: list[_Process]) -> dict[int, tuple[int, int]]:
    """Where every arrow starts and ends: at the start of its first slice, and a nanosecond later, or when its second
    slice begins.

    A measured RECV is posted before its message is sent; an arrow that would go back in time is left out.
    """
    ends: dict[int, list[_Slice | None]] = {}
    for process in processes:
        for item in (item for slices in process.threads.values() for item in slices if item.flow):
            ends.setdefault(abs(item.flow), [None, None])[item.flow < 0] = item
    found: dict[int, tuple[int, int]] = {}
    for flow, (first, second) in ends.items():
        if first is not None and second is not None and first.start + _ARROW <= second.end:
            found[flow] = first.start, max(first.start + _ARROW, second.start)
    return found


def _events(pid: int, process: _Process, arrows: dict[int, tuple[int, int]], devices: int) -> Iterator[dict[str, Any]]:
    """A process's names, its threads in order, its counters."""
    yield _meta(pid, 0, "process_name", name=process.name)
    yield _meta(pid, 0, "process_sort_index", sort_index=pid)
    yield _meta(pid, 0, "process_labels", labels=process.label)
    tid = 0
    for (engine, other), slices in sorted(process.threads.items()):
        for number, lane in enumerate(_lanes(slices)):
            tid += 1
            name = _THREADS[engine].format(_sorted_name(other, devices)) + (f", {number + 1}" if number else "")
            yield _meta(pid, tid, "thread_name", name=name)
            yield _meta(pid, tid, "thread_sort_index", sort_index=tid)
            for item in lane:
                yield from _slice(pid, tid, item, arrows.get(abs(item.flow)))
    for name, points in process.counters.items():
        for at, total in points:
            yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": _us(at), "args": {"bytes": total}}


def _meta(pid: int, tid: int, name: str, /, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _lanes(slices: list[_Slice]) -> list[list[_Slice]]:
    """As few threads as hold the slices without overlap."""
    lanes: list[list[_Slice]] = []
    for item in sorted(slices, key=lambda x: (x.start, x.end)):
        free = next((lane for lane in lanes if lane[-1].end <= item.start), None)
        if free is None:
            lanes.append([item])
        else:
            free.append(item)
    return lanes


def _slice(pid: int, tid: int, item: _Slice, arrow: tuple[int, int] | None) -> Iterator[dict[str, Any]]:
    """A complete event, then the beginning or the end of an arrow in it."""
    op = item.op
    where = {"pid": pid, "tid": tid}
    args = {"stage": op.stage} | ({"micro_batch": op.micro_batch} if op.micro_batch >= 0 else {}) | item.args
    category = _CATEGORY.get(op.kind, "message")
    times = {"ts": _us(item.start), "dur": _us(item.end - item.start)}
    yield {"ph": "X", "name": str(op), "cat": category, **where, **times, "args": args}
    if arrow is not None:
        starts = item.flow > 0
        end = {"ph": "s"} if starts else {"ph": "f", "bp": "e"}
        at = _us(arrow[0] if starts else arrow[1])
        yield {**end, "name": category, "cat": category, "id": abs(item.flow), **where, "ts": at}
