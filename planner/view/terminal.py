"""The timeline in a terminal: a row of cells a device, its memory below, as wide as the terminal.

In letters a column is a cell. With colours a cell is two columns, a half block where they differ: twice as fine. A plan
with more operations than columns is sampled, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ..basics import format_bytes, format_seconds
from ..forecast import Cause, IdleSpan
from ..plan import COPIES, Kind, Op, Plan
from .palette import IDLE, SHORT, direction, flat

if TYPE_CHECKING:
    from ..forecast import Timeline

WIDTH = 80
_PASSES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R})
_EVEN = 1e-6  # columns; times that close to the edge of one are on it
_FINE = 1 - 1e-3  # columns; what is as long as that is no sample
_LEAST = 8  # columns of a timeline, however narrow the terminal is
_LEFT, _RIGHT = "▌", "▐"
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
_QUIET = (Cause.UNUSED, Cause.FILLING, Cause.DRAINING)  # gaps that keep the terminal's own ground
Bar = tuple[Op, float, float]
Shown = Op | Cause | None


@dataclass(frozen=True)
class Screen:
    """Columns, and the colours that a terminal has, by rich's names ("standard", "256", "truecolor"); None: none."""

    width: int = WIDTH
    colours: str | None = None

    @property
    def halves(self) -> int:
        """Columns of the picture in a cell."""
        return 1 if self.colours is None else 2

    def styled(self, text: str, ink: str | None, ground: str | None) -> str:
        """The text in these colours."""
        if self.colours is None or not text or (ink is None and ground is None):
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        systems = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
        return Style(color=ink, bgcolor=ground).render(text, color_system=systems[self.colours])


PLAIN = Screen()


@dataclass(frozen=True)
class _Axis:
    """Columns of a picture, how many a second has, and whether what is short is left out."""

    columns: int
    per_s: float
    sampled: bool

    @classmethod
    def of(cls, timeline: Timeline, screen: Screen) -> _Axis | None:
        """None where nothing takes time."""
        labels, rows = _rows(timeline)
        bars = [bar for row in rows for bar in row]
        room = max(_LEAST, screen.width - max(map(len, labels)) - 3) * screen.halves
        least = min((end - start for op, start, end in bars if end > start and op.kind in _PASSES), default=0.0)
        total = max((end for _, _, end in bars), default=0.0)
        if least <= 0.0:
            return None
        units, computed = total / least, [bar for bar in bars if bar[0].kind not in COPIES]
        even = all(abs(t / least - round(t / least)) < 1e-3 for _, *times in computed for t in times)
        fits = units <= room
        per_s = (room // round(units)) / least if even and fits else room / total
        return cls(min(room, max(1, round(total * per_s))), per_s, least * per_s < _FINE)


def timeline_text(plan: Plan, timeline: Timeline, screen: Screen = PLAIN, idle: Sequence[IdleSpan] = ()) -> str:
    """One row a device, `F3` the forward of micro-batch 3; blanks are idle. Never wider than the screen.

    Copies to and from the host have rows of their own under their device's, marked > and <. In colours the spans
    `idle` have those of their causes.
    """
    axis = _Axis.of(timeline, screen)
    if axis is None:
        return "(nothing takes time)"
    labels, rows = _rows(timeline)
    hues = {m: direction(p, len(plan.orders)) for p in plan.pipelines for m in p.micro_batches}
    size = max(map(len, labels))
    loud = [span for span in idle if span.cause not in _QUIET] if screen.colours else []
    lines = []
    for label, bars in zip(labels, rows, strict=True):
        shown: list[Shown] = [*_shown(bars, axis)]
        _fill_gaps(shown, [span for span in loud if label == f"d{span.device}"], axis)
        drawn = _letters(shown, axis) if screen.colours is None else _blocks(shown, hues, screen, axis.sampled)
        lines.append(f"{label:>{size}} |{drawn}|")
    kinds = sorted({op.kind for row in rows for op, start, end in row if end > start})
    causes = [cause for cause in Cause if any(span.cause is cause for span in loud)]
    return "\n".join([*lines, *_legend(kinds, sorted(set(hues.values())), causes, axis, screen)])


def memory_text(timeline: Timeline, screen: Screen = PLAIN) -> str:
    """Memory under the same time axis, a row a device and a row a host that holds stashes: most bytes of each cell.

    In tenths of the largest peak of any device (of any host), rounded up: * is the tenth. Empty where nothing takes
    time, and where no memory is used.
    """
    axis = _Axis.of(timeline, screen)
    if axis is None:
        return ""
    devices = [(f"m{d}", *timeline.memory(d)) for d in range(len(timeline.device_memory))]
    hosts = [
        (f"h{n}", x.times_s.tolist(), x.bytes.tolist()) for n, x in enumerate(timeline.host_memory) if x.peak_bytes
    ]
    cells = math.ceil(axis.columns / screen.halves)
    size, lines = max(map(len, _rows(timeline)[0])), []
    for what, group in (("device", devices), ("host", hosts)):
        most = max((max(totals) for _, _, totals in group), default=0)
        if most:
            lines.append(f"memory of every {what}, in tenths of {format_bytes(most)} (*: the last)")
            lines += [
                f"{name:>{size}} |{_level_row(times, totals, most, axis.per_s / screen.halves, cells)}|"
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


def _rows(timeline: Timeline) -> tuple[list[str], list[list[Bar]]]:
    labels, rows = [], []
    for number, (device, copies) in enumerate(zip(timeline.devices, timeline.copies, strict=True)):
        lanes = {"": device.ops}
        for kind, mark in ((Kind.OFFLOAD, ">"), (Kind.FETCH, "<")):
            lane = tuple(item for item in copies if item.op.kind == kind)
            lanes |= {mark: lane} if lane else {}
        labels += [f"d{number}{mark}" for mark in lanes]
        rows += [[(item.op, item.start_s, item.end_s) for item in lane] for lane in lanes.values()]
    return labels, rows


def _shown(bars: Sequence[Bar], axis: _Axis) -> list[Op | None]:
    """For every column the op that runs at its middle; None: the lane is idle there. Bars stand in order of time."""
    found: list[Op | None] = [None] * axis.columns
    for op, start, end in bars:
        first, last = (math.ceil(t * axis.per_s - 0.5 - _EVEN) for t in (start, end))
        for column in range(first, min(last, axis.columns)):
            found[column] = op
    return found


def _fill_gaps(shown: list[Shown], spans: Sequence[IdleSpan], axis: _Axis) -> None:
    """Puts causes where nothing runs."""
    for span in spans:
        first, last = (math.ceil(t * axis.per_s - 0.5 - _EVEN) for t in (span.start_s, span.end_s))
        for column in range(first, min(last, axis.columns)):
            shown[column] = shown[column] or span.cause


# ---------------------------------------------------------------- letters


def _letters(shown: Sequence[Shown], axis: _Axis) -> str:
    runs = [(op, len(list(same))) for op, same in groupby(shown)]
    return "".join(_cell(op, width, axis.sampled) if isinstance(op, Op) else " " * width for op, width in runs)


def _cell(op: Op, width: int, sampled: bool) -> str:
    """`F12---`, or only the number, or only the fill where there is no room for more; a sample of one has no number."""
    fill = _FILL[op.kind]
    if op.kind not in _PASSES | COPIES or (sampled and width == 1):
        return fill * width
    number = str(op.micro_batch)
    if op.kind in COPIES:
        return number.ljust(width, fill) if len(number) < width else fill * width
    named = f"{op.kind.name}{number}"
    if len(named) <= width:
        return named.ljust(width, fill)
    return number.ljust(width, fill) if op.kind == Kind.F and len(number) <= width else fill * width


# ---------------------------------------------------------------- colours


def _blocks(shown: Sequence[Shown], hues: dict[int, int], screen: Screen, sampled: bool) -> str:
    """Two columns a cell, coloured; a run of an op has its number where there is room for it."""
    halves = [*shown, *[None] * (len(shown) % 2)]
    cells = list(zip(halves[::2], halves[1::2], strict=True))
    drawn = []
    for (left, right), same in groupby(cells):
        width = len(list(same))
        if left is None and right is not None:  # the left half keeps the terminal's own ground
            drawn.append(screen.styled(_RIGHT * width, _paint(right, hues)[0], None))
        elif left != right:
            drawn.append(screen.styled(_LEFT * width, _paint(left, hues)[0], _paint(right, hues)[0]))
        elif left is None:
            drawn.append(" " * width)
        else:
            number = str(left.micro_batch) if isinstance(left, Op) and left.kind in _PASSES | COPIES else ""
            text = number if len(number) < width or (width == len(number) == 1 and not sampled) else ""
            fill, ink = _paint(left, hues)
            drawn.append(screen.styled(text.ljust(width), ink, fill))
    return "".join(drawn)


def _paint(op: Shown, hues: dict[int, int]) -> tuple[str | None, str | None]:
    """Fill and ink; what follows one another in a pipeline differs in shade."""
    if isinstance(op, Cause):
        return IDLE[op][0], "#10202f"
    return (None, None) if op is None else flat(op.kind, hues.get(op.micro_batch, 0), op.micro_batch % 2)


# ---------------------------------------------------------------- legend


def _legend(
    kinds: Sequence[Kind], hues: Sequence[int], causes: Sequence[Cause], axis: _Axis, screen: Screen
) -> list[str]:
    """What letters or colours mean, and what a column is where it is a sample; wrapped."""
    words: list[tuple[str, str]] = []
    for kind in kinds:
        if screen.colours is None:
            words.append((f"{kind.name if kind < Kind.REDUCE else _FILL[kind]} {_MEANING[kind]}",) * 2)
        else:
            of = hues if kind < Kind.REDUCE else [0]
            swatch = "".join(screen.styled("  ", None, flat(kind, hue)[0]) for hue in of)
            words.append((f"{'  ' * len(of)} {_MEANING[kind]}", f"{swatch} {_MEANING[kind]}"))
    for cause in causes:
        words.append((f"   {SHORT[cause]}", f"{screen.styled('  ', None, IDLE[cause][0])} {SHORT[cause]}"))
    words.append(("blank: idle",) * 2)
    lines = _filled(words, screen.width)
    if axis.sampled:
        column = format_seconds(1.0 / axis.per_s)
        half = "half a cell" if screen.halves == 2 else "a column"
        said = f"too many operations for this width: sampled, {half} is {column} and shows what runs at its middle"
        lines += _filled([(word, word) for word in said.split(" ")], screen.width, " ")
    return lines


def _filled(words: Sequence[tuple[str, str]], width: int, between: str = ", ") -> list[str]:
    """Words in brackets, as many in a line as fit: of each what it looks like, and what is printed for it."""
    lines, columns = ["("], 1
    for number, (plain, styled) in enumerate(words):
        end = between.rstrip() if number < len(words) - 1 else ")"
        gap = "" if columns <= 1 and len(lines) == 1 else " "
        if columns + len(gap + plain + end) > width and columns > 1:
            lines.append("")
            columns, gap = 0, ""
        lines[-1] += gap + styled + end
        columns += len(gap + plain + end)
    return lines
