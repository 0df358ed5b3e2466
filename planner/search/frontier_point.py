"""The answers at several memory limits, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from ..basics import dataframe
from ..plan import Forecast, Plan

if TYPE_CHECKING:
    import pandas


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

    def to_dict(self) -> dict[str, Any]:
        """The point's figures without its plan; seconds and bytes, None where there is no plan."""
        plan, forecast = self.plan, self.forecast
        return {
            "limit_bytes": self.limit_bytes,
            "status": self.status,
            "step_s": None if forecast is None else forecast.step_s,
            "bound_s": self.bound_s,
            "gap": None if forecast is None else forecast.gap,
            "peak_bytes": None if forecast is None else list(forecast.peak_bytes),
            "source": None if plan is None else plan.provenance.source,
        }


@dataclass(frozen=True)
class Frontier(Sequence[FrontierPoint]):
    """Points in ascending order of their limits, steps never growing."""

    points: tuple[FrontierPoint, ...]

    @overload
    def __getitem__(self, index: int) -> FrontierPoint: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[FrontierPoint]: ...

    def __getitem__(self, index: int | slice) -> FrontierPoint | Sequence[FrontierPoint]:
        return self.points[index]

    def __len__(self) -> int:
        return len(self.points)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the points that have one, the leanest first."""
        return tuple(point.plan for point in self.points if point.plan is not None)

    def nearest(self, limit_bytes: int) -> Plan | None:
        """The fastest of these plans of which no device holds more than so much; None where none is so lean."""
        lean = [plan for plan in self.plans if plan.forecast and max(plan.forecast.peak_bytes) <= limit_bytes]
        return min(lean, key=lambda plan: plan.forecast.step_s if plan.forecast else 0.0, default=None)

    def to_dataframe(self) -> pandas.DataFrame:
        """A row a point, of its figures; needs pandas, as contraflow[frames] brings it."""
        return dataframe([point.to_dict() for point in self.points])
