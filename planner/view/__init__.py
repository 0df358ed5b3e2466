"""Pictures of a plan as strings: text, SVG, DOT, one HTML page, Perfetto; nothing is worked out anew.

Imports plans, forecasts and bounds, and nothing that searches but its results. Begin with `text.py`; `drawing.py` and
`palette.py` are what pictures share, `page/` is the script and style of the page.
"""

from __future__ import annotations

from pathlib import Path

from ..basics import percent
from ..plan import Plan
from ..runs import RunTrace, load_trace
from ..simulate import simulate
from .compare_page import Asked, Entry
from .compare_page import render as comparison_page
from .dot import to_dot
from .draw_layers import draw as drawn_layers
from .draw_ops import draw as drawn_operations
from .draw_placement import draw as drawn_placement
from .draw_timeline import drawing as drawn_timeline
from .drawing import Drawing, png_of, require_matplotlib, to_pdf, to_png, to_svg
from .fresh import fresh_forecast
from .frontier import drawing as frontier_drawing
from .frontier import figure as frontier_figure
from .frontier import mark as frontier_mark
from .frontier import table as frontier_table
from .graphs import layer_graph, placement_graph
from .html_page import frame
from .html_page import render as page
from .html_run import run_lateness
from .lateness import late_sentence, late_table
from .names import wrap
from .op_graph import operation_graph
from .perfetto import render as perfetto_events
from .reasons import explained, gap_sentence, idle_sentence, overhead_sentence
from .terminal import WIDTH, Screen
from .text import among, device_limit, device_table, heading, samples_per_s
from .text import render as timeline_text


def html(plan: Plan, run: RunTrace | str | Path | None = None) -> str:
    """The plan as one HTML page that needs nothing else: timeline, memory, dependencies, critical path.

    `run`: what `execute --trace` wrote, or its file; the page then shows forecast, measured or both. Raises InputError
    when the plan cannot be simulated, or when the file is no run of this plan.
    """
    measured = load_trace(run) if isinstance(run, str | Path) else run
    if measured is not None:
        plan = measured.require_plan(plan)
    return page(plan, simulate(plan), fresh_forecast(plan), measured)


def notebook(plan: Plan) -> str:
    """The page in a frame, as notebooks show it."""
    return frame(html(plan))


__all__ = [
    "Asked",
    "Drawing",
    "Entry",
    "Screen",
    "WIDTH",
    "among",
    "comparison_page",
    "device_limit",
    "device_table",
    "drawn_layers",
    "drawn_operations",
    "drawn_placement",
    "drawn_timeline",
    "explained",
    "fresh_forecast",
    "frontier_drawing",
    "frontier_figure",
    "frontier_mark",
    "frontier_table",
    "gap_sentence",
    "heading",
    "html",
    "idle_sentence",
    "late_sentence",
    "late_table",
    "layer_graph",
    "notebook",
    "operation_graph",
    "overhead_sentence",
    "page",
    "percent",
    "samples_per_s",
    "perfetto_events",
    "placement_graph",
    "png_of",
    "require_matplotlib",
    "run_lateness",
    "timeline_text",
    "to_dot",
    "to_pdf",
    "to_png",
    "to_svg",
    "wrap",
]
