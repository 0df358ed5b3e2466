"""Does a plan have the parts that it must have: routes, stash policies, and the right ops on every device?

What the simulator takes for granted: it raises PlanError for a plan with any of these faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..basics import InputError, PlanError, one_line, shown
from ..graph import Homes, StageCosts, costs_of, ship_target, stash_policy
from ..plan import Kind, Plan
from ..problem import Cluster
from .columns import Listed, Violation
from .ops import op_sets
from .updates import tied_apart, update_structure

_NAMED = 10_000
"""So many faults of one sort are named at most."""


def listed_ops(plan: Plan) -> tuple[list[Violation], StageCosts | None, Listed | None]:
    """Faults of a plan's structure; where there are none, those of its op sets, with its costs and op lists."""
    found = list(structure(plan)) or list(_too_few(plan))
    if found:
        return found, None, None
    try:
        costs = costs_of(plan)
    except InputError as error:
        return [Violation("stages", "stages", str(error))], None, None
    listed = Listed.of(plan, Homes.of(plan))
    strange = np.flatnonzero((listed.columns.kind < 0) | (listed.columns.kind >= len(Kind)))
    if len(strange):
        device, number = int(listed.columns.device[strange[0]]), int(listed.columns.kind[strange[0]])
        return (
            [Violation("unexpected-op", f"device {device}", f"an op is of kind {number}, which there is not")],
            None,
            None,
        )
    return [*tied_apart(costs, listed.homes)] or op_sets(costs, listed), costs, listed


def require_ops(plan: Plan) -> None:
    """Raises PlanError naming the first fault of a plan's structure or op sets."""
    found, _, _ = listed_ops(plan)
    if found:
        more = f" (and {len(found) - 1} more: see contraflow check)" if len(found) > 1 else ""
        raise PlanError(f"the plan cannot be simulated, {one_line(str(found[0]), 240)}{more}")


def structure(plan: Plan) -> Iterator[Violation]:
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
    devices = len(cluster)
    try:
        row, target = stash_policy(text), ship_target(text)
    except PlanError:
        return f"unknown stash policy {shown(text)}"
    known = 0 <= home < devices and 0 <= back < devices
    if row.hosted and known and not cluster.same_node(home, back):
        return f"offloads its stash on device {home}, but device {back}, which needs it, is in another node"
    if target is None:
        if known and home != back and not row.two_devices:
            return f"keeps a part of its stash on device {home}, but its backward runs on device {back}"
        return None
    if target >= devices:
        return f"ships its stash to device {target}, the cluster has {devices}"
    if home != back:
        return f"ships its stash to device {target} and back, but its backward runs on device {back}, not {home}"
    return f"ships its stash from device {home} to device {home}" if target == home else None


def _micro_batches(plan: Plan) -> Iterator[Violation]:
    count = plan.problem.workload.micro_batches
    taken = Counter(m for pipeline in plan.pipelines for m in pipeline.micro_batches)
    wrong = [m for m in range(count) if taken[m] != 1]
    for m in wrong[:_NAMED]:
        yield Violation("micro-batches", f"micro-batch {m}", f"takes {taken[m]} pipelines, must take 1")
    if len(wrong) > _NAMED:
        yield Violation("micro-batches", "plan", f"{len(wrong) - _NAMED} more micro-batches do not take 1 pipeline")
    for m in [m for m in taken if not 0 <= m < count][:_NAMED]:
        yield Violation("micro-batches", f"micro-batch {m}", f"does not exist: there are {count}")


def _too_few(plan: Plan) -> Iterator[Violation]:
    """Lists that are far too short for what the plan promises: nothing is worked out for that many ops."""
    passes, listed = len(plan.stages) * plan.problem.workload.micro_batches, sum(map(len, plan.orders))
    if listed < passes > _NAMED:
        shape = f"{len(plan.stages)} stages of {plan.problem.workload.micro_batches} micro-batches"
        yield Violation(
            "missing-op", "plan", f"{listed} operations cannot be those of {shape}: {passes} forwards alone"
        )
