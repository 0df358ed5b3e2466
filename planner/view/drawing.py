"""Shapes on a page, and the two ways to write them down: SVG text of ours, and a matplotlib figure for PNG.

The layout is ours, so a picture does not depend on what is installed. matplotlib is needed for PNG only and loads on
use; it is the optional extra `plot`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..basics import InputError
from .letters import text_width
from .names import plain
from .palette import HATCHED, hatches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
INK, DIM, PAPER = "#1f2733", "#5b6675", "#ffffff"
_FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_HEAD = 7.0  # length of an arrow's head
_DASH = (5.0, 4.0)


@dataclass(frozen=True)
class Rect:
    """A rectangle with round corners; `note` is shown where the pointer is, scripts find it by its `mark`."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str = "none"
    radius: float = 3.0
    note: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Line:
    """A line through points with corners of a radius; with `arrow`, its end has a head."""

    points: tuple[Point, ...]
    stroke: str
    width: float = 1.4
    dashed: bool = False
    arrow: bool = False
    note: str = ""
    radius: float = 8.0


@dataclass(frozen=True)
class Text:
    """One line of text, its baseline at y."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: Literal["start", "middle", "end"] = "start"
    fill: str = INK
    bold: bool = False


@dataclass(frozen=True)
class Area:
    """What lies inside a line through points."""

    points: tuple[Point, ...]
    fill: str
    stroke: str = "none"


Shape = Rect | Line | Text | Area


@dataclass
class Drawing:
    """Shapes in the order in which they are painted, on a white page of `width` x `height`.

    `breaks`: where a page that is too wide may go on in another row, as a score does.
    """

    title: str
    width: float = 0.0
    height: float = 0.0
    shapes: list[Shape] = field(default_factory=list)
    breaks: list[float] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Paints over what is there."""
        self.shapes += shapes


_WIDEST = 2400.0  # of a page that has breaks
_BEFORE, _AFTER, _BETWEEN = 36.0, 5.0, 28.0  # what a row shows beyond its breaks, and white space between rows


class Row(NamedTuple):
    """A part of a page from `left` to `right`, and the shapes that reach into it."""

    left: float
    right: float
    shapes: list[Shape]


def rows_of(drawing: Drawing) -> list[Row]:
    """The page in rows, each up to the last break that fits; one row where it is not too wide."""
    if drawing.width <= _WIDEST or not drawing.breaks:
        return [Row(0.0, drawing.width, drawing.shapes)]
    edges, breaks = [0.0], sorted(drawing.breaks)
    for at, following in pairwise([*breaks, drawing.width]):
        if following - edges[-1] > _WIDEST - _BEFORE - _AFTER:
            edges.append(at)
    found = []
    for left, right in pairwise([*edges, drawing.width]):
        shown = max(0.0, left - _BEFORE), min(drawing.width, right + _AFTER)
        found.append(Row(*shown, [shape for shape in drawing.shapes if _reaches(shape, *shown)]))
    return found


def _reaches(shape: Shape, left: float, right: float) -> bool:
    if isinstance(shape, Rect):
        low, high = shape.x, shape.x + shape.width
    elif isinstance(shape, Text):
        wide = text_width(shape.text, shape.size, shape.bold)
        low = shape.x - wide * {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor]
        high = low + wide
    else:
        low, high = min(x for x, _ in shape.points), max(x for x, _ in shape.points)
    return low <= right and high >= left


def size_of(rows: Sequence[Row], height: float) -> tuple[float, float]:
    """Width and height of the rows under one another."""
    return max(row.right - row.left for row in rows), len(rows) * height + (len(rows) - 1) * _BETWEEN


def label(x: float, y: float, text: str, fill: str, size: float = 10.5) -> tuple[Shape, Shape]:
    """A text in the middle of a line that it interrupts."""
    width = text_width(text, size) + 4
    return Rect(x - width / 2, y - size, width, size * 1.35, PAPER, radius=2), Text(x, y, text, size, "middle", fill)


# ---------------------------------------------------------------- SVG


def to_svg(drawing: Drawing) -> str:
    """The drawing as self-contained SVG text: no script, no reference, names as text."""
    rows = rows_of(drawing)
    width, height = map(math.ceil, size_of(rows, drawing.height))
    if len(rows) == 1:
        body = "\n".join(_svg(shape) for shape in drawing.shapes)
    else:
        body = "\n".join(_svg_row(row, k * (drawing.height + _BETWEEN), drawing.height) for k, row in enumerate(rows))
    if any(isinstance(shape, Rect) and shape.fill in HATCHED for shape in drawing.shapes):
        body = f"<defs>{hatches()}</defs>\n{body}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{_quoted(drawing.title)}" font-family="{_FONT}">\n'
        f"<title>{_quoted(drawing.title)}</title>\n"
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _svg_row(row: Row, top: float, height: float) -> str:
    """A row as an element of its own, which cuts off what is beyond it."""
    wide, body = row.right - row.left, "\n".join(map(_svg, row.shapes))
    return (
        f'<svg x="0" y="{top:g}" width="{wide:g}" height="{height:g}" '
        f'viewBox="{row.left:g} 0 {wide:g} {height:g}">\n{body}\n</svg>'
    )


def _quoted(text: str) -> str:
    return escape(plain(text))


def _svg(shape: Shape) -> str:
    if isinstance(shape, Rect):
        edge = "" if shape.stroke == "none" else f' stroke="{shape.stroke}"'
        mark = f' data-mark="{_quoted(shape.mark)}"' if shape.mark else ""
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}" '
            f'rx="{shape.radius:g}" fill="{shape.fill}"{edge}{mark}{_noted("rect", shape.note)}'
        )
    if isinstance(shape, Line):
        return _svg_line(shape)
    if isinstance(shape, Area):
        path = "L".join(f"{x:.2f} {y:.2f}" for x, y in shape.points)
        return f'<path d="M{path}Z" fill="{shape.fill}" stroke="{shape.stroke}"/>'
    bold = ' font-weight="600"' if shape.bold else ""
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:g}" fill="{shape.fill}"{anchor}{bold}>'
        f"{_quoted(shape.text)}</text>"
    )


def _noted(tag: str, note: str) -> str:
    return f"><title>{_quoted(note)}</title></{tag}>" if note else "/>"


def _svg_line(line: Line) -> str:
    path = "".join(
        f"{letter}{' '.join(f'{x:.1f} {y:.1f}' for x, y in points)}"
        for letter, points in _segments(_shaft(line), line.radius)
    )
    dash = f' stroke-dasharray="{_DASH[0]:g} {_DASH[1]:g}"' if line.dashed else ""
    drawn = (
        f'<path d="{path}" fill="none" stroke="{line.stroke}" stroke-width="{line.width:g}"{dash}'
        f"{_noted('path', line.note)}"
    )
    if line.arrow:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in _head(line))
        drawn += f'<polygon points="{corners}" fill="{line.stroke}"/>'
    return drawn


def _segments(points: Sequence[Point], radius: float) -> Iterator[tuple[str, list[Point]]]:
    """M, L and Q (a corner and where it ends): the line with its corners rounded."""
    yield "M", [points[0]]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        r = min(radius, math.dist(before, corner) / 2, math.dist(corner, after) / 2)
        yield "L", [_towards(corner, before, r)]
        yield "Q", [corner, _towards(corner, after, r)]
    yield "L", [points[-1]]


def _towards(start: Point, end: Point, length: float) -> Point:
    distance = math.dist(start, end)
    share = length / distance if distance else 0.0
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _shaft(line: Line) -> list[Point]:
    """The points without what the head covers."""
    if not line.arrow:
        return list(line.points)
    reach = min(_HEAD * 0.8, math.dist(line.points[-1], line.points[-2]))
    return [*line.points[:-1], _towards(line.points[-1], line.points[-2], reach)]


def _head(line: Line) -> list[Point]:
    """Tip and two corners."""
    (a, b), (x, y) = line.points[-2], line.points[-1]
    length = math.dist((a, b), (x, y)) or 1.0
    size = _HEAD + line.width
    u, v = (x - a) / length, (y - b) / length
    back_x, back_y = x - u * size, y - v * size
    half = size * 0.42
    return [(x, y), (back_x - v * half, back_y + u * half), (back_x + v * half, back_y - u * half)]


# ---------------------------------------------------------------- matplotlib


def require_matplotlib(what: str) -> None:
    """Raises InputError saying how to get it when matplotlib is not there; `what` needs it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InputError(f"{what} needs matplotlib: pip install 'contraflow[plot]', or ask for svg") from None


def figure(drawing: Drawing) -> Figure:
    """The drawing as a matplotlib figure, 100 units an inch. Raises InputError without matplotlib."""
    require_matplotlib("a figure")
    from matplotlib.figure import Figure

    rows = rows_of(drawing)
    width, height = size_of(rows, drawing.height)
    made = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor=PAPER)
    for number, row in enumerate(rows):
        bottom = height - drawing.height - number * (drawing.height + _BETWEEN)
        place = (0, bottom / height, (row.right - row.left) / width, drawing.height / height)
        axes = made.add_axes(place, xlim=(row.left, row.right), ylim=(drawing.height, 0))
        axes.set_axis_off()
        for order, shape in enumerate(row.shapes):
            _paint(axes, shape, order)
    return made


def _paint(axes: Axes, shape: Shape, order: int) -> None:
    from matplotlib import patches
    from matplotlib.path import Path

    if isinstance(shape, Rect):
        fill, hatch = HATCHED.get(shape.fill, (shape.fill, ""))
        if not shape.radius:
            corner = (shape.x, shape.y)
            axes.add_patch(
                patches.Rectangle(
                    corner, shape.width, shape.height, facecolor=fill, edgecolor=shape.stroke, hatch=hatch,
                    linewidth=0.72 * (shape.stroke != "none"), zorder=order,
                )
            )  # fmt: skip
            return
        style = f"round,pad=0,rounding_size={shape.radius}"
        axes.add_patch(
            patches.FancyBboxPatch(
                (shape.x, shape.y), shape.width, shape.height, boxstyle=style, facecolor=fill,
                edgecolor=shape.stroke, hatch=hatch, linewidth=0.72, zorder=order,
            )
        )  # fmt: skip
    elif isinstance(shape, Line):
        codes: dict[str, list[Any]] = {"M": [Path.MOVETO], "L": [Path.LINETO], "Q": [Path.CURVE3, Path.CURVE3]}
        parts = list(_segments(_shaft(shape), shape.radius))
        path = Path([p for _, points in parts for p in points], [code for letter, _ in parts for code in codes[letter]])
        dash: Any = (0, _DASH) if shape.dashed else "-"
        axes.add_patch(
            patches.PathPatch(
                path, fill=False, edgecolor=shape.stroke, linewidth=shape.width * 0.72, linestyle=dash, zorder=order
            )
        )
        if shape.arrow:
            axes.add_patch(patches.Polygon(_head(shape), facecolor=shape.stroke, linewidth=0, zorder=order))
    elif isinstance(shape, Area):
        axes.add_patch(
            patches.Polygon(shape.points, facecolor=shape.fill, edgecolor=shape.stroke, linewidth=0.72, zorder=order)
        )
    else:
        align: dict[str, Any] = {"start": "left", "middle": "center", "end": "right"}
        axes.text(
            shape.x, shape.y, plain(shape.text), fontsize=shape.size * 0.72, ha=align[shape.anchor], va="baseline",
            color=shape.fill, fontweight="bold" if shape.bold else "normal", zorder=order, parse_math=False,
            clip_on=True,
        )  # fmt: skip


_LARGEST = 16_000  # pixels a side, which every viewer opens


def to_png(drawing: Drawing) -> bytes:
    """The drawing as a PNG of twice its size, or as much as `_LARGEST` allows. Raises InputError without matplotlib."""
    require_matplotlib("a png")
    return png_of(figure(drawing), min(200.0, 100 * _LARGEST / max(size_of(rows_of(drawing), drawing.height))))


def to_pdf(drawing: Drawing) -> bytes:
    """The drawing as a PDF of one page. Raises InputError without matplotlib."""
    require_matplotlib("a pdf")
    return _saved(figure(drawing), "pdf", 72.0, {"CreationDate": None})


def png_of(made: Figure, dpi: float = 200.0) -> bytes:
    """A matplotlib figure as PNG; letters that its font lacks become boxes, without a warning each."""
    return _saved(made, "png", dpi, {})


def _saved(made: Figure, form: str, dpi: float, metadata: dict[str, None]) -> bytes:
    import warnings

    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        made.savefig(stream, format=form, dpi=dpi, metadata=metadata)
    return stream.getvalue()
