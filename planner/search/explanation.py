"""Why a plan takes as long as it does: the facts of its simulation, and what is found with more memory and devices.

Facts as data. `plan --explain` prints them, pictures draw those that take no search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..basics import InputError, PlanError
from ..plan import Plan, Problem
from ..problem import FLUSH, SearchSpace
from .common import SECONDS
from .driver import plan as search
from .what_ifs import Explanation, WhatIf, changed_by, facts, ordered, with_group

GIB = 1024**3


def explain(
    plan: Plan,
    space: SearchSpace | None = None,
    time_limit: float = 0.0,
    seed: int = 0,
    workers: int = 2,
    deterministic_limit: float | None = None,
) -> Explanation:
    """The plan's `facts`, and what more machines would give.

    More memory and one more device are planned for again, from this plan as hint, at most `time_limit` seconds each and
    SECONDS.explained; 0: not at all. Raises PlanError for a plan that cannot run.
    """
    found = facts(plan)
    seconds = min(time_limit, SECONDS.explained)
    if seconds <= 0 or plan.weights != FLUSH:
        return found
    effort = {"time_limit": seconds, "seed": seed, "workers": workers, "deterministic_limit": deterministic_limit}
    again = _planned_again(plan, found.step_s, space or SearchSpace(), effort)
    return replace(found, what_ifs=ordered([*found.what_ifs, *again]))


def _planned_again(plan: Plan, step_s: float, space: SearchSpace, effort: dict[str, Any]) -> Iterator[WhatIf]:
    """Problems with more memory, and with one more device, searched from this plan on; left out without a plan."""
    for what, problem, hint in _larger(plan):
        try:
            result = search(problem.model, problem.cluster, problem.workload, space=space, hint=hint, **effort)
        except (InputError, PlanError):
            continue
        if result.plan is not None and result.plan.forecast is not None:
            again = result.plan.forecast.step_s
            yield WhatIf(what, again, changed_by(again, step_s), effort["time_limit"])


def _larger(plan: Plan) -> Iterator[tuple[str, Problem, Plan]]:
    """In words, the problem, and this plan as one of it."""
    problem, cluster, workload = plan.problem, plan.problem.cluster, plan.problem.workload
    groups = tuple(
        replace(g, device=replace(g.device, memory_bytes=g.device.memory_bytes + GIB)) for g in cluster.nodes
    )
    limit = workload.memory_limit_bytes
    more = replace(workload, memory_limit_bytes=None if limit is None else limit + GIB)
    roomy = replace(problem, cluster=replace(cluster, nodes=groups), workload=more)
    yield "one more GiB on every device", roomy, replace(plan, problem=roomy)
    last = cluster.nodes[-1]
    grown = replace(last, devices=last.devices + 1) if last.count == 1 else replace(last, count=last.count + 1)
    wider = replace(problem, cluster=with_group(cluster, len(cluster.nodes) - 1, grown))
    count = len(wider.cluster) - len(cluster)
    what = "one more device" if count == 1 else f"one more node of {count} devices"
    yield what, wider, replace(plan, problem=wider, orders=(*plan.orders, *((),) * count))
