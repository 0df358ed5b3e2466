"""What is known of a search while it runs, for threads beside it: its best plan, its course, and a way to end it."""

from __future__ import annotations

import contextvars
import math
import threading
from dataclasses import asdict, dataclass, replace

from ..basics import end_call
from ..plan import Plan, gap_of
from ..search import Progress
from ..view import html

_COURSE = 2000
"""Points of the course that are kept: of more, every second one of the older half goes."""


@dataclass(frozen=True)
class State:
    """Where the search stands. `version` counts its best plans, `number` whatever became known."""

    number: int = 0
    version: int = 0
    seconds: float = 0.0
    step_s: float | None = None
    bound_s: float | None = None
    gap: float | None = None
    phase: str = "begins"
    asked_to_end: bool = False
    ended: str = ""


class Live:
    """A search as others see it. Its own thread calls `tell` and `finish`, any other the rest.

    Args:
        name: of what is planned, for headings.
        time_limit: seconds that the search may take.
    """

    def __init__(self, name: str, time_limit: float) -> None:
        self.name, self.time_limit = name, time_limit
        self._news = threading.Condition()
        self._state = State()
        self._plan: Plan | None = None
        self._page: tuple[int, str] = (0, "")
        self._course: list[tuple[float, float | None, float | None]] = []
        self._search: contextvars.Context | None = None

    # ---------------------------------------------------------------- the search's side

    def tell(self, progress: Progress) -> bool:
        """Listens to a search (`on_progress`); True asks it to end."""
        with self._news:
            if self._search is None:
                self._search = contextvars.copy_context()
            self._know(progress.seconds, progress.step_s, progress.bound_s, progress.phase, progress.plan)
            return self._state.asked_to_end

    def finish(self, plan: Plan | None, bound_s: float, status: str) -> None:
        """The search has ended with this answer."""
        with self._news:
            self._search = None
            step_s = None if plan is None or plan.forecast is None else plan.forecast.objective_s
            self._know(self._state.seconds, step_s, bound_s, "ended", plan)
            self._state = replace(self._state, ended=status)
            self._news.notify_all()

    def _know(self, seconds: float, step_s: float | None, bound_s: float, phase: str, plan: Plan | None) -> None:
        state = self._state
        new = plan is not None and plan is not self._plan
        if new:
            self._plan = plan
        bound = bound_s if 0 < bound_s < math.inf else None
        gap = None if step_s is None or bound is None else max(0.0, gap_of(step_s, bound))
        if (step_s, bound) != (state.step_s, state.bound_s) or not self._course:
            self._course.append((seconds, step_s, bound))
            if len(self._course) > _COURSE:
                half = _COURSE // 2
                self._course[:half] = self._course[:half:2]
        self._state = State(
            state.number + 1, state.version + new, max(seconds, state.seconds), step_s, bound, gap, phase,
            state.asked_to_end,
        )  # fmt: skip
        self._news.notify_all()

    # ---------------------------------------------------------------- everybody else's

    @property
    def state(self) -> State:
        """Where it stands."""
        with self._news:
            return self._state

    @property
    def plan(self) -> Plan | None:
        """The best plan so far."""
        with self._news:
            return self._plan

    def wait(self, after: int, seconds: float) -> State:
        """The state as soon as it is another than that of this number, or after so many seconds."""
        with self._news:
            self._news.wait_for(lambda: self._state.number > after, seconds)
            return self._state

    def told(self) -> dict[str, object]:
        """State, name and course as JSON has them."""
        with self._news:
            return {
                "name": self.name,
                "time_limit": self.time_limit,
                "course": [list(point) for point in self._course],
                **asdict(self._state),
            }

    def end(self) -> None:
        """Asks the search to end with the best so far, as Ctrl-C does."""
        with self._news:
            search = self._search
            if not self._state.ended:
                self._state = replace(self._state, asked_to_end=True, number=self._state.number + 1)
            self._news.notify_all()
        if search is not None:
            search.run(end_call)

    def page(self) -> str | None:
        """The page of the best plan; None before there is one. Drawn once a plan."""
        with self._news:
            plan, version = self._plan, self._state.version
        if plan is None:
            return None
        if self._page[0] != version:
            self._page = version, html(plan)
        return self._page[1]
