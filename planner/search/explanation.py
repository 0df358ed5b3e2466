"""Why a plan takes as long as it does: the facts of its simulation, and what is found for problems beside its own.

Facts as data. `plan --explain` prints them, pictures draw those that take no search.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .. import bounds
from ..basics import UNLIMITED_BYTES, InputError, OutOfTime, PlanError, format_bytes, until
from ..graph import Candidate
from ..plan import Kind, Op, Plan, Problem
from ..problem import FLUSH, SearchSpace
from .common import COUNT, SECONDS
from .driver import plan as search
from .what_ifs import Explanation, WhatIf, changed_by, facts, ordered, with_group


def explain(
    plan: Plan,
    space: SearchSpace | None = None,
    time_limit: float = 0.0,
    seed: int = 0,
    workers: int = 2,
    deterministic_limit: float | None = None,
) -> Explanation:
    """The plan's `facts`, and what is found for other problems.

    What no order of its ops goes below is sought. A memory step more, a micro-batch more or less, and one more device
    are planned for again, from this plan as hint. Each takes at most `time_limit` seconds and SECONDS.explained; 0:
    none is. Raises PlanError for a plan that cannot run.
    """
    found = facts(plan)
    seconds = min(time_limit, SECONDS.explained)
    if seconds <= 0 or plan.weights != FLUSH:
        return found
    effort = {"time_limit": seconds, "seed": seed, "workers": workers, "deterministic_limit": deterministic_limit}
    space = space or SearchSpace()
    least_s = None if found.gap is None else _of_its_orders(plan, found.step_s, space, seconds)
    again = _planned_again(plan, found.step_s, space, effort)
    return replace(found, what_ifs=ordered([*found.what_ifs, *again]), orders_s=least_s)


def _of_its_orders(plan: Plan, step_s: float, space: SearchSpace, seconds: float) -> float | None:
    """What no order of the plan's ops goes below, so far as that is found in so many seconds."""
    halves = space.split_backward or any(op.kind in (Kind.I, Kind.W) for order in plan.orders for op in order)
    candidate = Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash)
    with until(time.monotonic() + seconds), contextlib.suppress(OutOfTime):
        return bounds.fluid(candidate, step_s, halves)
    return None


def _planned_again(plan: Plan, step_s: float, space: SearchSpace, effort: dict[str, Any]) -> Iterator[WhatIf]:
    """The problems beside this one, searched from this plan on; left out without a plan."""
    count = plan.problem.workload.micro_batches
    for what, hint in _beside(plan):
        problem = hint.problem
        try:
            result = search(problem.model, problem.cluster, problem.workload, space=space, hint=hint, **effort)
        except (InputError, PlanError):
            continue
        if result.plan is not None and result.plan.forecast is not None:
            again = result.plan.forecast.step_s
            by_one = again * count / problem.workload.micro_batches  # of as many micro-batches as here
            yield WhatIf(what, again, changed_by(by_one, step_s), effort["time_limit"], plan=result.plan)


def _beside(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """In words, and this plan as one of the other problem."""
    more = memory_step(plan.problem)
    if more is not None:
        yield f"{format_bytes(more)} more on every device", replace(plan, problem=_roomier(plan.problem, more))
    yield with_one_more(plan)
    if plan.problem.workload.micro_batches > 1:
        yield with_one_less(plan)
    yield _wider(plan)


def memory_step(problem: Problem) -> int | None:
    """Bytes by which limits are raised: the power of two at or below a part of the least; None where nothing limits."""
    limits = [problem.workload.memory_limit(device.kind.memory_bytes) for device in problem.cluster.devices]
    least = min(limits)
    return None if least >= UNLIMITED_BYTES else 1 << max(0, (least // COUNT.memory_steps).bit_length() - 1)


def _roomier(problem: Problem, more: int) -> Problem:
    groups = tuple(
        replace(g, device=replace(g.device, memory_bytes=g.device.memory_bytes + more)) for g in problem.cluster.nodes
    )
    limit = problem.workload.memory_limit_bytes
    workload = replace(problem.workload, memory_limit_bytes=None if limit is None else limit + more)
    return replace(problem, cluster=replace(problem.cluster, nodes=groups), workload=workload)


def _batches(plan: Plan, count: int) -> tuple[str, Problem]:
    workload = replace(plan.problem.workload, micro_batches=count)
    return f"{count} micro-batches, by the micro-batch", replace(plan.problem, workload=workload)


def with_one_less(plan: Plan) -> tuple[str, Plan]:
    """Without the last micro-batch."""
    count = plan.problem.workload.micro_batches - 1
    what, problem = _batches(plan, count)
    left = [
        (replace(pipeline, micro_batches=tuple(m for m in pipeline.micro_batches if m < count)), row)
        for pipeline, row in zip(plan.pipelines, plan.stash, strict=True)
    ]
    kept = [(pipeline, row) for pipeline, row in left if pipeline.micro_batches]
    orders = tuple(tuple(op for op in order if op.micro_batch < count) for order in plan.orders)
    pipelines, stash = tuple(pipeline for pipeline, _ in kept), tuple(row for _, row in kept)
    return what, replace(plan, problem=problem, pipelines=pipelines, stash=stash, orders=orders)


def with_one_more(plan: Plan) -> tuple[str, Plan]:
    """With one more after all others, on the last one's route."""
    count = plan.problem.workload.micro_batches
    what, problem = _batches(plan, count + 1)
    pipelines = tuple(
        replace(p, micro_batches=(*p.micro_batches, count)) if count - 1 in p.micro_batches else p
        for p in plan.pipelines
    )
    orders = tuple((*order, *_as_another(order, count - 1, count)) for order in plan.orders)
    return what, replace(plan, problem=problem, pipelines=pipelines, orders=orders)


def _as_another(order: tuple[Op, ...], micro_batch: int, another: int) -> Iterator[Op]:
    """The ops of a micro-batch as those of another."""
    return (op._replace(micro_batch=another) for op in order if op.micro_batch == micro_batch)


def _wider(plan: Plan) -> tuple[str, Plan]:
    """With one more device, or one more node where the last group has several."""
    cluster = plan.problem.cluster
    last = cluster.nodes[-1]
    grown = replace(last, devices=last.devices + 1) if last.count == 1 else replace(last, count=last.count + 1)
    wider = replace(plan.problem, cluster=with_group(cluster, len(cluster.nodes) - 1, grown))
    count = len(wider.cluster) - len(cluster)
    what = "one more device" if count == 1 else f"one more node of {count} devices"
    return what, replace(plan, problem=wider, orders=(*plan.orders, *((),) * count))
