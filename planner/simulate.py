"""Plans -> times and memory: the single source of every forecast."""

from __future__ import annotations

from dataclasses import replace

from .forecast import Timeline, build_columns, timeline_of
from .graph import Messages
from .lower import period_seconds
from .plan import Forecast, Plan, Problem
from .problem import FLUSH, Cluster, ModelGraph
from .rules import sound_columns


def simulate(plan: Plan) -> Timeline:
    """Times and memory of a plan (seconds, bytes). Raises PlanError, Deadlock among them, for one that cannot run."""
    costs, ops = sound_columns(plan)
    jobs = build_columns(plan, costs, ops, Messages.of(plan, costs, ops))
    timeline = timeline_of(plan, costs, jobs, tuple(map(tuple, plan.orders)))
    return timeline if plan.weights == FLUSH else replace(timeline, period_s=period_seconds(plan))


def evaluate(plan: Plan, model: ModelGraph | None = None, cluster: Cluster | None = None) -> Forecast:
    """The forecast of a plan's orders under these costs (by default its own); no solver, milliseconds.

    Bound, gap and status of the plan's own forecast are kept only when the problem is unchanged.
    """
    old = plan.problem
    problem = Problem(model or old.model, cluster or old.cluster, old.workload)
    forecast = simulate(replace(plan, problem=problem)).forecast()
    if plan.forecast is not None and problem == old:
        kept = plan.forecast
        forecast = replace(forecast, bound_s=kept.bound_s, gap=kept.gap, status=kept.status)
    return forecast
