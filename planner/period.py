"""Seconds a micro-batch once the pipeline is full: measured on longer and longer runs of the same plan."""

from __future__ import annotations

import math

from .errors import PlanError
from .jobs import build
from .operations import StageCosts
from .plan import Plan
from .repeat import repeat
from .versions import update_size
from .weight_policy import FLUSH

_SAME = 1e-9
_BODY = 12  # updates between two lengths: whatever alternates with 2, 3, 4, 6 or 12 updates comes out even
_LENGTHS = 5


def period_seconds(plan: Plan) -> float | None:
    """Seconds a micro-batch of a plan without a flush in its steady state; None for a synchronous plan.

    The difference between the runs of two lengths, once it is that of the length before. A plan that has no
    periodic body can only be run again from an empty pipeline: then it is its run's time over its micro-batches.
    Raises PlanError for lists that cannot run.
    """
    if plan.weights == FLUSH:
        return None
    count = plan.problem.workload.micro_batches
    step = _BODY * update_size(plan)
    first = count - 2 * step if count > 2 * step else count
    try:
        return _settled(plan, first, step)
    except _NoBody:
        return _run_seconds(plan) / count


def _settled(plan: Plan, length: int, step: int) -> float:
    """Seconds a micro-batch between runs that are `step` micro-batches apart, twice as many from time to time."""
    times, found = [_run_seconds(_repeated(plan, length))], 0.0
    for k in range(_LENGTHS):
        if k > 1:
            step *= 2
        length += step
        times.append(_run_seconds(_repeated(plan, length)))
        before, found = found, (times[-1] - times[-2]) / step
        if k and math.isclose(found, before, rel_tol=_SAME):
            break
    return found


class _NoBody(Exception):
    """A plan that has no periodic body."""


def _repeated(plan: Plan, length: int) -> Plan:
    try:
        return repeat(plan, length)
    except PlanError as error:
        raise _NoBody from error


def _run_seconds(plan: Plan) -> float:
    """End of the last op of a run."""
    jobs = build(plan, StageCosts.of(plan.problem.model, plan.stages), plan.orders)
    if not jobs.complete:
        raise PlanError("the op lists wait for each other in a circle")
    return float(jobs.end.max(initial=0.0))
