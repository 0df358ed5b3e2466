"""Progress of a search on stderr: silent where stderr is not a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from .units import format_seconds


class SearchProgress:
    """A bar of the time limit with the best step and the bound so far. Call it with the search's progress."""

    def __init__(self, title: str, time_limit: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[best]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=time_limit, best="")

    def __enter__(self) -> SearchProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: Any) -> None:
        """Shows what the search reports: an object with `step_s` and `bound_s`, either possibly None."""
        step, bound = getattr(progress, "step_s", None), getattr(progress, "bound_s", None)
        parts = [f"best {format_seconds(step)}"] if step else []
        parts += [f"bound {format_seconds(bound)}"] if bound else []
        self._bar.update(self._task, completed=time.monotonic() - self._started, best=", ".join(parts))
