"""A plan for the terminal: one row of cells a device where that fits 80 columns, and a table always."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..basics import format_bytes, format_seconds
from ..graph import update_size
from ..plan import COPIES, PROVEN_GAP, Forecast, Kind, Op, Plan, gap_of
from ..problem import FLUSH
from .names import plain, wrap

if TYPE_CHECKING:
    from ..forecast import Timeline

WIDTH = 80
_PASSES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R})
_UNLIMITED = 1 << 59  # bytes
_EVEN = 1e-6  # columns; times that close to the edge of one are on it
_FILL = {
    Kind.F: "-", Kind.B: "=", Kind.I: "~", Kind.W: "+", Kind.R: "%", Kind.REDUCE: "^", Kind.STEP: "#",
    Kind.OFFLOAD: ">", Kind.FETCH: "<", Kind.TIE: "&", Kind.PREDICT: "?", Kind.GATHER: "*",
}  # fmt: skip
_MEANING = {
    Kind.F: "forward", Kind.B: "backward", Kind.I: "backward for inputs", Kind.W: "backward for weights",
    Kind.R: "recompute", Kind.REDUCE: "reduce", Kind.STEP: "optimizer step",
    Kind.OFFLOAD: "stash to the host", Kind.FETCH: "stash from the host", Kind.TIE: "reduce tied parameters",
    Kind.PREDICT: "predict weights", Kind.GATHER: "gather parameters",
}  # fmt: skip


def render(plan: Plan, timeline: Timeline, forecast: Forecast, width: int = WIDTH) -> str:
    """Heading, timeline (a line of apology for plans too large for one) and table of a plan."""
    drawn = timeline_text(plan, timeline, width)
    parts = [heading(plan, forecast, width), drawn, memory_text(timeline, width), device_table(plan, forecast, width)]
    return "\n\n".join(part for part in parts if part) + "\n"


def count_pipelines(plan: Plan) -> str:
    """How many pipelines a plan has; those that differ only in what happens to their stashes count as one."""
    count = len({(pipeline.forward, pipeline.backward) for pipeline in plan.pipelines})
    return f"{count} pipeline{'s' * (count != 1)}"


def heading(plan: Plan, forecast: Forecast, width: int = WIDTH) -> str:
    """What the plan is and what it promises, wrapped to `width`."""
    source = plan.provenance.source or "plan"
    shape = (
        f"{plain(plan.problem.model.name)}: {plain(source)}, {len(plan.stages)} stages on {len(plan.orders)} devices, "
        f"{count_pipelines(plan)}, "
        f"{plan.problem.workload.micro_batches} micro-batches{updating(plan)}{_on_two_devices(plan)}{_shared(plan)}"
    )
    said = shape, promise(forecast), samples(plan, forecast), among(plan, forecast)
    return "\n".join(line for text in said for line in wrap(text, width))


def samples(plan: Plan, forecast: Forecast) -> str:
    """Samples of a step and of a second, and of whose ranks, where a micro-batch has several or a device is a team."""
    size, team = plan.problem.model.micro_batch_size, plan.problem.cluster.team
    if size == 1 and team == 1 and not plan.provenance.points:
        return ""
    count = size * plan.problem.workload.micro_batches
    ranks = f", devices are teams of {team}: {team * len(plan.orders)} ranks" if team > 1 else ""
    return f"{count} samples in micro-batches of {size}, {samples_per_s(plan, forecast):.4g} a second{ranks}"


def samples_per_s(plan: Plan, forecast: Forecast) -> float:
    """Samples a second: of a step, or without a flush of a period; infinite where they take no time."""
    size, seconds = plan.problem.model.micro_batch_size, forecast.objective_s
    count = size if forecast.period_s is not None else size * plan.problem.workload.micro_batches
    return count / seconds if seconds > 0 else math.inf


def updating(plan: Plan) -> str:
    """Weight policy and micro-batches an update of a plan without a flush; nothing for the others."""
    if plan.weights == FLUSH:
        return ""
    size = update_size(plan)
    return f", weights {plain(plan.weights)}, an update every {f'{size} micro-batches' if size > 1 else 'micro-batch'}"


def _on_two_devices(plan: Plan) -> str:
    """How many stages have two devices, where some have."""
    pairs = [list(zip(p.forward, p.backward, strict=True)) for p in plan.pipelines]
    separate = sum(any(pair[s][0] != pair[s][1] for pair in pairs) for s in range(len(plan.stages)))
    return f", {separate} of {len(plan.stages)} stages run backward on another device" if separate else ""


def _shared(plan: Plan) -> str:
    """Whether replicas share optimizers."""
    return ", optimizers shared by replicas" if plan.problem.workload.sharded else ""


def promise(forecast: Forecast) -> str:
    """Step, or period and run, with bound, gap and bubble of a forecast in one line."""
    parts = [f"step {format_seconds(forecast.step_s)}"]
    if forecast.period_s is not None:
        parts = [f"period {format_seconds(forecast.period_s)} a micro-batch"]
    if forecast.bound_s > 0:
        parts.append(f"bound {format_seconds(forecast.bound_s)}")
    if forecast.gap is not None:
        parts.append(f"gap {percent(forecast.gap)}")
    if forecast.period_s is not None:
        parts.append(f"run {format_seconds(forecast.step_s)}")
    parts += [f"bubble {percent(forecast.bubble)}", forecast.status]
    return ", ".join(parts)


def among(plan: Plan, forecast: Forecast) -> str:
    """What more is proven of a part of the space, beside the gap of all of it; empty where there is no more."""
    part, bound_s = plan.provenance.among, plan.provenance.among_bound_s
    if not part or not bound_s:
        return ""
    gap = max(0.0, gap_of(forecast.objective_s, bound_s))
    if gap <= PROVEN_GAP:
        return f"optimal among {plain(part)}"
    return f"bound {format_seconds(bound_s)}, gap {percent(gap)} among {plain(part)}"


def percent(share: float) -> str:
    """A share for people: 0.2727 -> "27.3 %", exactly nothing -> "0 %"."""
    return "0 %" if abs(share) < 5e-7 else f"{100 * share:.1f} %" if abs(share) >= 5e-4 else f"{100 * share:.2g} %"


# -------------------------------------------------------------------- timeline


def timeline_text(plan: Plan, timeline: Timeline, width: int = WIDTH) -> str:
    """One row a device, `F3` the forward of micro-batch 3; blanks are idle. Never wider than `width`.

    Copies to and from the host have rows of their own under their device's, marked > and <.
    """
    labels, rows = _rows(timeline)
    columns_per_s = _columns_per_s(timeline, width)
    if columns_per_s is None:
        return "(too many operations for a terminal timeline: contraflow show --as svg)"
    used = round(max((end for row in rows for _, _, end in row), default=0.0) * columns_per_s)
    lines = [
        f"{label:>{max(map(len, labels))}} |{_row(row, columns_per_s, used)}|"
        for label, row in zip(labels, rows, strict=True)
    ]
    kinds = sorted({op.kind for row in rows for op, start, end in row if end > start})
    legend = ", ".join(f"{kind.name if kind < Kind.REDUCE else _FILL[kind]} {_MEANING[kind]}" for kind in kinds)
    return "\n".join([*lines, *textwrap.wrap(f"({legend}; blank: idle)", width)])


def _columns_per_s(timeline: Timeline, width: int) -> float | None:
    """The scale of the picture; None for a plan that is too large for one."""
    labels, rows = _rows(timeline)
    return _scale([bar for row in rows for bar in row], width - max(map(len, labels)) - 3)


def memory_text(timeline: Timeline, width: int = WIDTH) -> str:
    """Memory under the same time axis, a row a device and a row a host that holds stashes: most bytes of each column.

    In tenths of the largest peak of any device (of any host), rounded up: * is the tenth. Empty where the timeline is
    not drawn either, and where no memory is used.
    """
    columns_per_s = _columns_per_s(timeline, width)
    if columns_per_s is None:
        return ""
    devices = [(f"m{d}", *timeline.memory(d)) for d in range(len(timeline.device_memory))]
    hosts = [
        (f"h{n}", x.times_s.tolist(), x.bytes.tolist()) for n, x in enumerate(timeline.host_memory) if x.peak_bytes
    ]
    size, lines = max(map(len, _rows(timeline)[0])), []
    for what, group in (("device", devices), ("host", hosts)):
        most = max((max(totals) for _, _, totals in group), default=0)
        if most:
            lines.append(f"memory of every {what}, in tenths of {format_bytes(most)} (*: the last)")
            used = round(timeline.step_s * columns_per_s)
            lines += [
                f"{name:>{size}} |{_level_row(times, totals, most, columns_per_s, used)}|"
                for name, times, totals in group
            ]
    return "\n".join(lines)


def _level_row(times: Sequence[float], totals: Sequence[int], most: int, columns_per_s: float, used: int) -> str:
    """A digit a column: the most bytes in it."""
    levels = [0] * max(used, 1)
    for at, until, total in zip(times, [*times[1:], math.inf], totals, strict=True):
        first = min(int(at * columns_per_s + _EVEN), len(levels) - 1)
        last = len(levels) if until == math.inf else math.ceil(until * columns_per_s - _EVEN)
        for column in range(first, max(first + 1, min(last, len(levels)))):
            levels[column] = max(levels[column], -(-total * 10 // most))
    return "".join("*" if level >= 10 else str(level) if level else " " for level in levels)


def _rows(timeline: Timeline) -> tuple[list[str], list[list[tuple[Op, float, float]]]]:
    labels, rows = [], []
    for number, (device, copies) in enumerate(zip(timeline.devices, timeline.copies, strict=True)):
        lanes = {"": device.ops}
        for kind, mark in ((Kind.OFFLOAD, ">"), (Kind.FETCH, "<")):
            lane = tuple(item for item in copies if item.op.kind == kind)
            lanes |= {mark: lane} if lane else {}
        labels += [f"d{number}{mark}" for mark in lanes]
        rows += [[(item.op, item.start_s, item.end_s) for item in lane] for lane in lanes.values()]
    return labels, rows


def _scale(bars: Sequence[tuple[Op, float, float]], room: int) -> float | None:
    """Columns per second; whole columns per time unit where there is a unit. None: too fine to draw."""
    computed = [(start, end) for op, start, end in bars if op.kind not in COPIES]
    durations = [end - start for op, start, end in bars if end > start and op.kind in _PASSES]
    if not durations:
        return None
    unit, total = min(durations), max(end for _, _, end in bars)
    if total / unit > room:
        return None
    even = all(abs(t / unit - round(t / unit)) < 1e-3 for start, end in computed for t in (start, end))
    return (room // round(total / unit)) / unit if even else room / total


def _row(bars: Sequence[tuple[Op, float, float]], columns_per_s: float, used: int) -> str:
    cells = [" "] * used
    for op, start, end in bars:
        first, last = round(start * columns_per_s), round(end * columns_per_s)
        if last > first:
            cells[first:last] = _cell(op, last - first)
    return "".join(cells)


def _cell(op: Op, width: int) -> str:
    """`F12---`, or only the number, or only the fill where there is no room for more."""
    fill = _FILL[op.kind]
    if op.kind not in _PASSES | COPIES:
        return fill * width
    number = str(op.micro_batch)
    if op.kind in COPIES:
        return number.ljust(width, fill) if len(number) < width else fill * width
    named = f"{op.kind.name}{number}"
    if len(named) <= width:
        return named.ljust(width, fill)
    return number.ljust(width, fill) if op.kind == Kind.F and len(number) <= width else fill * width


# ----------------------------------------------------------------------- table


def device_table(plan: Plan, forecast: Forecast, width: int = WIDTH) -> str:
    """Per device: busy, bubble, peak, limit and what made the peak."""
    rows = [["device", "busy", "bubble", "peak", "limit"]]
    made = ["what made the peak"]
    for index, device in enumerate(forecast.devices):
        limit = device_limit(plan, index)
        flag = " OVER" if device.peak_bytes > limit else ""
        rows.append(
            [
                str(index),
                format_seconds(device.busy_s),
                percent(device.bubble),
                format_bytes(device.peak_bytes) + flag,
                limit_text(limit),
            ]
        )
        made.append(peak_text(device.peak_parts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for row, text in zip(rows, made, strict=True):
        start = "".join(f"{cell:>{size}}  " for cell, size in zip(row, widths, strict=True))
        wrapped = _wrap_parts(text, max(16, width - left)) or [""]
        lines.append((start + wrapped[0]).rstrip())
        lines += [" " * left + more for more in wrapped[1:]]
    return "\n".join(lines)


def _wrap_parts(text: str, width: int) -> list[str]:
    """Wraps at commas: a part stays on one line where it can."""
    glued = ", ".join(part.replace(" ", "\u00a0") for part in text.split(", "))
    return [line.replace("\u00a0", " ") for line in textwrap.wrap(glued, width)]


def peak_text(parts: Sequence[tuple[str, int]]) -> str:
    """The categories at the peak, largest first."""
    ranked = sorted((part for part in parts if part[1]), key=lambda part: -part[1])
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in ranked)


def limit_text(limit: int) -> str:
    """Bytes that a device may hold, for people: beyond what any computer has there is no limit."""
    return format_bytes(limit) if limit < _UNLIMITED else "any size"


def device_limit(plan: Plan, device: int) -> int:
    """Bytes that device may hold in this plan."""
    kind = plan.problem.cluster.devices[device].kind
    return plan.problem.workload.memory_limit(kind.memory_bytes)
