"""A plan in a row of a table: the lanes of all devices and their memory, to scales that all rows share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ..basics import format_bytes, format_seconds
from ..forecast import Timeline
from ..plan import COLLECTIVES, Plan
from ..simulate import simulate
from .graphs import op_fill
from .names import plain
from .palette import direction
from .text import limit_text

_LANE, _GAP, _TIME, _BETWEEN, _MEMORY = 11.0, 3.0, 520.0, 14.0, 100.0
_COLUMNS = 500  # beyond so many operations a device, a timeline is sampled
_FAR = 3  # a limit beyond so many times the largest peak is not on the scale


@dataclass(frozen=True)
class Scales:
    """What all rows share: seconds and bytes at the right ends, bytes that each device may hold, the bound's seconds.

    A `bound_s` of 0 is none. `limits` is empty where nothing is known of them.
    """

    seconds: float
    bytes: int
    limits: tuple[int, ...]
    bound_s: float

    @classmethod
    def of(cls, steps_s: Sequence[float], peaks: Sequence[int], limits: Sequence[int], bound_s: float) -> Scales:
        """From the figures of all rows; the limits are on the scale unless they are far beyond all peaks."""
        most = max(peaks, default=0)
        near = [limit for limit in limits if limit <= _FAR * most]
        return cls(max([*steps_s, bound_s], default=0.0), max([1, most, *near]), tuple(limits), bound_s)

    @property
    def far(self) -> bool:
        """Whether some limit is not on the scale."""
        return any(limit > self.bytes for limit in self.limits)


def small_timeline(name: str, plan: Plan, scales: Scales) -> str:
    """An SVG element of the plan."""
    timeline = simulate(plan)
    count = len(timeline.devices)
    height, width = count * (_LANE + _GAP), _TIME + _BETWEEN + _MEMORY
    scale = _TIME / scales.seconds if scales.seconds > 0 else 0.0
    says = f"{name}: {count} devices, step {format_seconds(timeline.step_s)}"
    body = [*_lanes(plan, timeline, scale), *_bound(scales, scale, height), *_memory(timeline, scales)]
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(plain(says))}">{"".join(body)}</svg>'
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


def _bound(scales: Scales, scale: float, height: float) -> Iterator[str]:
    """A line that no plan's end can be left of."""
    if scales.bound_s > 0:
        x = scales.bound_s * scale
        yield (
            f'<line class="bound" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - _GAP:g}">'
            f"<title>bound {format_seconds(scales.bound_s)}</title></line>"
        )


def _memory(timeline: Timeline, scales: Scales) -> Iterator[str]:
    left, share = _TIME + _BETWEEN, _MEMORY / scales.bytes
    limits = scales.limits or [None] * len(timeline.device_memory)
    for d, (memory, limit) in enumerate(zip(timeline.device_memory, limits, strict=True)):
        y, peak = d * (_LANE + _GAP), memory.peak_bytes
        of = "" if limit is None else f" of {limit_text(limit)}"
        kind = "full" if limit is not None and peak > limit else "held"
        yield f'<rect class="lane" x="{left:g}" y="{y:g}" width="{_MEMORY:g}" height="{_LANE:g}"/>'
        yield (
            f'<rect class="{kind}" x="{left:g}" y="{y:g}" width="{peak * share:.1f}" height="{_LANE:g}">'
            f"<title>device {d}: {format_bytes(peak)}{of}</title></rect>"
        )
        if limit is not None and limit <= scales.bytes:
            x = left + limit * share - 0.75
            yield f'<rect class="limit" x="{x:.1f}" y="{y:g}" width="1.5" height="{_LANE:g}"/>'
