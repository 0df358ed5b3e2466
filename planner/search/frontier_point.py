"""The answer at one memory limit, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan import Forecast, Plan


@dataclass(frozen=True)
class FrontierPoint:
    """The answer at one limit.

    Attributes:
        limit_bytes: of every device.
        status, bound_s: as of a search: proven for the space it was asked about, at this limit.
        plan: the fastest that is known to fit, with the workload of this limit; None without one.
    """

    limit_bytes: int
    status: str
    bound_s: float
    plan: Plan | None = None

    @property
    def forecast(self) -> Forecast | None:
        """The plan's forecast."""
        return None if self.plan is None else self.plan.forecast
