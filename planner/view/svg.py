"""A plan as one self-contained SVG: the timeline of every device and, under it, its memory.

Blue pipelines run down the devices, orange ones up: a pair that people with any common colour blindness tell
apart (Okabe and Ito, Color Universal Design). Light is forward, dark is backward, a hatch is the weight half,
so that the kinds survive a grey print.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ..basics import format_bytes, format_seconds, percent
from ..plan import Forecast, Kind, Op, Plan, gap_of
from .names import plain
from .palette import Paint, direction, hatches, paint
from .text import count_pipelines, device_limit, limit_text, updating

if TYPE_CHECKING:
    from ..forecast import Timeline

WIDTH, LEFT, RIGHT = 1200, 92, 24
PLOT = WIDTH - LEFT - RIGHT
TOP, MEMORY_LANE, GAP = 104, 58, 14
COPY_LANE = 6
_TOOLTIPS_UP_TO = 6000  # operations; beyond that tooltips would double a file of megabytes
_DIGIT = 0.62  # width of a digit in ems, system sans-serif
_STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2733}"
    ".small{font-size:12px}.dim{fill:#5b6675}.mid{text-anchor:middle}.end{text-anchor:end}"
)


def render(plan: Plan, timeline: Timeline, forecast: Forecast) -> str:
    """The whole picture as SVG text."""
    lane = _lane_height(len(timeline.devices))
    axis = TOP + len(timeline.devices) * _pitch(timeline, lane)
    body = [
        *_title(plan, forecast),
        *_legend(plan, timeline),
        *_grid(timeline.step_s, axis),
        *_lanes(plan, timeline, lane),
    ]
    memory, height = _memory(plan, timeline, forecast, axis + 58)
    body += memory
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(_name(plan))}">\n'
        f"<style>{_STYLE}</style>\n<defs>{hatches()}</defs>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


# ---------------------------------------------------------------- head


def _name(plan: Plan) -> str:
    source = plan.provenance.source or "plan"
    return (
        f"{plain(plan.problem.model.name)}: {plain(source)}, {len(plan.stages)} stages, {len(plan.orders)} devices, "
        f"{count_pipelines(plan)}, "
        f"{plan.problem.workload.micro_batches} micro-batches{updating(plan)}"
    )


def _title(plan: Plan, forecast: Forecast) -> Iterator[str]:
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
    spans = "".join(
        f'<tspan class="dim"{" dx=" + chr(34) + "16" + chr(34) if k else ""}>{name} </tspan>'
        f'<tspan font-weight="600">{escape(value)}</tspan>'
        for k, (name, value) in enumerate(figures)
    )
    name = escape(_shorten(_name(plan), 110))
    yield f'<text x="{LEFT}" y="32" font-size="18" font-weight="600">{name}</text>'
    yield f'<text x="{LEFT}" y="56" font-size="14">{spans}</text>'


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


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


def _legend(plan: Plan, timeline: Timeline) -> Iterator[str]:
    """One swatch for every kind and direction that is drawn, then idle."""
    directions = sorted({direction(p, len(plan.orders)) for p in plan.pipelines})
    drawn = [*(device.ops for device in timeline.devices), *timeline.copies]
    kinds = sorted({item.op.kind for line in drawn for item in line if item.end_s > item.start_s})
    x = float(LEFT)
    entries: list[tuple[str, list[Paint]]] = [
        (_MEANING[kind], [paint(kind, hue, 0.3) for hue in (directions if kind < Kind.REDUCE else [0])])
        for kind in kinds
        if kind in _MEANING
    ]
    entries.append(("idle", [Paint("#eef0f3", "#1f2733")]))
    for text, paints in entries:
        for style in paints:
            yield f'<rect x="{x:.0f}" y="72" width="14" height="14" rx="2" {style.attributes()}/>'
            x += 17
        yield f'<text class="small" x="{x + 3:.0f}" y="83.5">{text}</text>'
        x += 3 + len(text) * 6.6 + 18
    notes = ["blue pipelines run down, orange ones up"] if len(directions) > 1 else []
    if _later_chunks(plan):
        notes.append("underlined: a later stage of the same device")
    yield f'<text class="small dim" x="{x:.0f}" y="83.5">{"; ".join(notes)}</text>'


# ---------------------------------------------------------------- lanes


def _lane_height(devices: int) -> int:
    return 34 if devices <= 10 else 24 if devices <= 20 else 16


def _pitch(timeline: Timeline, lane: int) -> int:
    """Height from one device to the next: its lane, and two thin ones where stashes are copied to the host."""
    return lane + 4 + (2 * COPY_LANE if any(timeline.copies) else 0)


def _copies(timeline: Timeline, device: int, y: int, scale: float, tooltips: bool) -> Iterator[str]:
    """A device's copies under its lane: to the host above, back from it below."""
    for item in timeline.copies[device]:
        width = (item.end_s - item.start_s) * scale
        if width > 0:
            note = _tooltip(item.op, item.start_s, item.end_s) if tooltips else ""
            top = y + 1 + COPY_LANE * (item.op.kind == Kind.FETCH)
            yield (
                f'<rect x="{LEFT + item.start_s * scale:.2f}" y="{top}" width="{width:.2f}" '
                f'height="{COPY_LANE - 1}" {paint(item.op.kind, 0, 0.0).attributes()}>{note}</rect>'
            )


def _lanes(plan: Plan, timeline: Timeline, lane: int) -> Iterator[str]:
    scale = PLOT / timeline.step_s if timeline.step_s > 0 else 0.0
    later = _later_chunks(plan)
    hue_of, last = _hues(plan), max(1, plan.problem.workload.micro_batches - 1)
    tooltips = sum(len(device.ops) for device in timeline.devices) <= _TOOLTIPS_UP_TO
    for index, device in enumerate(timeline.devices):
        y = TOP + index * _pitch(timeline, lane)
        yield f'<text class="small end" x="{LEFT - 10}" y="{y + lane / 2 + 4:.1f}">device {index}</text>'
        yield f'<rect x="{LEFT}" y="{y}" width="{PLOT}" height="{lane}" fill="#eef0f3"/>'
        for item in device.ops:
            width = (item.end_s - item.start_s) * scale
            if width <= 0 or item.op.kind not in _MEANING:
                continue
            style = paint(item.op.kind, hue_of.get(item.op.micro_batch, 0), max(0, item.op.micro_batch) / last)
            note = _tooltip(item.op, item.start_s, item.end_s) if tooltips else ""
            x = LEFT + item.start_s * scale
            yield _bar(x, y, width, lane, style, item.op, note)
            if (item.op.micro_batch, item.op.stage) in later:
                yield _chunk_mark(x, y + lane - 5, width)
        yield from _copies(timeline, index, y + lane, scale, tooltips)


def _hues(plan: Plan) -> dict[int, int]:
    """Direction of every micro-batch."""
    return {m: direction(p, len(plan.orders)) for p in plan.pipelines for m in p.micro_batches}


def _later_chunks(plan: Plan) -> set[tuple[int, int]]:
    """(micro-batch, stage) of the stages that are not the first of their pipeline on their device."""
    found: set[tuple[int, int]] = set()
    for p in plan.pipelines:
        stages = [s for s, device in enumerate(p.forward) if device in p.forward[:s]]
        found |= {(m, s) for m in p.micro_batches for s in stages}
    return found


def _chunk_mark(x: float, y: float, width: float) -> str:
    """A white line at the foot of a bar."""
    return (
        f'<rect x="{x + width * 0.12:.2f}" y="{y:.1f}" width="{width * 0.76:.2f}" height="2" '
        'fill="#ffffff" fill-opacity="0.9" pointer-events="none"/>'
    )


def _bar(x: float, y: float, width: float, lane: int, style: Paint, op: Op, note: str) -> str:
    inset = min(0.5, width * 0.1)
    rect = (
        f'<rect x="{x + inset:.2f}" y="{y + 1}" width="{width - 2 * inset:.2f}" height="{lane - 2}" '
        f'rx="{min(2.0, width / 4):.1f}" {style.attributes()}>{note}</rect>'
    )
    number = str(op.micro_batch) if op.kind < Kind.REDUCE else op.kind.name.title()
    size = min(13.0, lane * 0.55, width * 0.86 / (len(number) * _DIGIT))
    if size < 6:
        return rect
    return rect + (
        f'<text class="mid" x="{x + width / 2:.2f}" y="{y + lane / 2 + size * 0.36:.2f}" '
        f'font-size="{size:.1f}" style="fill:{style.ink}" pointer-events="none">{number}</text>'
    )


def _tooltip(op: Op, start_s: float, end_s: float) -> str:
    what = f"{op.kind.name} stage {op.stage}"
    if op.micro_batch >= 0:
        what += f", micro-batch {op.micro_batch}"
    return f"<title>{what}: {format_seconds(start_s)} to {format_seconds(end_s)}</title>"


# ---------------------------------------------------------------- axes


def _ticks(total: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten: 6 to 12 of them from 0 to `total`."""
    if total <= 0:
        return [0.0]
    raw = total / 10
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return [k * step for k in range(int(total / step + 1e-9) + 1)]


def _grid(step_s: float, bottom: float) -> Iterator[str]:
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if step_s >= s), ("us", 1e-6))
    for tick in _ticks(step_s):
        x = LEFT + (tick / step_s * PLOT if step_s > 0 else 0)
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#8b95a3"/>'
        yield f'<text class="small dim mid" x="{x:.1f}" y="{bottom + 19}">{tick / scale:.4g}</text>'
    yield f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="#8b95a3"/>'
    yield f'<text class="small dim end" x="{LEFT - 10}" y="{bottom + 19}">time, {unit}</text>'


def _memory(plan: Plan, timeline: Timeline, forecast: Forecast, top: float) -> tuple[list[str], int]:
    """Memory of every device over the same time axis, and the height of the whole picture."""
    ceiling = max([device.peak_bytes for device in forecast.devices] + [1]) * 1.15
    limits = [device_limit(plan, index) for index in range(len(timeline.devices))]
    if max(limits) <= 3 * ceiling:
        ceiling = max(ceiling, max(limits) * 1.08)
    drawn = [
        f'<text x="{LEFT}" y="{top}" font-size="14" font-weight="600">Memory'
        f'<tspan class="dim" font-weight="400"> per device, the same scale for all</tspan></text>'
    ]
    y = top + GAP
    for index, limit in enumerate(limits):
        drawn += _memory_lane(timeline, index, limit, ceiling, y)
        peak = forecast.devices[index].peak_bytes
        drawn += [
            f'<text class="small end" x="{LEFT - 10}" y="{y + 18}">device {index}</text>',
            f'<text class="small dim end" x="{LEFT - 10}" y="{y + 34}">{format_bytes(peak)}</text>',
            f'<text class="small dim end" x="{LEFT - 10}" y="{y + 49}">of {limit_text(limit)}</text>',
        ]
        y += MEMORY_LANE + 8
    return drawn, math.ceil(y + 12)


def _memory_lane(timeline: Timeline, index: int, limit: int, ceiling: float, y: float) -> Iterator[str]:
    bottom = y + MEMORY_LANE
    times, counts = timeline.memory(index)
    xs = [LEFT + min(1.0, t / timeline.step_s) * PLOT if timeline.step_s > 0 else LEFT for t in times]
    ys = [bottom - count / ceiling * MEMORY_LANE for count in counts]
    path = f"M{LEFT} {bottom:.1f}" + "".join(f"H{x:.2f}V{level:.2f}" for x, level in zip(xs, ys, strict=True))
    yield f'<rect x="{LEFT}" y="{y:.1f}" width="{PLOT}" height="{MEMORY_LANE}" fill="#f6f7f9"/>'
    yield f'<path d="{path}H{LEFT + PLOT}V{bottom:.1f}Z" fill="#6fb79f" stroke="#2c7a61" stroke-width="1"/>'
    yield f'<line x1="{LEFT}" y1="{bottom:.1f}" x2="{LEFT + PLOT}" y2="{bottom:.1f}" stroke="#8b95a3"/>'
    level = bottom - limit / ceiling * MEMORY_LANE
    if level < y:
        return  # far above: the label beside the lane says it
    yield (
        f'<line x1="{LEFT}" y1="{level:.1f}" x2="{LEFT + PLOT}" y2="{level:.1f}" '
        'stroke="#b8420f" stroke-width="1.5" stroke-dasharray="6 4"/>'
    )
    yield (
        f'<text class="end" font-size="11" x="{LEFT + PLOT - 4}" y="{level + 12:.1f}" style="fill:#b8420f">limit</text>'
    )
