"""The timeline of every device and, under it, its memory: one drawing, as SVG, PNG or PDF.

Blue pipelines run down the devices, orange ones up: a pair that people with any common colour blindness tell
apart (Okabe and Ito, Color Universal Design). Light is forward, dark is backward, a hatch is the weight half,
so that the kinds survive a grey print. Gaps have the colour of what the device waits for, a line is the critical path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..basics import format_bytes, format_seconds, percent
from ..forecast import Cause, IdleSpan
from ..plan import Forecast, Kind, Op, Plan, gap_of
from ..search import facts
from .critical import CriticalPath
from .drawing import DIM, INK, Area, Drawing, Line, Point, Rect, Shape, Text, to_svg
from .letters import fitted, text_width
from .names import plain, wrap
from .palette import IDLE, SHORT, Paint, direction, paint
from .reasons import binding, idle_sentence
from .text import count_pipelines, device_limit, limit_text, updating

if TYPE_CHECKING:
    from ..forecast import Timeline

WIDTH, LEFT, RIGHT = 1200, 92, 24
PLOT = WIDTH - LEFT - RIGHT
MEMORY_LANE, GAP = 58, 14
COPY_LANE = 6
_COLUMNS = 158  # of a sentence
_TOOLTIPS_UP_TO = 6000  # operations; beyond that tooltips would double a file of megabytes
_ROUND_UP_TO = 1500  # operations; beyond that corners cost more than they show
_PATH, _LIMIT, _AXIS, _GROUND = "#c2185b", "#b8420f", "#8b95a3", "#eef0f3"
_QUIET = (Cause.UNUSED, Cause.FILLING, Cause.DRAINING)


def render(plan: Plan, timeline: Timeline, forecast: Forecast) -> str:
    """The whole picture as SVG text."""
    return to_svg(drawing(plan, timeline, forecast))


def drawing(plan: Plan, timeline: Timeline, forecast: Forecast) -> Drawing:
    """The whole picture."""
    found, page = facts(plan), Drawing(_name(plan), WIDTH)
    said = [idle_sentence(found, len(plan.orders)), f"what binds: {binding(found, len(plan.orders))}"]
    lines = [line for text in said for line in wrap(text, _COLUMNS)]
    page.add(*_title(plan, forecast))
    page.add(*(Text(LEFT, 78 + 17 * k, line, 12, fill=DIM) for k, line in enumerate(lines)))
    legend = 84 + 17 * len(lines)
    page.add(*_legend(plan, timeline, found.spans, legend))
    lanes = _Lanes(plan, timeline, legend + 32)
    page.add(*lanes.shapes(found.spans), *lanes.path())
    page.add(*_grid(timeline.step_s, lanes.bottom))
    memory, page.height = _memory(plan, timeline, forecast, lanes.bottom + 58)
    page.add(*memory)
    return page


# ---------------------------------------------------------------- head


def _name(plan: Plan) -> str:
    source = plan.provenance.source or "plan"
    return (
        f"{plain(plan.problem.model.name)}: {plain(source)}, {len(plan.stages)} stages, {len(plan.orders)} devices, "
        f"{count_pipelines(plan)}, "
        f"{plan.problem.workload.micro_batches} micro-batches{updating(plan)}"
    )


def _title(plan: Plan, forecast: Forecast) -> Iterator[Shape]:
    figures = [("step", format_seconds(forecast.step_s))]
    if forecast.period_s is not None:
        figures = [("period", format_seconds(forecast.period_s)), ("run", format_seconds(forecast.step_s))]
    if forecast.bound_s > 0:
        figures.append(("bound", format_seconds(forecast.bound_s)))
    if forecast.gap is not None:
        figures.append(("gap", percent(forecast.gap)))
    if plan.provenance.among_bound_s:
        figures.append(
            ("gap in its part", percent(max(0.0, gap_of(forecast.objective_s, plan.provenance.among_bound_s))))
        )
    figures.append(("bubble", percent(forecast.bubble)))
    yield Text(LEFT, 32, fitted(_name(plan), WIDTH - LEFT - RIGHT, 18, True), 18, bold=True)
    x = float(LEFT)
    for name, value in figures:
        yield Text(x, 56, name, 14, fill=DIM)
        x += text_width(name, 14) + 6
        yield Text(x, 56, value, 14, bold=True)
        x += text_width(value, 14, True) + 20


_MEANING = {
    Kind.F: "forward F",
    Kind.B: "backward B",
    Kind.I: "for inputs I",
    Kind.W: "for weights W",
    Kind.R: "recompute R",
    Kind.REDUCE: "reduce",
    Kind.STEP: "optimizer step",
    Kind.OFFLOAD: "stash to host",
    Kind.FETCH: "stash from host",
    Kind.TIE: "reduce tied",
    Kind.PREDICT: "predict",
    Kind.GATHER: "gather",
}


def _legend(plan: Plan, timeline: Timeline, spans: Sequence[IdleSpan], top: float) -> Iterator[Shape]:
    """One swatch for every kind and direction that is drawn, every cause, then idle; in as many rows as needed."""
    directions = sorted({direction(p, len(plan.orders)) for p in plan.pipelines})
    drawn = [*(device.ops for device in timeline.devices), *timeline.copies]
    kinds = sorted({item.op.kind for line in drawn for item in line if item.end_s > item.start_s})
    entries: list[tuple[str, list[Paint]]] = [
        (_MEANING[kind], [paint(kind, hue, 0.3) for hue in (directions if kind < Kind.REDUCE else [0])])
        for kind in kinds
        if kind in _MEANING
    ]
    waits = {span.cause for span in spans} - set(_QUIET)
    entries += [(f"waits: {SHORT[cause]}", [Paint(IDLE[cause][0], INK)]) for cause in Cause if cause in waits]
    entries.append(("idle", [Paint(_GROUND, INK)]))
    notes = ["blue pipelines run down, orange ones up"] if len(directions) > 1 else []
    notes += ["underlined: a later stage of the same device"] if _later_chunks(plan) else []
    x, y = float(LEFT), top
    for text, paints in [*entries, ("; ".join(notes), [])]:
        wide = 17 * len(paints) + 3 + text_width(text, 12) + 16
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 16
        for style in paints:
            yield Rect(x, y, 14, 13, style.fill, style.stroke, 2)
            x += 17
        yield Text(x + 3, y + 11, text, 12, fill=INK if paints else DIM)
        x += wide - 17 * len(paints)


# ---------------------------------------------------------------- lanes


class _Lanes:
    """The devices' lanes from `top` on."""

    def __init__(self, plan: Plan, timeline: Timeline, top: float) -> None:
        count = len(timeline.devices)
        self.plan, self.timeline, self.top = plan, timeline, top
        self.lane = 34 if count <= 10 else 24 if count <= 20 else 16
        self.pitch = self.lane + 4 + (2 * COPY_LANE if any(timeline.copies) else 0)
        self.bottom = top + count * self.pitch
        self.scale = PLOT / timeline.step_s if timeline.step_s > 0 else 0.0
        operations = sum(len(device.ops) for device in timeline.devices)
        self.tooltips, self.round = operations <= _TOOLTIPS_UP_TO, operations <= _ROUND_UP_TO

    def x(self, seconds: float) -> float:
        return LEFT + seconds * self.scale

    def y(self, device: int) -> float:
        return self.top + device * self.pitch

    def shapes(self, spans: Sequence[IdleSpan]) -> Iterator[Shape]:
        """Ground, gaps, bars, numbers and copies of every device."""
        later = _later_chunks(self.plan)
        hue_of = {m: direction(p, len(self.plan.orders)) for p in self.plan.pipelines for m in p.micro_batches}
        last = max(1, self.plan.problem.workload.micro_batches - 1)
        for index, device in enumerate(self.timeline.devices):
            y = self.y(index)
            yield Text(LEFT - 10, y + self.lane / 2 + 4, f"device {index}", 12, "end")
            yield Rect(LEFT, y, PLOT, self.lane, _GROUND, radius=0)
            yield from self._gaps([span for span in spans if span.device == index], y)
            for item in device.ops:
                width = (item.end_s - item.start_s) * self.scale
                if width <= 0 or item.op.kind not in _MEANING:
                    continue
                m = item.op.micro_batch
                style = paint(item.op.kind, hue_of.get(m, 0), max(0, m) / last)
                note = _tooltip(item.op, item.start_s, item.end_s) + self._around(item.op) if self.tooltips else ""
                yield from self._bar(self.x(item.start_s), y, width, style, item.op, note)
                if (m, item.op.stage) in later:
                    x = self.x(item.start_s)
                    yield Rect(x + width * 0.12, y + self.lane - 5, width * 0.76, 2, "#ffffff", radius=0)
            yield from self._copies(index, y + self.lane)

    def _around(self, op: Op) -> str:
        """What an op costs beside its layers, in a tooltip; nothing where that is nothing."""
        seconds = self.timeline.beside_layers_s[op] if self.timeline.costs.overhead else 0.0
        if not seconds:
            return ""
        return f", {format_seconds(seconds)} of it beside its layers at speed 1"

    def _gaps(self, spans: Sequence[IdleSpan], y: float) -> Iterator[Shape]:
        for span in spans:
            width = (span.end_s - span.start_s) * self.scale
            if span.cause not in _QUIET and width >= 0.1:
                yield Rect(self.x(span.start_s), y, width, self.lane, IDLE[span.cause][0], radius=0)

    def _bar(self, x: float, y: float, width: float, style: Paint, op: Op, note: str) -> Iterator[Shape]:
        inset, radius = min(0.5, width * 0.1), min(2.0, width / 4) if self.round else 0.0
        yield Rect(x + inset, y + 1, width - 2 * inset, self.lane - 2, style.fill, style.stroke, radius, note)
        number = str(op.micro_batch) if op.kind < Kind.REDUCE else op.kind.name.title()
        size = min(13.0, self.lane * 0.55, width * 0.9 / text_width(number, 1.0))
        if size >= 6:
            yield Text(x + width / 2, y + self.lane / 2 + size * 0.36, number, round(size, 1), "middle", style.ink)

    def _copies(self, device: int, y: float) -> Iterator[Shape]:
        """A device's copies under its lane: to the host above, back from it below."""
        for item in self.timeline.copies[device]:
            width = (item.end_s - item.start_s) * self.scale
            if width > 0:
                note = _tooltip(item.op, item.start_s, item.end_s) if self.tooltips else ""
                top = y + 1 + COPY_LANE * (item.op.kind == Kind.FETCH)
                fill = paint(item.op.kind, 0, 0.0).fill
                yield Rect(self.x(item.start_s), top, width, COPY_LANE - 1, fill, radius=0, note=note)

    def path(self) -> Iterator[Shape]:
        """The critical path under the ops in line that are on it, from one to the next."""
        jobs, points = self.timeline.jobs, list[Point]()
        for job in CriticalPath.of(self.timeline).jobs:
            if job < len(jobs.ops) and jobs.ops.in_line[job] and jobs.duration[job] > 0:
                y = self.y(int(jobs.ops.device[job])) + self.lane - 2
                points += [(self.x(float(jobs.start[job])), y), (self.x(float(jobs.end[job])), y)]
        if points:
            yield Line(tuple(points), _PATH, 2.0 if self.lane > 20 else 1.2, radius=0)


def _later_chunks(plan: Plan) -> set[tuple[int, int]]:
    """(micro-batch, stage) of the stages that are not the first of their pipeline on their device."""
    found: set[tuple[int, int]] = set()
    for p in plan.pipelines:
        stages = [s for s, device in enumerate(p.forward) if device in p.forward[:s]]
        found |= {(m, s) for m in p.micro_batches for s in stages}
    return found


def _tooltip(op: Op, start_s: float, end_s: float) -> str:
    what = f"{op.kind.name} stage {op.stage}"
    if op.micro_batch >= 0:
        what += f", micro-batch {op.micro_batch}"
    return f"{what}: {format_seconds(start_s)} to {format_seconds(end_s)}"


# ---------------------------------------------------------------- axes


def _ticks(total: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten: 6 to 12 of them from 0 to `total`."""
    if total <= 0:
        return [0.0]
    raw = total / 10
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return [k * step for k in range(int(total / step + 1e-9) + 1)]


def _grid(step_s: float, bottom: float) -> Iterator[Shape]:
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if step_s >= s), ("us", 1e-6))
    for tick in _ticks(step_s):
        x = LEFT + (tick / step_s * PLOT if step_s > 0 else 0)
        yield Line(((x, bottom), (x, bottom + 5)), _AXIS, 1)
        yield Text(x, bottom + 19, f"{tick / scale:.4g}", 12, "middle", DIM)
    yield Line(((LEFT, bottom), (WIDTH - RIGHT, bottom)), _AXIS, 1)
    yield Text(LEFT - 10, bottom + 19, f"time, {unit}", 12, "end", DIM)


def _memory(plan: Plan, timeline: Timeline, forecast: Forecast, top: float) -> tuple[list[Shape], int]:
    """Memory of every device over the same time axis, and the height of the whole picture."""
    ceiling = max([device.peak_bytes for device in forecast.devices] + [1]) * 1.15
    limits = [device_limit(plan, index) for index in range(len(timeline.devices))]
    if max(limits) <= 3 * ceiling:
        ceiling = max(ceiling, max(limits) * 1.08)
    drawn: list[Shape] = [
        Text(LEFT, top, "Memory", 14, bold=True),
        Text(LEFT + 70, top, "per device, the same scale for all", 14, fill=DIM),
    ]
    y = top + GAP
    for index, limit in enumerate(limits):
        drawn += _memory_lane(timeline, index, limit, ceiling, y)
        peak = forecast.devices[index].peak_bytes
        drawn += [
            Text(LEFT - 10, y + 18, f"device {index}", 12, "end"),
            Text(LEFT - 10, y + 34, format_bytes(peak), 12, "end", DIM),
            Text(LEFT - 10, y + 49, f"of {limit_text(limit)}", 12, "end", DIM),
        ]
        y += MEMORY_LANE + 8
    return drawn, math.ceil(y + 12)


def _memory_lane(timeline: Timeline, index: int, limit: int, ceiling: float, y: float) -> Iterator[Shape]:
    bottom = y + MEMORY_LANE
    times, counts = timeline.memory(index)
    points: list[Point] = [(LEFT, bottom)]
    for t, count in zip(times, counts, strict=True):
        x = LEFT + min(1.0, t / timeline.step_s) * PLOT if timeline.step_s > 0 else LEFT
        points += [(x, points[-1][1]), (x, bottom - count / ceiling * MEMORY_LANE)]
    points += [(LEFT + PLOT, points[-1][1]), (LEFT + PLOT, bottom)]
    yield Rect(LEFT, y, PLOT, MEMORY_LANE, "#f6f7f9", radius=0)
    yield Area(tuple(points), "#6fb79f", "#2c7a61")
    yield Line(((LEFT, bottom), (LEFT + PLOT, bottom)), _AXIS, 1)
    level = bottom - limit / ceiling * MEMORY_LANE
    if level < y:
        return  # far above: the label beside the lane says it
    yield Line(((LEFT, level), (LEFT + PLOT, level)), _LIMIT, 1.5, dashed=True)
    yield Text(LEFT + PLOT - 4, level + 12, "limit", 11, "end", _LIMIT)
