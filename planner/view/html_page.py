"""A plan as one HTML file that opens from disk: its data as JSON, a style and a script, and nothing from elsewhere.

Names in a plan are data: they enter the page as JSON in which no `<` survives, and the script writes them as text.
A content security policy allows this script and this style, by their hashes, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from ..basics import format_seconds, percent
from ..plan import Forecast, Plan
from .html_colours import page_colours
from .html_data import page_data
from .names import plain

if TYPE_CHECKING:
    from ..forecast import Timeline
    from ..runs import RunTrace

SCRIPTS = ("common", "words", "data", "lanes", "brush", "timeline", "marks", "memory", "panel", "input", "main")
"""The page's scripts in the order in which they are loaded."""
BLANK = "[the data of a plan]"
_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}


def render(plan: Plan, timeline: Timeline, forecast: Forecast, run: RunTrace | None = None) -> str:
    """The whole page. Raises RunTraceError when the run is not of this plan."""
    title = plain(f"{plan.problem.model.name}: {plan.provenance.source or 'plan'}")
    return _filled(title, _label(plan, forecast), as_json(page_data(plan, timeline, forecast, run)))


def blank() -> str:
    """The page of any plan, with BLANK where its data go; its headings come from them."""
    return _filled("plan", "Timeline of all devices", BLANK)


def _filled(title: str, label: str, data: str) -> str:
    style, script = source("page.css"), page_script()
    return Template(source("page.html")).substitute(
        policy=f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}",
        title=html.escape(title),
        label=html.escape(label),
        style=style,
        script=script,
        data=data,
        colours=as_json(page_colours()),
    )


def frame(page: str, height: int = 720) -> str:
    """The page in an iframe of its own, for notebooks: its style and script stay inside, and reach nothing."""
    return (
        f'<iframe title="Contraflow plan" sandbox="allow-scripts" style="width:100%;height:{height}px;border:0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def as_json(content: Any) -> str:
    """JSON in ASCII that is safe inside a script element: no markup, and no other line ends than scripts know."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _label(plan: Plan, forecast: Forecast) -> str:
    """The picture in a sentence."""
    return (
        f"Timeline of {len(plan.orders)} devices over a step of {format_seconds(forecast.step_s)}, "
        f"idle for {percent(forecast.bubble)}"
    )


@cache
def source(name: str) -> str:
    """A file of `page/`."""
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def page_script() -> str:
    """The script of a plan's page."""
    return script_of(SCRIPTS)


@cache
def script_of(names: tuple[str, ...]) -> str:
    """Scripts of `page/`, one after the other in one scope."""
    parts = "\n".join(source(f"{name}.js") for name in names)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def hash_of(text: str) -> str:
    """What a content security policy knows a script or style by."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
