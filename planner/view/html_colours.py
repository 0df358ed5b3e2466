"""Colours of the HTML page for light and dark: the palette of the pictures, darker on dark."""

from __future__ import annotations

from typing import Any

from ..forecast import Cause
from ..plan import Kind
from .palette import HUES, IDLE, hsl, paint

SHADES = 8
BY_KIND = {
    Kind.F: ("#8ec1ea", "#f3b27a"), Kind.B: ("#1f6fb2", "#b84d08"), Kind.I: ("#35ab9c", "#c48fb6"),
    Kind.W: ("#b8d8a8", "#e3cdb0"), Kind.R: ("#d8cf9b", "#d9b8b8"),
}  # fmt: skip
"""Fills of passes that are told apart by their kinds: of pipelines that run down, and up."""
_PARTS = {
    "parameters": ("#4b5a6b", "#a3b3c7"),
    "gradients": ("#8494a7", "#75869e"),
    "optimizer": ("#b6c1cd", "#505f75"),
    "buffers": ("#8a6d3b", "#c2a36b"),
    "stashes": ("#6fb79f", "#3f9d80"),
    "shipped stashes": ("#2c7a61", "#8fd6bf"),
    "messages": ("#c9a227", "#e0c04f"),
    "workspace": ("#a15c8f", "#d08abf"),
    "weight versions": ("#9a7420", "#d3ab52"),
}


def page_colours() -> dict[str, Any]:
    """`kinds`: fills by kind and direction. For `light` and `dark`: bars[kind][hue][shade], text on them, hatches
    [ground, line], gaps by cause, what has one colour, parts of memory."""
    return {
        "shades": SHADES,
        "kinds": {kind.name: pair for kind, pair in BY_KIND.items()},
        "light": _theme(False),
        "dark": _theme(True),
    }


def _theme(dark: bool) -> dict[str, Any]:
    bars = {
        kind.name: [[_fill(kind, hue, shade / (SHADES - 1), dark) for shade in range(SHADES)] for hue in (0, 1)]
        for kind in (Kind.F, Kind.B, Kind.I)
    }
    return {
        "bars": bars,
        "ink": {"F": "#10202f", "B": "#ffffff", "I": "#10202f", "W": "#ffffff" if dark else "#10202f",
                "R": "#ffffff" if dark else "#10202f", "STEP": "#ffffff", "REDUCE": "#ffffff", "TIE": "#ffffff",
                "PREDICT": "#ffffff", "GATHER": "#ffffff"},
        "hatched": {"W": [_hatch(h, 0.55, dark) for h in HUES], "R": [_hatch(h, 0.18, dark) for h in HUES]},
        "plain": {
            "STEP": "#7d8aa0" if dark else "#3d4754",
            "REDUCE": "#a98bd0" if dark else "#8a5fa8",
            "TIE": "#cf86ab" if dark else "#b2507f",
            "GATHER": "#7fa6d9" if dark else "#3f6fae",
            "PREDICT": "#d3ab52" if dark else "#9a7420",
            "OFFLOAD": "#3f9d80" if dark else "#2c7a61",
            "FETCH": "#8fd6bf" if dark else "#6fb79f",
            "SEND": "#98a3b3" if dark else "#7b8794",
        },
        "idle": [IDLE[cause][dark] for cause in Cause],
        "parts": {name: pair[dark] for name, pair in _PARTS.items()},
    }  # fmt: skip


def _fill(kind: Kind, hue: int, shade: float, dark: bool) -> str:
    if not dark:
        return paint(kind, hue, shade).fill
    lightness = {Kind.F: 0.80, Kind.B: 0.44, Kind.I: 0.60}[kind]
    saturation = {Kind.F: 0.62, Kind.B: 0.70, Kind.I: 0.62}[kind]
    return hsl(HUES[hue], saturation, lightness - 0.10 * shade)


def _hatch(hue: float, saturation: float, dark: bool) -> list[str]:
    """Ground, line and edge."""
    levels = (0.24, 0.50, 0.56) if dark else (0.93, 0.70, 0.42)
    return [hsl(hue, saturation, level) for level in levels]
