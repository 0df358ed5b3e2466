"""Schedules side by side as one HTML page: a table that sorts, a timeline and memory bars for each. No network.

A row opens the page of its plan in a frame: that page is there once, with every plan's data beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ..basics import format_bytes, format_seconds, percent
from ..forecast import Cause
from ..plan import Kind, Plan
from ..simulate import simulate
from .explorer import Shown, explorer_data, explorer_section, of_points, with_room
from .fresh import fresh_forecast
from .graphs import op_fill
from .html_colours import page_colours
from .html_data import page_data
from .html_page import BLANK, as_json, blank, hash_of, page_script, script_of, source
from .names import plain
from .palette import IDLE, SHORT
from .small_timeline import Scales, small_timeline
from .text import limit_text

if TYPE_CHECKING:
    from ..search import FrontierPoint

_SCRIPTS = ("common", "panes", "compare", "explore")
_SEARCH = "search"
"""The name of the row that is no named schedule."""


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
    points: Sequence[FrontierPoint] = (),
    frontier_text: str = "",
) -> str:
    """The page: the explorer of all plans and those of the frontier's points; the table, what fits first, then by step;
    and the frontier's figures as text."""
    ranked = sorted(entries, key=lambda entry: (not entry.fits, entry.step_s is None, entry.step_s or 0.0))
    plans = [entry.plan for entry in ranked if entry.plan is not None]
    peaks = [memory.peak_bytes for plan in plans for memory in simulate(plan).device_memory]
    scales = Scales.of([entry.step_s or 0.0 for entry in ranked], peaks, asked.limits, asked.bound_s)
    limit = min(asked.limits, default=None)
    rowed = [
        Shown(entry.name, entry.plan, limit, asked.bound_s, bool(entry.fits) and entry.name != _SEARCH)
        for entry in ranked
        if entry.plan is not None
    ]
    shown = with_room([*rowed, *of_points(points)])
    numbers = iter(range(len(rowed)))
    number_of = [None if entry.plan is None else next(numbers) for entry in ranked]
    best = next((entry.step_s for entry in ranked if entry.fits), None)
    rows = "\n".join(
        _row(k, k is not None and shown[k].data, entry, scales, bool(entry.fits) and entry.step_s == best)
        for k, entry in zip(number_of, ranked, strict=True)
    )
    data = "\n".join(_data(k, one.plan) for k, one in enumerate(shown) if one.data)
    told = {} if not shown else explorer_data(shown, points, limit)
    whole = _text(", ".join(filter(None, [title, asked.text])))
    script = script_of(_SCRIPTS)
    heads = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{name}</button></th>' for name in _HEADINGS
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f'script-src {hash_of(script)} {hash_of(page_script())}">\n'
        f"<title>{whole}</title>\n<style>{source('compare.css')}</style></head>\n<body><main>\n<h1>{whole}</h1>\n"
        f"{explorer_section(shown, points, title, _gaps())}"
        f"<p>{_LEGEND}</p>\n<p>{_scales_text(scales)}</p>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Schedules">'
        f"<table><caption>Every schedule on its best partition: what fits first, then by step. Press a heading to sort "
        f"by it, a name to open its plan.</caption>\n"
        f'<thead><tr>{heads}<th scope="col">timeline, all to one scale; memory of every device</th></tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n"
        f'<section id="opened" aria-label="Plan" hidden><h2></h2><iframe title="plan"></iframe></section>\n'
        f"{_figures(frontier_text)}</main>\n{_frame()}\n{data}\n{_json('told', told)}\n"
        f"{_json('colours', page_colours())}\n<script>{script}</script>\n</body></html>\n"
    )


def _text(text: str) -> str:
    return escape(plain(text))


def _figures(text: str) -> str:
    if not text:
        return ""
    return f"<details><summary>Step time against memory, the figures</summary><pre>{escape(text)}</pre></details>\n"


_HEADINGS = ("schedule", "step", "bubble", "peak", "memory", "gap")


def _row(number: int | None, opens: bool, entry: Entry, scales: Scales, best: bool) -> str:
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
    if opens:
        shown = f'<button type="button" data-plan="plan-{number}" aria-expanded="false">{name}</button>'
    elif entry.plan is not None:
        drawn += "too large to open here"
    head = f'<th scope="row" data-value="{name}">{shown}</th>'
    return f'<tr class="{kind}">{head}{figures}<td class="picture">{drawn}</td></tr>'


# ---------------------------------------------------------------- what a row opens


def _data(number: int, plan: Plan) -> str:
    """The data of a plan's page."""
    return _json(f"plan-{number}", page_data(plan, simulate(plan), fresh_forecast(plan)))


def _frame() -> str:
    """The page that the data go into, and what they replace in it."""
    return _json("frame", {"page": blank(), "mark": BLANK})


def _json(name: str, content: Any) -> str:
    return f'<script type="application/json" id="{name}">{as_json(content)}</script>'


# ---------------------------------------------------------------- constant parts


def _swatch(kind: Kind, text: str) -> str:
    return "".join(f'<i style="background:{op_fill(kind, hue)[0]}"></i>' for hue in (0, 1)) + f" {text}"


_LEGEND = ", ".join(
    _swatch(kind, text)
    for kind, text in (
        (Kind.F, "forward"), (Kind.B, "backward"), (Kind.I, "for inputs"), (Kind.W, "for weights, or recompute"),
    )
) + "; blue pipelines run down the devices, orange ones up"  # fmt: skip


def _gaps() -> str:
    """What bars, the colours of gaps and lines mean: an item of a list each."""
    kinds = ((Kind.F, "forward"), (Kind.B, "backward"), (Kind.I, "for inputs"), (Kind.W, "for weights"))
    causes = [cause for cause in Cause if cause not in (Cause.UNUSED, Cause.FILLING, Cause.DRAINING)]
    gaps = ((f"--on-light:{IDLE[cause][0]};--on-dark:{IDLE[cause][1]}", SHORT[cause]) for cause in causes)
    items = [_swatch(kind, text) for kind, text in kinds]
    items += [f'<i class="gap" style="{fill}"></i> waits: {text}' for fill, text in gaps]
    lines = (("of-bound", "proven bound"), ("of-limit", "limit"), ("of-part", "where they part"))
    items += [f'<b class="key {kind}"></b>{text}' for kind, text in lines]
    return "".join(f"<li>{item}</li>" for item in items)


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
