"""Pictures of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..plan import Plan
    from ..runs.trace import RunTrace


def html(plan: Plan, run: RunTrace | str | Path | None = None) -> str:
    """The plan as one HTML page that needs nothing else: timeline, memory, dependencies, critical path.

    `run`: what `execute --trace` wrote, or its file; the page then shows forecast, measured or both. Raises InputError
    when the plan cannot be simulated, or when the file is no run of this plan.
    """
    from ..runs.trace_file import load_trace
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
