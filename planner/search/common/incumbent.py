"""The best plan so far, and the caller who is told of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from ...basics import end_call
from ...plan import Plan
from .fit import copies_stashes


@dataclass(frozen=True)
class Progress:
    """What the search knows `seconds` after its start: best step and plan, bound of the space asked for, its phase."""

    seconds: float
    best_step_s: float | None
    bound_s: float
    phase: str
    plan: Plan | None = None

    @property
    def step_s(self) -> float | None:
        """The best step so far; None before the first plan that fits."""
        return self.best_step_s


_LOG = logging.getLogger(__name__)
OnProgress = Callable[[Progress], bool | None]
"""Who is told of it; True asks the whole call to end with what it has."""


@dataclass
class Incumbent:
    """The best plan that fits, by what is to be as small as possible: the step, or without a flush the period.

    Attributes:
        best: None before there is one. plain: the best without copies to the host.
        most_s: plans in which some device computes for so long are of no use, whatever they are for.
        known_s: plans that take so long are of no use: another search has one.
    """

    listener: OnProgress | None = None
    best: Plan | None = None
    plain: Plan | None = None
    most_s: float = math.inf
    known_s: float = math.inf

    @property
    def best_s(self) -> float:
        """Step or period of the best plan; infinite before there is one."""
        return math.inf if self.best is None else objective_s(self.best)

    @property
    def worth_s(self) -> float:
        """Only plans whose devices compute for less are of use (seconds)."""
        return min(self.best_s, self.most_s, self.known_s)

    @property
    def aim_s(self) -> float:
        """Only plans that take less are of use (seconds)."""
        return min(self.best_s, self.known_s)

    def limit(self, seconds: float) -> None:
        """Plans in which some device computes for so long are of no use."""
        self.most_s = seconds

    def beat(self, seconds: float) -> None:
        """Plans that take so long are of no use."""
        self.known_s = seconds

    def start_from(self, plan: Plan | None) -> None:
        """A known plan is the best to begin with."""
        self.best = plan

    def beaten_by(self, plan: Plan, margin: float) -> bool:
        """Whether a plan is shorter than the best by this share."""
        return objective_s(plan) < self.best_s * (1 - margin)

    def take(self, plan: Plan, margin: float) -> bool:
        """Keeps a plan that fits where it is shorter by this share; whether it is."""
        if not copies_stashes(plan):
            plain_s = math.inf if self.plain is None else objective_s(self.plain)
            self.plain = plan if self.plain is None or objective_s(plan) < plain_s else self.plain
        better = self.beaten_by(plan, margin)
        if better:
            self.best = plan
        return better

    def tell(self, seconds: float, bound_s: float, phase: str) -> None:
        """Tells the caller where the search stands, who may end it; no bound above the best plan."""
        _LOG.debug("%.3f s, %s: best %.6g s, bound %.6g s", seconds, phase, self.best_s, min(bound_s, self.best_s))
        if self.listener is not None:
            best_s = None if self.best is None else self.best_s
            if self.listener(Progress(seconds, best_s, min(bound_s, self.best_s), phase, self.best)) is True:
                end_call()


def objective_s(plan: Plan) -> float:
    """What is to be as small as possible; infinite without a forecast."""
    return math.inf if plan.forecast is None else plan.forecast.objective_s
