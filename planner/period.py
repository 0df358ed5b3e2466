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
_DOUBLINGS = 4


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
    try:
        longer = repeat(plan, count + step)
    except PlanError:
        return _run_seconds(plan) / count
    times = [_run_seconds(plan), _run_seconds(longer)]
    found = (times[1] - times[0]) / step
    for _ in range(_DOUBLINGS):
        before, length = found, longer.problem.workload.micro_batches
        longer = repeat(plan, length + step)
        times.append(_run_seconds(longer))
        found = (times[-1] - times[-2]) / step
        if math.isclose(found, before, rel_tol=_SAME):
            break
        step *= 2
    return found


def _run_seconds(plan: Plan) -> float:
    """End of the last op of a run."""
    jobs = build(plan, StageCosts.of(plan.problem.model, plan.stages), plan.orders)
    if not jobs.complete:
        raise PlanError("the op lists wait for each other in a circle")
    return float(jobs.end.max(initial=0.0))
