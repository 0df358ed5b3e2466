"""Colours of a picture of a plan: one hue a direction, light forward, dark backward, hatched weight half."""

from __future__ import annotations

import colorsys
from itertools import pairwise
from typing import NamedTuple

from ..forecast import Cause
from ..plan import COPIES, Kind, Pipeline

HUES = (0.575, 0.065)  # blue, orange
HATCHED = {
    "url(#weights0)": ("#d5e5f2", "////"), "url(#weights1)": ("#f6ddc2", "////"),
    "url(#again0)": ("#d5e5f2", "\\\\\\\\"), "url(#again1)": ("#f6ddc2", "\\\\\\\\"),
}  # fmt: skip
"""Fills that are patterns of an SVG (`hatches`): what else they look like, as ground and matplotlib's hatch."""
_HATCHED = ("#d5e5f2", "#f6ddc2")  # what a hatch looks like from afar
SHORT = {
    Cause.UNUSED: "unused", Cause.FILLING: "filling", Cause.DRAINING: "draining", Cause.NOTHING: "nothing ready",
    Cause.MEMORY: "memory full", Cause.MESSAGE: "message", Cause.COPY: "copy", Cause.SUMS: "sums", Cause.ORDER: "order",
}  # fmt: skip
"""A cause in a word."""
IDLE = {
    Cause.UNUSED: ("#eef0f3", "#222a34"), Cause.FILLING: ("#eef0f3", "#222a34"), Cause.DRAINING: ("#eef0f3", "#222a34"),
    Cause.NOTHING: ("#d5dae1", "#39434f"), Cause.MEMORY: ("#f2a09c", "#83322f"), Cause.MESSAGE: ("#c9bde6", "#51456f"),
    Cause.COPY: ("#a9dcc4", "#285c49"), Cause.SUMS: ("#e2c2dc", "#63405d"), Cause.ORDER: ("#ffe07a", "#7d691d"),
}  # fmt: skip
"""Fills of the gaps in which a device computes nothing, on light and on dark."""


class Paint(NamedTuple):
    """Fill and text colour of one bar."""

    fill: str
    ink: str
    stroke: str = "none"


def paint(kind: Kind, hue: int, shade: float) -> Paint:
    """Colours of an op of `kind` in direction `hue` (0 or 1); `shade` 0..1 grows with the micro-batch.

    Raises KeyError for kinds that take no time: messages and FREE.
    """
    h = HUES[hue]
    if kind == Kind.F:
        return Paint(hsl(h, 0.72, 0.86 - 0.13 * shade), "#10202f")
    if kind == Kind.B:
        return Paint(hsl(h, (0.80, 0.88)[hue], 0.44 - 0.10 * shade), "#ffffff")
    if kind == Kind.I:
        return Paint(hsl(h, 0.70, 0.62 - 0.10 * shade), "#10202f")
    if kind == Kind.W:
        return Paint(f"url(#weights{hue})", "#10202f", hsl(h, 0.60, 0.42))
    if kind == Kind.R:
        return Paint(f"url(#again{hue})", "#10202f", hsl(h, 0.35, 0.55))
    if kind == Kind.REDUCE:
        return Paint("#8a5fa8", "#ffffff")
    if kind == Kind.TIE:
        return Paint("#b2507f", "#ffffff")
    if kind == Kind.GATHER:
        return Paint("#3f6fae", "#ffffff")
    if kind == Kind.PREDICT:
        return Paint("#9a7420", "#ffffff")
    if kind in COPIES:
        return Paint("#2c7a61" if kind == Kind.OFFLOAD else "#6fb79f", "#ffffff")
    if kind == Kind.STEP:
        return Paint("#3d4754", "#ffffff")
    raise KeyError(kind)


def flat(kind: Kind, hue: int, shade: float = 0.3) -> tuple[str, str]:
    """Fill and ink of an op of `kind` without hatches. Raises KeyError for kinds that take no time."""
    style = paint(kind, hue, shade)
    return (_HATCHED[hue], style.ink) if kind in (Kind.W, Kind.R) else (style.fill, style.ink)


def direction(pipeline: Pipeline, devices: int) -> int:
    """0 for a pipeline whose forward runs down the devices (0, 1, 2...), 1 for one that runs up.

    The first hop to another device decides, one across the ends too: a V comes back all the way, so that the hops of
    one that goes down first and of one that goes up first are as many either way.
    """
    first = next(((a, b) for a, b in pairwise(pipeline.forward) if a != b), None)
    if first is None:
        return 0
    before, after = first
    across = devices > 2 and (after - before) % devices in (1, devices - 1)
    return int((after - before) % devices != 1) if across else int(after < before)


def hatches() -> str:
    """Pattern definitions the paints refer to."""
    return "".join(_hatch(f"weights{k}", h, 45) + _hatch(f"again{k}", h, 135) for k, h in enumerate(HUES))


def _hatch(name: str, hue: float, angle: int) -> str:
    return (
        f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate({angle})"><rect width="5" height="5" fill="{hsl(hue, 0.55, 0.93)}"/>'
        f'<rect width="1.6" height="5" fill="{hsl(hue, 0.55, 0.74)}"/></pattern>'
    )


def hsl(hue: float, saturation: float, lightness: float) -> str:
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
