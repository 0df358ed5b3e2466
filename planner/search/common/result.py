"""What a search answers."""

from __future__ import annotations

from dataclasses import dataclass

from ...plan import Plan
from .answer import Proven
from .considered import Considered
from .fit import Lack


@dataclass(frozen=True)
class Result:
    """The answer of plan().

    Attributes:
        status: "optimal", "feasible", "infeasible" or "unknown" (no plan in time, none ruled out); of the space asked
            for, not of what was searched.
        plan: the best plan that fits; None without one.
        bound_s: no plan of provenance.space takes less (seconds); never above the plan's step, or its period where
            weights are updated without a flush.
        gap: step or period over bound_s, less 1; None without a plan.
        violations: without a plan, what the least bad one lacks on every device, or which staleness it has.
        among: the part of that space of which more is proven, and what; None where there is no more to say.
        considered: what was looked at, left out, and why.
    """

    status: str
    plan: Plan | None = None
    bound_s: float = 0.0
    gap: float | None = None
    violations: tuple[Lack, ...] = ()
    considered: tuple[Considered, ...] = ()
    among: Proven | None = None

    @property
    def seconds(self) -> float | None:
        """What the search made as small as it could: the step, or the period without a flush; None without a plan."""
        return None if self.plan is None or self.plan.forecast is None else self.plan.forecast.objective_s
