"""Is this plan executable? All violations, each named; knows no solver and no schedule.

A plan that passes runs without deadlock on an executor that posts sends and receives in list order and never
blocks a compute op on a send, and no device exceeds its memory limit in the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .basics import PlanError, format_bytes
from .forecast import Timeline
from .plan import Forecast, Plan
from .problem import WEIGHT_POLICIES
from .rules import Order, Violation, deadlock, listed_ops, local_order, message_order, update_rules
from .simulate import simulate

__all__ = ["Violation", "check"]

_TOLERANCE = 1e-6
_STATUSES = ("optimal", "feasible")


def check(plan: Plan) -> list[Violation]:
    """All violations of a plan; an empty list means it is executable.

    Faults of structure hide the op lists' faults, and those hide deadlocks, memory and forecast: each group is
    looked at only where the ones before it are clean.
    """
    found, costs, listed = listed_ops(plan)
    if costs is None or listed is None:
        return found
    if not found:
        order = Order(costs, listed, WEIGHT_POLICIES[plan.weights].stashed)
        found = [*local_order(order), *update_rules(plan, listed), *message_order(order)] or [*deadlock(order)]
    return found or [*_simulated(plan)]


def _simulated(plan: Plan) -> Iterator[Violation]:
    try:
        timeline = simulate(plan)
    except PlanError as error:
        yield Violation("deadlock", "plan", f"the simulation stops: {error}")
        return
    forecast = timeline.forecast()
    yield from _memory(plan, forecast)
    yield from _host_memory(plan, timeline)
    if plan.forecast is None:
        yield Violation("forecast", "plan", "has no forecast")
    else:
        yield from _tampered(plan.forecast, forecast)


def _memory(plan: Plan, forecast: Forecast) -> Iterator[Violation]:
    workload = plan.problem.workload
    for device, found in enumerate(forecast.devices):
        limit = workload.memory_limit(plan.problem.cluster.devices[device].kind.memory_bytes)
        if found.peak_bytes > limit:
            parts = ", ".join(f"{name} {format_bytes(count)}" for name, count in found.peak_parts)
            message = f"peaks at {found.peak_bytes} bytes, the limit is {limit} ({parts})"
            yield Violation("memory", f"device {device}", message)


def _host_memory(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    groups = plan.problem.cluster.node_groups
    for node, (found, group) in enumerate(zip(timeline.host_memory, groups, strict=True)):
        limit = group.host_memory_bytes
        if limit is not None and found.peak_bytes > limit:
            message = f"offloaded stashes peak at {found.peak_bytes} bytes, the limit is {limit}"
            yield Violation("host-memory", f"node {node}", message)


def _differ(a: float, b: float) -> bool:
    return not math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-12)


def _tampered(said: Forecast, true: Forecast) -> Iterator[Violation]:
    if _differ(said.step_s, true.step_s):
        yield Violation("forecast", "step_s", f"says {said.step_s}, the simulation gives {true.step_s}")
    if len(said.devices) != len(true.devices):
        yield Violation("forecast", "devices", f"names {len(said.devices)} of {len(true.devices)} devices")
        return
    for device, (a, b) in enumerate(zip(said.devices, true.devices, strict=True)):
        for key in ("busy_s", "bubble", "peak_bytes"):
            if _differ(getattr(a, key), getattr(b, key)):
                yield Violation(
                    "forecast",
                    f"device {device}",
                    f"{key} says {getattr(a, key)}, the simulation gives {getattr(b, key)}",
                )
    if said.period_s is None or true.period_s is None:
        if said.period_s != true.period_s:
            yield Violation("forecast", "period_s", f"says {said.period_s}, the simulation gives {true.period_s}")
    elif _differ(said.period_s, true.period_s):
        yield Violation("forecast", "period_s", f"says {said.period_s}, the simulation gives {true.period_s}")
    yield from _bounded(said, "step" if true.period_s is None else "period", true.objective_s)


def _bounded(said: Forecast, name: str, seconds: float) -> Iterator[Violation]:
    """Bound, gap and status against the step or period that the simulation gives."""
    if said.bound_s > seconds * (1 + _TOLERANCE) or said.bound_s < 0:
        yield Violation("forecast", "bound_s", f"bound {said.bound_s} against a {name} of {seconds}")
    elif said.bound_s > 0:
        gap = seconds / said.bound_s - 1
        if said.gap is None or abs(said.gap - gap) > 10 * _TOLERANCE * (1 + gap):
            yield Violation("forecast", "gap", f"says {said.gap}, {name} and bound give {gap}")
        if said.status == "optimal" and gap > _TOLERANCE:
            yield Violation("forecast", "status", f"says optimal with a gap of {gap}")
    if said.status not in _STATUSES:
        yield Violation("forecast", "status", f"unknown status {said.status!r}")
