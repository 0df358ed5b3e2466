"""Pictures of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .compare_page import Entry
from .dot import to_dot
from .drawing import require_matplotlib
from .fresh import fresh_forecast
from .frontier import table
from .graphs import layer_graph, placement_graph
from .html_page import render
from .names import wrap
from .op_graph import operation_graph
from .text import WIDTH, among, device_limit, device_table, heading, percent

if TYPE_CHECKING:
    from ..plan import Plan
    from ..runs import RunTrace


def html(plan: Plan, run: RunTrace | str | Path | None = None) -> str:
    """The plan as one HTML page that needs nothing else: timeline, memory, dependencies, critical path.

    `run`: what `execute --trace` wrote, or its file; the page then shows forecast, measured or both. Raises InputError
    when the plan cannot be simulated, or when the file is no run of this plan.
    """
    from ..runs import load_trace
    from ..simulate import simulate
    from .fresh import fresh_forecast
    from .html_page import render

    measured = load_trace(run) if isinstance(run, str | Path) else run
    if measured is not None:
        plan = measured.require_plan(plan)
    return render(plan, simulate(plan), fresh_forecast(plan), measured)


def notebook(plan: Plan) -> str:
    """The page in a frame, as notebooks show it."""
    from .html_page import frame

    return frame(html(plan))


__all__ = [
    "Entry",
    "WIDTH",
    "among",
    "device_limit",
    "device_table",
    "fresh_forecast",
    "heading",
    "html",
    "layer_graph",
    "notebook",
    "operation_graph",
    "percent",
    "placement_graph",
    "render",
    "require_matplotlib",
    "table",
    "to_dot",
    "wrap",
]
