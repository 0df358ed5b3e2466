"""Pictures of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..plan import Plan


def html(plan: Plan, run: str | Path | None = None) -> str:
    """The plan as one HTML page that needs nothing else: timeline, memory, dependencies, critical path.

    `run`: a file that `execute --trace` wrote; the page then shows forecast, measured or both. Raises InputError when
    the plan cannot be simulated, or when the file is no run of this plan.
    """
    from ..run_file import load_run
    from ..simulate import simulate
    from .fresh import fresh_forecast
    from .html_page import render

    measured = None if run is None else load_run(run)
    return render(plan, simulate(plan), fresh_forecast(plan), measured)


def notebook(plan: Plan) -> str:
    """The page in a frame, as notebooks show it."""
    from .html_page import frame

    return frame(html(plan))
