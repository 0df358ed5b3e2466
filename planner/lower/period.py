"""Seconds a micro-batch once the pipeline is full: measured on longer and longer runs of the same plan.

The start times of a periodic list are sums in max and plus (Baccelli et al., Synchronization and Linearity, 1992): they
grow by the largest mean of a circle of waiting ops, and the ops of that circle do so from the start.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..basics import PlanError, check_time
from ..forecast import Deadlock, build
from ..graph import costs_of, update_size
from ..plan import Kind, Plan
from ..problem import FLUSH
from .repetition import repeat

Floats = NDArray[np.float64]
_SAME = 1e-9
_BODY = 12  # updates between two lengths: whatever alternates with 2, 3, 4, 6 or 12 updates comes out even
_LARGE = 100_000  # ops of a run beyond which two updates must do
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
    longer = sum(map(len, plan.orders)) * _BODY * update_size(plan) // count
    step = (_BODY if longer <= _LARGE else 2) * update_size(plan)
    first = count - 2 * step if count > 2 * step else count
    try:
        return _settled(plan, first, step)
    except (_NoBody, Deadlock):
        return float(_ends(plan)[0]) / count


def _settled(plan: Plan, length: int, step: int) -> float:
    """Seconds a micro-batch between runs that are `step` micro-batches apart, twice as many from time to time.

    Of the last forward of every stage, or the end of the run, whichever moves most: a circle of ops that wait for each
    other holds its own stage back from the first micro-batch on, but a stage that starts late and is faster feels it
    only when it has caught up.
    """
    times, found = [_ends(_repeated(plan, length))], 0.0
    for k in range(_LENGTHS):
        if k > 1:
            step *= 2
        length += step
        times.append(_ends(_repeated(plan, length)))
        before, found = found, float((times[-1] - times[-2]).max()) / step
        if k and math.isclose(found, before, rel_tol=_SAME):
            break
    return found


class _NoBody(Exception):
    """A plan that has no periodic body."""


def _repeated(plan: Plan, length: int) -> Plan:
    check_time()
    try:
        return repeat(plan, length)
    except PlanError as error:
        raise _NoBody from error


def _ends(plan: Plan) -> Floats:
    """Seconds from the start of a run to its end, and to the end of every stage's last forward."""
    jobs = build(plan, costs_of(plan), plan.orders)
    if not jobs.complete:
        raise Deadlock("the op lists wait for each other in a circle")
    forwards = jobs.ops.where(Kind.F)
    found = np.zeros(1 + len(plan.stages))
    found[0] = jobs.end.max(initial=0.0)
    np.maximum.at(found, 1 + jobs.ops.stage[forwards], jobs.end[forwards])
    return found
