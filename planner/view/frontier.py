"""Step time against memory: a staircase that only falls, what is proven below it, and other plans as points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..basics import format_bytes, format_seconds, percent
from ..plan import Plan
from .drawing import DIM, INK, PAPER, Drawing, Line, Point, Rect, Text, require_matplotlib
from .letters import fitted, text_width
from .names import plain, shorten, wrap
from .text import among

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..search import FrontierPoint

STEP, BOUND, NAMED, NO_PLAN, GRID = "#1667a6", "#8b95a3", "#c26a12", "#f3e7dd", "#eef0f3"


class Frame(NamedTuple):
    """A picture's size and margins, about how many ticks an axis has, and whether it has a title of its own."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    ticks: int
    titled: bool


WIDE, NARROW = Frame(860, 470, 84, 24, 64, 56, 6, True), Frame(320, 300, 50, 14, 34, 48, 3, False)


class Mark(NamedTuple):
    """Another plan: its name, the most that a device of it holds, and its step in seconds."""

    name: str
    peak_bytes: int
    step_s: float


def mark(name: str, plan: Plan) -> Mark:
    """The point of a plan with a forecast."""
    assert plan.forecast is not None
    return Mark(plain(name), max(plan.forecast.peak_bytes), plan.forecast.step_s)


def table(points: Sequence[FrontierPoint], width: int = 80) -> str:
    """One line a limit: step, bound, gap, peak and where the plan came from."""
    rows = [("limit", "step", "bound", "gap", "peak", "status", "plan")]
    for point in points:
        found = point.forecast
        if found is None or point.plan is None:
            rows.append((format_bytes(point.limit_bytes), "", "", "", "", point.status, ""))
            continue
        gap = "" if found.gap is None else percent(found.gap)
        rows.append((
            format_bytes(point.limit_bytes), format_seconds(found.step_s), format_seconds(found.bound_s), gap,
            format_bytes(max(found.peak_bytes)), found.status + _mark(point), plain(point.plan.provenance.source),
        ))  # fmt: skip
    sizes = [max(len(row[k]) for row in rows) for k in range(5)]
    lines = []
    for row in rows:
        figures = "  ".join(f"{cell:>{size}}" for cell, size in zip(row, sizes, strict=False))
        lines.append(shorten(f"{figures}  {row[5]:<10}  {row[6]}".rstrip(), width))
    for text in dict.fromkeys(point.plan.provenance.among for point in points if point.plan and _mark(point)):
        lines += wrap(f"* optimal among {plain(text)}", width)
    return "\n".join(lines)


def _mark(point: FrontierPoint) -> str:
    """A star where the plan is optimal among a part of the plans that are allowed."""
    if point.plan is None or point.forecast is None:
        return ""
    return "*" if among(point.plan, point.forecast).startswith("optimal among") else ""


# ---------------------------------------------------------------- a picture of ours


class _Axes:
    """From bytes and seconds to places on the page."""

    def __init__(self, points: Sequence[FrontierPoint], marks: Sequence[Mark], frame: Frame = WIDE) -> None:
        self.frame, self.base = frame, frame.height - frame.bottom
        self.end = frame.width - frame.right
        limits = [p.limit_bytes for p in points] + [m.peak_bytes for m in marks]
        steps = [p.forecast.step_s for p in points if p.forecast] + [m.step_s for m in marks]
        self.low, self.high = float(min(limits)), float(max(limits))
        room = (self.high - self.low) * 0.06 or max(1, self.high) * 0.06
        self.low, self.high = max(0.0, self.low - room), self.high + room
        self.top = max(steps, default=1.0) * 1.06 or 1.0

    def x(self, count: float) -> float:
        return self.frame.left + (count - self.low) / (self.high - self.low) * (self.end - self.frame.left)

    def y(self, seconds: float) -> float:
        return self.base - seconds / self.top * (self.base - self.frame.top)


def places(points: Sequence[FrontierPoint], marks: Sequence[Mark], frame: Frame) -> list[float]:
    """Where the limits of the points are in the picture, from its left edge."""
    axes = _Axes(points, marks, frame)
    return [axes.x(point.limit_bytes) for point in points]


def drawing(
    points: Sequence[FrontierPoint], marks: Sequence[Mark] = (), title: str = "", frame: Frame = WIDE
) -> Drawing:
    """The frontier with other plans as points; seconds from 0 on, so that lengths compare.

    The k-th point is marked "point-k", the k-th other plan "mark-k".
    """
    axes, page = _Axes(points, marks, frame), Drawing(title or "step time against memory", frame.width, frame.height)
    if frame.titled:
        page.add(Text(frame.left, 28, fitted(page.title, frame.width - frame.left - 16, 16, True), 16, bold=True))
    best, bounds = best_steps(points, marks), bounds_of(points)
    first = axes.x(best[0][0]) if best else axes.end
    page.add(Rect(frame.left, frame.top, max(0.0, first - frame.left), axes.base - frame.top, NO_PLAN, radius=0))
    _grid(page, axes)
    if first - frame.left > 90:
        page.add(Text(frame.left + 8, frame.top + 18, "no plan found", 11, fill=DIM))
    if bounds:
        way = [(first, axes.y(bounds[0][1]))]
        for limit, value in bounds:
            way += [(way[-1][0], axes.y(value)), (max(first, axes.x(limit)), axes.y(value))]
        page.add(Line((*way, (axes.end, way[-1][1])), BOUND, 1.4, dashed=True, radius=0))
    stairs: list[Point] = []
    for peak, value in best:
        stairs += [(axes.x(peak), stairs[-1][1])] if stairs else []
        stairs.append((axes.x(peak), axes.y(value)))
    if stairs:
        stairs.append((axes.end, stairs[-1][1]))
        page.add(Line(tuple(stairs), STEP, 2.4, radius=0))
    _marks(page, axes, marks, stairs)
    for number, point in enumerate(points):
        _dot(page, axes, point, f"point-{number}")
    _legend(page, bool(marks), frame)
    return page


def best_steps(points: Sequence[FrontierPoint], marks: Sequence[Mark]) -> list[tuple[int, float]]:
    """(bytes, seconds) where the fastest known plan changes: one holds from its own peak on, whoever found it."""
    plans = [(max(p.forecast.peak_bytes), p.forecast.step_s) for p in points if p.forecast]
    found: list[tuple[int, float]] = []
    for peak, step in sorted([*plans, *((m.peak_bytes, m.step_s) for m in marks)]):
        if not found or step < found[-1][1]:
            found.append((peak, step))
    return found


def bounds_of(points: Sequence[FrontierPoint]) -> list[tuple[int, float]]:
    """(limit, seconds) of the limits that have plans: a bound holds for every limit up to its own, the last for all."""
    return [(p.limit_bytes, p.bound_s) for p in points if p.plan is not None]


def _dot(page: Drawing, axes: _Axes, point: FrontierPoint, mark: str) -> None:
    found = point.forecast
    if found is None:
        return
    peak = max(found.peak_bytes)
    note = (
        f"limit {format_bytes(point.limit_bytes)}: step {format_seconds(found.step_s)}, "
        f"bound {format_seconds(found.bound_s)}, peak {format_bytes(peak)}"
    )
    page.add(Rect(axes.x(peak) - 4, axes.y(found.step_s) - 4, 8, 8, STEP, radius=4, note=note, mark=mark))


def _grid(page: Drawing, axes: _Axes) -> None:
    frame, bottom = axes.frame, axes.base
    for at in ticks(axes.low, axes.high, frame.ticks, base=2):
        page.add(Line(((axes.x(at), frame.top), (axes.x(at), bottom)), GRID, 1))
        page.add(Text(axes.x(at), bottom + 18, format_bytes(at), 11, "middle", DIM))
    for at in ticks(0.0, axes.top, frame.ticks):
        page.add(Line(((frame.left, axes.y(at)), (axes.end, axes.y(at))), GRID, 1))
        page.add(Text(frame.left - 8, axes.y(at) + 4, format_seconds(at) if at > 0 else "0", 11, "end", DIM))
    page.add(Line(((frame.left, bottom), (axes.end, bottom)), BOUND, 1))
    page.add(Text((frame.left + axes.end) / 2, frame.height - 14, "memory limit of every device", 12, "middle"))


def ticks(low: float, high: float, most: int, base: int = 10) -> list[float]:
    """At most `most` + 1 round numbers between two others: multiples of 1, 2 or 5 (bytes: 1, 2, 4...) of a power."""
    if high <= low:
        return [low]
    raw = (high - low) / most
    if base == 2:
        step = 2.0 ** math.ceil(math.log2(raw))
    else:
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


_Box = tuple[float, float, float, float]


def _marks(page: Drawing, axes: _Axes, marks: Sequence[Mark], stairs: Sequence[Point]) -> None:
    """A point with its name where there is room for it; all have their names where the pointer is."""
    at = [(axes.x(m.peak_bytes), axes.y(m.step_s)) for m in marks]
    taken: list[_Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    for (a, b), (x, y) in zip(stairs, stairs[1:], strict=False):
        taken.append((min(a, x) - 2, min(b, y) - 2, max(a, x) + 2, max(b, y) + 2))
    for number, (each, (x, y)) in enumerate(zip(marks, at, strict=True)):
        note = f"{each.name}: {format_bytes(each.peak_bytes)}, {format_seconds(each.step_s)}"
        page.add(Rect(x - 3.5, y - 3.5, 7, 7, NAMED, PAPER, 1, note, f"mark-{number}"))
        wide = text_width(each.name, 10.5)
        for left, base in _beside(x, y, wide):
            box = (left, base - 9, left + wide, base + 2)
            inside = left > axes.frame.left and left + wide < axes.end and axes.frame.top < base < axes.base
            if inside and not any(_overlap(box, other) for other in taken):
                page.add(Text(left, base, each.name, 10.5, fill=NAMED))
                taken.append(box)
                break


def _beside(x: float, y: float, wide: float) -> list[Point]:
    """Places for a name of this width near a point, the best first."""
    sides = [(x + 7, y - 6), (x + 7, y + 13), (x - 7 - wide, y - 6), (x - 7 - wide, y + 13)]
    return sides + [(x - wide / 2, y + away) for away in (-12, 19, -24, 31, -36, 43, -48, 55)]


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _legend(page: Drawing, with_marks: bool, frame: Frame) -> None:
    x, y, short = frame.left if frame.titled else 8.0, frame.top - 18, 26 if frame.titled else 14
    words = ("best step found", "proven bound", "named schedules") if frame.titled else ("found", "bound", "named")
    for stroke, dashed, text in ((STEP, False, words[0]), (BOUND, True, words[1])):
        page.add(Line(((x, y), (x + short, y)), stroke, 2.0, dashed), Text(x + short + 6, y + 4, text, 11.5, fill=INK))
        x += short + 6 + text_width(text, 11.5) + 16
    if with_marks:
        page.add(Rect(x, y - 3.5, 7, 7, NAMED, radius=1), Text(x + 13, y + 4, words[2], 11.5, fill=INK))


# ---------------------------------------------------------------- matplotlib


def figure(points: Sequence[FrontierPoint], marks: Sequence[Mark] = (), title: str = "") -> Figure:
    """The same as a matplotlib figure, to be changed at will. Raises InputError without matplotlib."""
    require_matplotlib("a figure of the frontier")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    made = Figure(figsize=(8.6, 4.7), layout="constrained")
    axes = made.add_subplot()
    best, bounds = best_steps(points, marks), bounds_of(points)
    scale = _Axes(points, marks)
    low, far = scale.low, scale.high
    if best:
        axes.step([*(x for x, _ in best), far], [*(y for _, y in best), best[-1][1]], where="post", color=STEP,
                  linewidth=2, label="best step found")  # fmt: skip
        axes.axvspan(low, best[0][0], color=NO_PLAN, label="no plan found")
    if bounds:
        axes.step([best[0][0], *(x for x, _ in bounds), far], [y for _, y in [bounds[0], *bounds, bounds[-1]]],
                  where="pre", color=BOUND, linestyle="--", label="proven bound")  # fmt: skip
    dots = [(max(p.forecast.peak_bytes), p.forecast.step_s) for p in points if p.forecast]
    axes.plot([x for x, _ in dots], [y for _, y in dots], "o", color=STEP)
    if marks:
        axes.scatter([m.peak_bytes for m in marks], [m.step_s for m in marks], color=NAMED, marker="s", s=18,
                     label="named schedules", zorder=3)  # fmt: skip
    for each in marks:
        axes.annotate(each.name, (each.peak_bytes, each.step_s), xytext=(4, 4), textcoords="offset points", fontsize=7,
                      parse_math=False)  # fmt: skip
    axes.set_title(plain(title), fontsize=11, loc="left", parse_math=False)
    axes.set_xlabel("memory limit of every device")
    axes.set_ylabel("step")
    axes.set_ylim(bottom=0)
    axes.set_xlim(low, far)
    axes.set_xticks(ticks(low, far, 6, base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: format_bytes(at)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: format_seconds(at) if at > 0 else "0"))
    axes.grid(color=GRID)
    axes.legend(fontsize=8, frameon=False)
    return made
