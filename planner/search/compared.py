"""Named schedules and the search side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

from ..basics import MOST_MEMORY_BYTES, InputError, WorkloadError, dataframe
from ..plan import Plan, Problem, gap_of
from ..problem import Cluster, ModelGraph, SearchSpace, Workload
from ..schedules import SCHEDULES
from .common import OnProgress, Result, fits
from .driver import plan as search

if TYPE_CHECKING:
    import pandas

SEARCH = "search"


@dataclass(frozen=True)
class Contender:
    """What came of one schedule, or of the search.

    Attributes:
        status: of its answer; "infeasible" where its plan does not fit, "does not apply" where there is none for these
            numbers.
        plan: the best that fits; else what the schedule would take with more memory. None without one.
        fits: whether every device holds it; None without a plan.
        note: why there is no plan.
    """

    schedule: str
    status: str
    plan: Plan | None = None
    fits: bool | None = None
    note: str = ""

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None without a plan."""
        return None if self.plan is None or self.plan.forecast is None else self.plan.forecast.step_s


@dataclass(frozen=True)
class Compared(Sequence[Contender]):
    """All contenders, the search last.

    Attributes:
        found: the search's answer, whose bound holds for all that fit.
    """

    contenders: tuple[Contender, ...]
    found: Result

    @overload
    def __getitem__(self, index: int) -> Contender: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Contender]: ...

    def __getitem__(self, index: int | slice) -> Contender | Sequence[Contender]:
        return self.contenders[index]

    def __len__(self) -> int:
        return len(self.contenders)

    @property
    def best(self) -> Contender | None:
        """The fastest that fits; of equals the first, so a name before the search."""
        fit = [one for one in self.contenders if one.fits]
        return min(fit, key=lambda one: one.step_s or 0.0, default=None)

    def gap(self, one: Contender) -> float | None:
        """How far a contender that fits is from the bound of all plans, as a share; None for others."""
        bound_s = self.found.bound_s
        return gap_of(one.step_s, bound_s) if one.fits and one.step_s is not None and bound_s > 0 else None

    def to_dataframe(self) -> pandas.DataFrame:
        """A row a contender; needs pandas, as contraflow[frames] brings it."""
        return dataframe([self._row(one) for one in self.contenders])

    def _row(self, one: Contender) -> dict[str, Any]:
        forecast = None if one.plan is None else one.plan.forecast
        return {
            "schedule": one.schedule,
            "status": one.status,
            "step_s": one.step_s,
            "bubble": None if forecast is None else forecast.bubble,
            "peak_bytes": None if forecast is None else max(forecast.peak_bytes),
            "fits": one.fits,
            "gap": self.gap(one),
            "note": one.note,
        }


def compare(
    model: ModelGraph,
    cluster: Cluster,
    workload: Workload,
    space: SearchSpace = SearchSpace(),  # noqa: B008 - immutable
    schedules: Iterable[str] = tuple(SCHEDULES),
    time_limit: float = 60,
    seed: int = 0,
    workers: int = 2,
    deterministic_limit: float | None = None,
    on_progress: OnProgress | None = None,
) -> Compared:
    """The plans of these named schedules with a flush and of the search, under the same limits and switches.

    A schedule that does not fit is planned once more with memory for anything, so that it says what it would take. The
    limits are of every call; `on_progress` hears of the search, and may end it. Raises InputError for bad input.
    """
    if space.asynchronous or space.schedule != SEARCH:
        raise WorkloadError("schedules with a flush are compared with the search for one")
    problem = Problem(model, cluster, workload)
    effort = (time_limit, seed, workers, deterministic_limit)
    found = search(model, cluster, workload, space, *effort, None, on_progress)
    told: list[Contender] = []
    for name in schedules:
        named = replace(space, schedule=name)
        try:
            result = search(model, cluster, workload, named, *effort)
            if result.plan is None:  # what it would need
                unlimited = replace(workload, memory_limit_bytes=None)
                result = _limited(search(model, _roomy(cluster), unlimited, named, *effort), problem)
            told.append(_contender(name, result))
        except InputError as error:
            told.append(Contender(name, "does not apply", note=str(error)))
    return Compared((*told, _contender(SEARCH, found)), found)


def _roomy(cluster: Cluster) -> Cluster:
    """The same cluster with devices that hold anything."""
    groups = (replace(group, device=replace(group.device, memory_bytes=MOST_MEMORY_BYTES)) for group in cluster.nodes)
    return replace(cluster, nodes=tuple(groups))


def _limited(result: Result, problem: Problem) -> Result:
    """A plan that was searched without limits, with those of the problem: it is shown with what it exceeds."""
    if result.plan is None:
        return result
    workload = replace(result.plan.problem.workload, memory_limit_bytes=problem.workload.memory_limit_bytes)
    found = replace(result.plan.problem, cluster=problem.cluster, workload=workload)
    return replace(result, plan=replace(result.plan, problem=found))


def _contender(name: str, result: Result) -> Contender:
    if result.plan is None:
        return Contender(name, result.status, note="; ".join(map(str, result.violations)))
    room = fits(result.plan)
    return Contender(name, result.status if room else "infeasible", result.plan, room)
