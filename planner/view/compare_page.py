"""Schedules side by side as one HTML page: a table that sorts, a timeline and memory bars for each. No network."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ..basics import format_bytes, format_seconds
from ..forecast import Timeline
from ..plan import COLLECTIVES, Kind, Plan
from ..simulate import simulate
from .drawing import Drawing, to_svg
from .graphs import op_fill
from .names import plain
from .svg import direction
from .text import device_limit, percent

_LANE, _GAP, _TIME, _BETWEEN, _MEMORY = 11.0, 3.0, 520.0, 14.0, 100.0
_COLUMNS = 500  # beyond so many operations a device, a timeline is sampled


@dataclass(frozen=True)
class Entry:
    """One schedule: seconds, bytes; `fits`: the memory. `plan` is what is drawn; without one, `note` says why."""

    name: str
    status: str
    step_s: float | None = None
    bubble: float | None = None
    peak_bytes: int | None = None
    fits: bool | None = None
    gap: float | None = None
    note: str = ""
    plan: Plan | None = None


def render(title: str, entries: Sequence[Entry], frontier: Drawing | None = None, frontier_text: str = "") -> str:
    """The page. `frontier`: a drawing that follows the table, and its figures as text."""
    longest = max((entry.step_s or 0.0 for entry in entries), default=0.0)
    best = min((entry.step_s for entry in entries if entry.step_s is not None and entry.fits), default=None)
    rows = "\n".join(_row(entry, longest, entry.step_s == best) for entry in entries)
    key = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    heads = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{name}</button></th>' for name in _HEADINGS
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{key}'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style></head>\n<body><main>\n<h1>{_text(title)}</h1>\n"
        f"<p>{_LEGEND}</p>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Schedules">'
        f"<table><caption>Every schedule on its best partition. Press a heading to sort by it.</caption>\n"
        f'<thead><tr>{heads}<th scope="col">timeline, all to one scale; memory of every device</th></tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n{_frontier(frontier, frontier_text)}"
        f"</main>\n<script>{_SCRIPT}</script>\n</body></html>\n"
    )


def _text(text: str) -> str:
    return escape(plain(text))


def _frontier(picture: Drawing | None, text: str) -> str:
    if picture is None:
        return ""
    return (
        f'<h2>Step time against memory</h2>\n<div class="paper scroll">{to_svg(picture)}</div>\n'
        f"<details><summary>The figures</summary><pre>{escape(text)}</pre></details>\n"
    )


_HEADINGS = ("schedule", "step", "bubble", "peak", "memory", "gap")


def _row(entry: Entry, longest: float, best: bool) -> str:
    over = "" if entry.fits is None else "ok" if entry.fits else "over"
    cells: list[tuple[object, str]] = [
        (entry.step_s, "" if entry.step_s is None else format_seconds(entry.step_s)),
        (entry.bubble, "" if entry.bubble is None else percent(entry.bubble)),
        (entry.peak_bytes, "" if entry.peak_bytes is None else format_bytes(entry.peak_bytes)),
        (over, over or entry.status),
        (entry.gap, "" if entry.gap is None else percent(max(0.0, entry.gap))),
    ]
    figures = "".join(
        f'<td data-value="{"" if value is None else value}">{_text(shown)}</td>' for value, shown in cells
    )
    kind = "best" if best else "over" if entry.fits is False else "none" if entry.step_s is None else ""
    drawn = _text(entry.note) if entry.plan is None else _picture(entry, entry.plan, longest)
    name = _text(entry.name)
    head = f'<th scope="row" data-value="{name}">{name}</th>'
    return f'<tr class="{kind}">{head}{figures}<td class="picture">{drawn}</td></tr>'


# ---------------------------------------------------------------- a small timeline


def _picture(entry: Entry, plan: Plan, longest: float) -> str:
    """Lanes of all devices and, beside each, how much of its memory it fills."""
    timeline = simulate(plan)
    count = len(timeline.devices)
    height, width = count * (_LANE + _GAP), _TIME + _BETWEEN + _MEMORY
    scale = _TIME / longest if longest > 0 else 0.0
    says = f"{entry.name}: {count} devices, step {format_seconds(timeline.step_s)}"
    body = [*_lanes(plan, timeline, scale), *_memory(plan, timeline)]
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{_text(says)}">{"".join(body)}</svg>'
    )


def _lanes(plan: Plan, timeline: Timeline, scale: float) -> Iterator[str]:
    hues = {m: direction(p, len(plan.orders)) for p in plan.pipelines for m in p.micro_batches}
    for number in range(len(timeline.devices)):
        y = number * (_LANE + _GAP)
        yield f'<rect class="lane" x="0" y="{y:g}" width="{timeline.step_s * scale:.1f}" height="{_LANE:g}"/>'
        paths: dict[str, list[str]] = defaultdict(list)
        for start, end, fill in _bars(timeline, number, hues):
            paths[fill].append(f"M{start * scale:.1f} {y:g}h{max(0.2, (end - start) * scale - 0.2):.1f}v{_LANE:g}H")
            paths[fill].append(f"{start * scale:.1f}z")
        for fill, path in paths.items():
            yield f'<path d="{"".join(path)}" fill="{fill}"/>'


def _bars(timeline: Timeline, number: int, hues: dict[int, int]) -> Iterator[tuple[float, float, str]]:
    """Start, end and colour of what a device computes; of very many ops, those at evenly spaced instants."""
    ops = [
        item for item in timeline.devices[number].ops if item.end_s > item.start_s and item.op.kind not in COLLECTIVES
    ]
    shown = [(x.start_s, x.end_s, op_fill(x.op.kind, hues.get(x.op.micro_batch, 0))[0]) for x in ops]
    if len(shown) <= _COLUMNS:
        yield from shown
        return
    place, width = 0, timeline.step_s / _COLUMNS
    for column in range(_COLUMNS):
        at = (column + 0.5) * width
        while place + 1 < len(shown) and shown[place][1] <= at:
            place += 1
        if shown[place][0] <= at < shown[place][1]:
            yield column * width, (column + 1) * width, shown[place][2]


def _memory(plan: Plan, timeline: Timeline) -> Iterator[str]:
    left, most = _TIME + _BETWEEN, 1
    found = [(memory.peak_bytes, device_limit(plan, d)) for d, memory in enumerate(timeline.device_memory)]
    most = max(1, *(peak for peak, _ in found), *(limit for _, limit in found if limit < 1 << 59))
    for d, (peak, limit) in enumerate(found):
        y, share = d * (_LANE + _GAP), _MEMORY / most
        yield f'<rect class="lane" x="{left:g}" y="{y:g}" width="{_MEMORY:g}" height="{_LANE:g}"/>'
        kind = "full" if peak > limit else "held"
        yield (
            f'<rect class="{kind}" x="{left:g}" y="{y:g}" width="{peak * share:.1f}" height="{_LANE:g}">'
            f"<title>device {d}: {format_bytes(peak)} of {format_bytes(limit)}</title></rect>"
        )
        if limit < most:
            x = left + limit * share - 0.75
            yield f'<rect class="limit" x="{x:.1f}" y="{y:g}" width="1.5" height="{_LANE:g}"/>'


# ---------------------------------------------------------------- constant parts


def _swatch(kind: Kind, text: str) -> str:
    return "".join(f'<i style="background:{op_fill(kind, hue)[0]}"></i>' for hue in (0, 1)) + f" {text}"


_LEGEND = ", ".join(
    _swatch(kind, text)
    for kind, text in (
        (Kind.F, "forward"), (Kind.B, "backward"), (Kind.I, "for inputs"), (Kind.W, "for weights, or recompute"),
    )
) + "; blue pipelines run down the devices, orange ones up"  # fmt: skip
_STYLE = """
:root{color-scheme:light dark;--ink:#1f2733;--dim:#5b6675;--paper:#fff;--lane:#e6e9ee;--line:#d5dae1;--best:#e2f1ea}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#9aa5b3;--paper:#14181e;--lane:#2a313b;--line:#3a434f;
--best:#173528}}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.4 system-ui,-apple-system,'Segoe UI',Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:20px}
h1{font-size:22px}h2{font-size:18px;margin-top:28px}
p{color:var(--dim)}i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:2px;vertical-align:-1px}
.scroll{overflow-x:auto}table{border-collapse:collapse}caption{text-align:left;color:var(--dim);padding:6px 0}
th,td{padding:7px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top;
font-variant-numeric:tabular-nums}
th:first-child,td.picture,th:last-child{text-align:left}td.picture{white-space:normal}td svg{display:block}
thead button{all:unset;cursor:pointer;font-weight:600}thead button:focus-visible{outline:2px solid #1667a6}
th[aria-sort=ascending] button::after{content:" \\25B2"}th[aria-sort=descending] button::after{content:" \\25BC"}
tr.best{background:var(--best)}tr.best th{font-weight:700}tr.over,tr.none{color:var(--dim)}
.lane{fill:var(--lane)}.held{fill:#57a88c}.full{fill:#c2500f}.limit{fill:var(--ink)}
.paper{background:#fff;color:#1f2733;width:fit-content;max-width:100%}pre{overflow-x:auto}
"""
_SCRIPT = """
document.querySelectorAll('thead button').forEach((button, column) => button.addEventListener('click', () => {
  const head = button.parentElement, body = document.querySelector('tbody');
  const up = head.getAttribute('aria-sort') !== 'ascending';
  document.querySelectorAll('thead th[aria-sort]').forEach(other => other.setAttribute('aria-sort', 'none'));
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const value = row => row.children[column].dataset.value;
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === '' || y === '') return (x === '') - (y === '');
    const by = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return up ? by : -by;
  };
  [...body.rows].sort(order).forEach(row => body.append(row));
}));
"""
