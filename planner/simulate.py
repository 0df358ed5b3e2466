"""Plans -> times and memory: the single source of every forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .forecast import Timeline, build_columns, timeline_of
from .graph import Machine, Messages
from .lower import period_seconds
from .plan import Forecast, Plan, Problem
from .problem import FLUSH, Cluster, ModelGraph
from .rules import sound_columns


def simulate(plan: Plan) -> Timeline:
    """Times and memory of a plan (seconds, bytes). Raises PlanError, Deadlock among them, for one that cannot run."""
    timeline = _times(plan)
    return timeline if plan.weights == FLUSH else replace(timeline, period_s=period_seconds(plan))


def _times(plan: Plan, machine: Machine | None = None) -> Timeline:
    """The timeline without the period of a plan that has one."""
    costs, ops = sound_columns(plan)
    jobs = build_columns(plan, costs, ops, Messages.of(plan, costs, ops), machine=machine)
    return timeline_of(plan, costs, jobs, tuple(map(tuple, plan.orders)))


def evaluate(
    plan: Plan,
    model: ModelGraph | None = None,
    cluster: Cluster | None = None,
    faster: Mapping[int, float] | None = None,
) -> Forecast:
    """The forecast of a plan's orders under these costs (by default its own); no solver, milliseconds.

    `faster`: devices that compute so many times as fast as their kind. Bound, gap and status of the plan's own forecast
    are kept only when the problem is unchanged; of a plan without a flush the period is not known where devices are
    faster.
    """
    old = plan.problem
    problem = Problem(model or old.model, cluster or old.cluster, old.workload)
    asked = replace(plan, problem=problem)
    if faster:
        return _times(asked, Machine.of(problem.cluster).faster(faster)).forecast()
    forecast = simulate(asked).forecast()
    if plan.forecast is not None and problem == old:
        kept = plan.forecast
        forecast = replace(forecast, bound_s=kept.bound_s, gap=kept.gap, status=kept.status)
    return forecast
