"""Progress of a search on stderr: silent where stderr is not a terminal."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any

from ..basics import format_seconds, printable
from ..plan import gap_of
from ..view import percent


class SearchProgress:
    """A bar of the time limit with what the search knows so far. Call it with the search's progress."""

    def __init__(self, title: str, time_limit: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[best]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(printable(title), total=time_limit, best="")

    def __enter__(self) -> SearchProgress:
        if not self._bar.disable:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._bar.disable:
            self._bar.stop()  # prints an empty line where disabled, before rich 15

    def __call__(self, progress: Any) -> None:
        """Shows what the search reports: an object with `step_s`, possibly None, `bound_s` and `phase`."""
        elapsed = time.monotonic() - self._started
        self._bar.update(self._task, completed=elapsed, best=describe(progress))


def describe(progress: Any) -> str:
    """Best step, bound, gap and phase of a search as one short line."""
    step_s, bound_s = progress.step_s, progress.bound_s
    parts = ["no plan yet" if step_s is None else f"best {format_seconds(step_s)}"]
    if 0 < bound_s < math.inf:
        parts.append(f"bound {format_seconds(bound_s)}")
        if step_s is not None:
            parts.append(f"gap {percent(max(0.0, gap_of(step_s, bound_s)))}")
    return ", ".join([*parts, progress.phase])
