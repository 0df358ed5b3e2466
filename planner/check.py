"""Is this plan executable? All violations, each named; knows no solver and no schedule.

A plan that passes runs without deadlock on an executor that posts sends and receives in list order and never
blocks a compute op on a send, and no device exceeds its memory limit in the forecast.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from .check_columns import OFFLOAD, SHIP, Homes, Listed, Violation, parse_policy
from .check_ops import op_sets
from .check_order import Order, deadlock, local_order, message_order
from .check_updates import tied_apart, update_rules, update_structure
from .cluster import Cluster
from .errors import InputError, PlanError
from .operations import StageCosts
from .plan import Forecast, Plan
from .simulate import Timeline, simulate
from .units import format_bytes
from .weight_policy import WEIGHT_POLICIES

__all__ = ["Violation", "check"]

_TOLERANCE = 1e-6
_STATUSES = ("optimal", "feasible")


def check(plan: Plan) -> list[Violation]:
    """All violations of a plan; an empty list means it is executable.

    Faults of structure hide the op lists' faults, and those hide deadlocks, memory and forecast: each group is
    looked at only where the ones before it are clean.
    """
    found = list(_structure(plan))
    if found:
        return found
    try:
        costs = StageCosts.of(plan.problem.model, plan.stages)
    except InputError as error:
        return [Violation("stages", "stages", str(error))]
    listed = Listed.of(plan, Homes.of(plan))
    found = [*tied_apart(costs, listed.homes)] or op_sets(costs, listed)
    if not found:
        order = Order(costs, listed, WEIGHT_POLICIES[plan.weights].stashed)
        found = [*local_order(order), *update_rules(plan, listed), *message_order(order)] or [*deadlock(order)]
    return found or [*_simulated(plan)]


def _structure(plan: Plan) -> Iterator[Violation]:
    devices, stages = len(plan.problem.cluster), len(plan.stages)
    yield from update_structure(plan)
    if len(plan.orders) != devices:
        yield Violation("devices", "plan", f"{len(plan.orders)} op lists for {devices} devices")
    if len(plan.stash) != len(plan.pipelines):
        yield Violation("stash", "plan", f"{len(plan.stash)} stash rows for {len(plan.pipelines)} pipelines")
    if not plan.pipelines:
        yield Violation("pipelines", "plan", "there is no pipeline")
    for number, pipeline in enumerate(plan.pipelines):
        where = f"pipeline {number}"
        for name in ("forward", "backward"):
            route = getattr(pipeline, name)
            if len(route) != stages:
                yield Violation("pipelines", where, f"{name} names {len(route)} devices for {stages} stages")
            for stage, device in enumerate(route):
                if not 0 <= device < devices:
                    yield Violation(
                        "device", where, f"stage {stage} {name} on device {device}, the cluster has {devices}"
                    )
    for number, row in enumerate(plan.stash):
        if len(row) != stages:
            yield Violation("stash", f"pipeline {number}", f"{len(row)} stash policies for {stages} stages")
        routes = plan.pipelines[number : number + 1]
        pairs = list(zip(routes[0].forward, routes[0].backward, strict=False)) if routes else []
        for stage, text in enumerate(row):
            home, back = pairs[stage] if stage < len(pairs) else (-1, -1)
            reason = _policy_fault(text, home, back, plan.problem.cluster)
            if reason:
                yield Violation("stash", f"pipeline {number}", f"stage {stage}: {reason}")
    yield from _micro_batches(plan)


def _policy_fault(text: str, home: int, back: int, cluster: Cluster) -> str | None:
    policy, devices = parse_policy(text), len(cluster)
    if policy is None:
        return f"unknown stash policy {text!r}"
    known = 0 <= home < devices and 0 <= back < devices
    if policy.choice == OFFLOAD and known and not cluster.same_node(home, back):
        return f"offloads its stash on device {home}, but device {back}, which needs it, is in another node"
    if policy.choice != SHIP:
        return None
    if policy.device >= devices:
        return f"ships its stash to device {policy.device}, the cluster has {devices}"
    if home != back:
        return f"ships its stash to device {policy.device} and back, but its backward runs on device {back}, not {home}"
    return f"ships its stash from device {home} to device {home}" if policy.device == home else None


def _micro_batches(plan: Plan) -> Iterator[Violation]:
    count = plan.problem.workload.micro_batches
    taken = Counter(m for pipeline in plan.pipelines for m in pipeline.micro_batches)
    for m in range(count):
        if taken[m] != 1:
            yield Violation("micro-batches", f"micro-batch {m}", f"takes {taken[m]} pipelines, must take 1")
    for m in taken:
        if not 0 <= m < count:
            yield Violation("micro-batches", f"micro-batch {m}", f"does not exist: there are {count}")


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
