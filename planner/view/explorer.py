"""The explorer of a comparison: a slider along the frontier, and two plans on one time axis. No network.

What it draws are the plans' pages' data, which are in the page once; the script lays two of them side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..basics import format_bytes, format_seconds, percent
from ..plan import Plan
from .drawing import to_svg
from .fresh import fresh_forecast
from .frontier import NARROW, drawing, mark, places
from .names import plain
from .text import limit_text

if TYPE_CHECKING:
    from ..search import FrontierPoint

_OPENED = 50_000
"""Operations up to which a plan is in the page: about 2 MB."""
_TOGETHER = 400_000
"""Operations of all plans in the page."""


@dataclass(frozen=True)
class Shown:
    """A plan that can be looked at: its name, the limit of every device and the bound it is held against (0: none).

    `named`: a named schedule that fits. `data`: whether the plan is in the page, which has room for so many.
    """

    name: str
    plan: Plan
    limit_bytes: int | None
    bound_s: float
    named: bool = False
    data: bool = True


def with_room(shown: Sequence[Shown]) -> list[Shown]:
    """Which of them are in the page: those of no more than `_OPENED` operations, the first ones up to `_TOGETHER`."""
    room, found = _TOGETHER, []
    for one in shown:
        count = sum(map(len, one.plan.orders))
        fits = count <= min(room, _OPENED)
        room -= count if fits else 0
        found.append(replace(one, data=fits))
    return found


def of_points(points: Sequence[FrontierPoint]) -> list[Shown]:
    """The plans of a frontier, a point each that has one."""
    return [
        Shown(point.plan.provenance.source or "plan", point.plan, point.limit_bytes, point.bound_s)
        for point in points
        if point.plan is not None
    ]


def explorer_data(shown: Sequence[Shown], points: Sequence[FrontierPoint], asked: int | None) -> dict[str, Any]:
    """What the script shows: plans with their sentences, the points of the slider, what is shown and pinned at first.

    The last of `shown` are those of the points. At first the frontier at the limit `asked` is shown, or without one the
    fastest plan, and the fastest named schedule is pinned.
    """
    first = len(shown) - sum(point.plan is not None for point in points)
    marks = [k for k, one in enumerate(shown[:first]) if one.named]
    axis = places(points, [mark(shown[k].name, shown[k].plan) for k in marks], NARROW) if points else []
    stops, number = [], first
    for point, x in zip(points, axis, strict=True):
        if point.plan is not None:
            bound = f", bound {format_seconds(point.bound_s)}" if point.bound_s > 0 else ""
            stops.append({"plan": number, "x": x, "limit": format_bytes(point.limit_bytes) + bound})
            number += 1
    within = [k for k, one in enumerate(shown[first:]) if asked is None or (one.limit_bytes or 0) <= asked]
    start = within[-1] if within else 0
    shown_first = stops[start]["plan"] if stops else _fastest(shown, range(first))
    return {
        "plans": [_told(number, one) for number, one in enumerate(shown)],
        "points": stops,
        "of_mark": {f"mark-{k}": plan for k, plan in enumerate(marks)} | _of_points(points, stops),
        "frame": {"top": NARROW.top, "base": NARROW.height - NARROW.bottom},
        "start": start,
        "shown": shown_first,
        "pinned": _fastest(shown, marks or range(first)),
    }


def _of_points(points: Sequence[FrontierPoint], stops: Sequence[dict[str, Any]]) -> dict[str, int]:
    drawn = [k for k, point in enumerate(points) if point.plan is not None]
    return {f"point-{k}": stop["plan"] for k, stop in zip(drawn, stops, strict=True)}


def _fastest(shown: Sequence[Shown], among: Sequence[int]) -> int:
    return min(among, key=lambda k: fresh_forecast(shown[k].plan).step_s, default=0)


def _told(number: int, one: Shown) -> dict[str, Any]:
    forecast = fresh_forecast(one.plan)
    peak = max(forecast.peak_bytes)
    of = "" if one.limit_bytes is None else f" of {limit_text(one.limit_bytes)}"
    return {
        "data": f"plan-{number}" if one.data else None,
        "name": plain(one.name),
        "figures": f"step {format_seconds(forecast.step_s)}, bubble {percent(forecast.bubble)}, "
        f"peak {format_bytes(peak)}{of}",
        "step_s": forecast.step_s,
        "bound_s": one.bound_s,
        "limit_bytes": one.limit_bytes,
    }


def explorer_section(shown: Sequence[Shown], points: Sequence[FrontierPoint], title: str, legend: str) -> str:
    """The explorer's part of the page; empty where there is nothing to show. `legend`: HTML, beside the timelines."""
    if not shown:
        return ""
    stops = [point for point in points if point.plan is not None]
    slider = stairs = kind = ""
    if stops:
        marks = [mark(one.name, one.plan) for one in shown if one.named]
        slider = (
            '<p class="limit-row"><label for="limit">Memory limit of every device</label>'
            f'<input type="range" id="limit" min="0" max="{len(stops) - 1}" step="1" value="0">'
            '<output id="limit-said" for="limit"></output></p>\n'
        )
        picture = to_svg(drawing(points, marks, f"{title}: step time against memory", NARROW))
        kind = ' class="with-stairs"'
        stairs = f'<div class="stairs">{picture}<ul class="legend">{legend}</ul></div>\n'
    return (
        f'<section id="explorer" aria-label="Explorer"{kind}>\n'
        f"{slider}"
        f'<div class="panes">{_pane("pinned")}{_pane("shown")}'
        '<p id="parting" role="status" aria-live="polite"></p></div>\n'
        f"{stairs or f'<ul class=legend>{legend}</ul>'}"
        '<p id="because"></p>\n<p class="buttons"><button type="button" id="pin">Pin the shown plan</button>'
        '<button type="button" id="swap">Swap</button>'
        '<button type="button" id="open" aria-expanded="false">Open its page</button></p>\n</section>\n'
    )


def _pane(name: str) -> str:
    return (
        f'<figure><figcaption id="{name}-said"></figcaption>'
        f'<canvas id="{name}" role="img" aria-labelledby="{name}-said"></canvas></figure>'
    )
