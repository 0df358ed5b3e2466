"""Whether replicas share optimizers (ZeRO-1): a plan in which they do is searched for, and the best is tried both ways.

Shared optimizers take less memory and shorter steps, and as much traffic or less; what they may cost is time at the end
of a step, where parameters are gathered that an all-reduce would have had done with before. So everything is searched
as if they were shared, at no more cost, and what comes out is simulated once more without.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ..basics import OutOfTime, PlanError, until
from ..check import check
from ..graph import Candidate, holders
from ..lower import assemble
from ..plan import Plan, Problem
from ..problem import SearchSpace
from ..schedules import ASYNCHRONOUS
from .common import SECONDS, TOLERANCE, Session
from .named import own_orders, possible_orders


def searched_sharded(problem: Problem, space: SearchSpace) -> Problem:
    """The problem with shared optimizers where the space allows them and they may be of use."""
    workload = problem.workload
    several = min(len(problem.cluster), workload.micro_batches) > 1 and space.pipelines != 1
    timed = any(device.kind.memory_bandwidth is not None for device in problem.cluster.devices)
    useful = several and (timed or workload.optimizer_bytes(1) > 0)
    flush = not space.asynchronous and space.schedule not in ASYNCHRONOUS
    return sharing(problem, useful and space.shard_optimizer and flush)


def sharing(problem: Problem, sharded: bool) -> Problem:
    """The problem with shared optimizers or without."""
    return replace(problem, workload=replace(problem.workload, sharded=sharded, groups=1))


def settled(session: Session, best: Plan, hint: Plan | None) -> Plan:
    """The best plan, or the same with whole optimizers where that is faster; or the caller's plan with these."""
    if not session.problem.workload.sharded:
        return best
    whole = sharing(session.problem, False)
    alone = max(map(len, holders(best).values())) == 1  # there is nothing to share
    found = replace(best, problem=whole) if alone else best
    shorter = list[Plan]()
    with suppress(OutOfTime), until(session.clock.deadline + SECONDS.grace):
        for plan in (hint,) if alone else (hint, best):  # theirs is as it is, whatever time is left
            other = None if plan is None or plan.weights != best.weights else _whole(whole, plan)
            if other is not None and _step_s(other) < _step_s(found) * (1 - TOLERANCE.same):
                shorter.append(other)
    return next((other for other in sorted(shorter, key=_step_s) if not check(other)), found)


def _whole(problem: Problem, plan: Plan) -> Plan | None:
    """The plan on this problem; None where it does not run."""
    if plan.problem == problem and plan.forecast is not None:  # as it is: its copies may have an order of their own
        return plan
    try:
        candidate = Candidate(problem, plan.stages, plan.pipelines, plan.stash)
        return assemble(candidate, possible_orders(candidate, own_orders(plan)), plan.provenance.source)
    except (PlanError, KeyError, IndexError):
        return None


def _step_s(plan: Plan) -> float:
    assert plan.forecast is not None
    return plan.forecast.step_s
