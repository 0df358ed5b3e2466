"""Schedules side by side as one HTML page: a table that sorts, a timeline and memory bars for each. No network.

A row opens the page of its plan in a frame: that page is there once, with every plan's data beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..basics import format_bytes, format_seconds, percent
from ..plan import Kind, Plan
from ..simulate import simulate
from .drawing import Drawing, to_svg
from .fresh import fresh_forecast
from .graphs import op_fill
from .html_data import page_data
from .html_page import BLANK, as_json, blank, hash_of, page_script, source
from .names import plain
from .small_timeline import Scales, small_timeline
from .text import limit_text

_OPENED = 50_000
"""Operations up to which a plan is in the page: about 2 MB."""


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


@dataclass(frozen=True)
class Asked:
    """What all schedules are held against: bytes that every device may hold, and the bound in seconds (0: none)."""

    limits: tuple[int, ...] = ()
    bound_s: float = 0.0

    @property
    def text(self) -> str:
        """For a title."""
        least, most = min(self.limits, default=0), max(self.limits, default=0)
        limit = f"limit {limit_text(least)}" if least == most else f"limits {limit_text(least)} to {limit_text(most)}"
        bound = f"bound {format_seconds(self.bound_s)}" if self.bound_s > 0 else ""
        return ", ".join(filter(None, [limit if self.limits else "", bound]))


def render(
    title: str,
    entries: Sequence[Entry],
    asked: Asked = Asked(),
    frontier: Drawing | None = None,
    frontier_text: str = "",
) -> str:
    """The page: what fits first, then by step. `frontier`: a drawing below the table, and its figures as text."""
    ranked = sorted(entries, key=lambda entry: (not entry.fits, entry.step_s is None, entry.step_s or 0.0))
    plans = [entry.plan for entry in ranked if entry.plan is not None]
    peaks = [memory.peak_bytes for plan in plans for memory in simulate(plan).device_memory]
    scales = Scales.of([entry.step_s or 0.0 for entry in ranked], peaks, asked.limits, asked.bound_s)
    best = next((entry.step_s for entry in ranked if entry.fits), None)
    rows = "\n".join(
        _row(k, entry, scales, bool(entry.fits) and entry.step_s == best) for k, entry in enumerate(ranked)
    )
    data = "\n".join(_data(k, entry.plan) for k, entry in enumerate(ranked) if _opens(entry.plan))
    whole = _text(", ".join(filter(None, [title, asked.text])))
    script = source("compare.js")
    heads = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{name}</button></th>' for name in _HEADINGS
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f'script-src {hash_of(script)} {hash_of(page_script())}">\n'
        f"<title>{whole}</title>\n<style>{source('compare.css')}</style></head>\n<body><main>\n<h1>{whole}</h1>\n"
        f"<p>{_LEGEND}</p>\n<p>{_scales_text(scales)}</p>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Schedules">'
        f"<table><caption>Every schedule on its best partition: what fits first, then by step. Press a heading to sort "
        f"by it, a name to open its plan.</caption>\n"
        f'<thead><tr>{heads}<th scope="col">timeline, all to one scale; memory of every device</th></tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n"
        f'<section id="opened" aria-label="Plan" hidden><h2></h2><iframe title="plan"></iframe></section>\n'
        f"{_frontier(frontier, frontier_text)}</main>\n{_frame()}\n{data}\n<script>{script}</script>\n</body></html>\n"
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


def _row(number: int, entry: Entry, scales: Scales, best: bool) -> str:
    over = "" if entry.fits is None else "ok" if entry.fits else "over"
    cells: list[tuple[object, str]] = [
        (entry.step_s, "" if entry.step_s is None else format_seconds(entry.step_s)),
        (entry.bubble, "" if entry.bubble is None else percent(entry.bubble)),
        (entry.peak_bytes, "" if entry.peak_bytes is None else format_bytes(entry.peak_bytes)),
        (over, over or entry.status),
        (entry.gap, "" if entry.gap is None else percent(max(0.0, entry.gap))),
    ]
    figures = "".join(
        f'<td data-value="{"" if value is None else _text(str(value))}">{_text(shown)}</td>' for value, shown in cells
    )
    kind = "best" if best else "over" if entry.fits is False else "none" if entry.step_s is None else ""
    drawn = _text(entry.note) if entry.plan is None else small_timeline(entry.name, entry.plan, scales)
    shown = name = _text(entry.name)
    if _opens(entry.plan):
        shown = f'<button type="button" data-plan="plan-{number}" aria-expanded="false">{name}</button>'
    elif entry.plan is not None:
        drawn += "too large to open here"
    head = f'<th scope="row" data-value="{name}">{shown}</th>'
    return f'<tr class="{kind}">{head}{figures}<td class="picture">{drawn}</td></tr>'


# ---------------------------------------------------------------- what a row opens


def _opens(plan: Plan | None) -> bool:
    return plan is not None and sum(map(len, plan.orders)) <= _OPENED


def _data(number: int, plan: Plan | None) -> str:
    """The data of a plan's page."""
    if plan is None:
        return ""
    content = as_json(page_data(plan, simulate(plan), fresh_forecast(plan)))
    return f'<script type="application/json" id="plan-{number}">{content}</script>'


def _frame() -> str:
    """The page that the data go into, and what they replace in it."""
    return f'<script type="application/json" id="frame">{as_json({"page": blank(), "mark": BLANK})}</script>'


# ---------------------------------------------------------------- constant parts


def _swatch(kind: Kind, text: str) -> str:
    return "".join(f'<i style="background:{op_fill(kind, hue)[0]}"></i>' for hue in (0, 1)) + f" {text}"


_LEGEND = ", ".join(
    _swatch(kind, text)
    for kind, text in (
        (Kind.F, "forward"), (Kind.B, "backward"), (Kind.I, "for inputs"), (Kind.W, "for weights, or recompute"),
    )
) + "; blue pipelines run down the devices, orange ones up"  # fmt: skip


def _scales_text(scales: Scales) -> str:
    """What the lines are, and how far the bars go."""
    parts = []
    if scales.bound_s > 0:
        parts.append(f'<b class="key of-bound"></b>proven bound, {format_seconds(scales.bound_s)}')
    parts.append(f"memory from 0 to {format_bytes(scales.bytes)} in all rows")
    if any(limit <= scales.bytes for limit in scales.limits):
        parts.append('<b class="key"></b>limit of the device')
    if scales.far:
        parts.append(f"a limit of {limit_text(max(scales.limits))} is beyond the scale")
    return ", ".join(parts)
