"""Many micro-batches: a problem with few is searched first, and the steady part of its plans is repeated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, islice

from ... import bounds
from ...basics import ScheduleError
from ...graph import KEEP, RECOMPUTE, Candidate, stash_policy
from ...lower import Assembled
from ...partition import Cuts
from ...plan import Pipeline, Problem
from ...schedules import build
from ..common import COUNT, SIZE, Session, lacking
from ..named import Order, cuts_for, place, try_layout, try_mixed, try_relieved


def left_out(session: Session) -> int:
    """Micro-batches that the smaller problem does without; 0 where that would save little.

    Where possible a multiple of the devices, since the period of named orders divides that.
    """
    batches, devices = session.problem.workload.micro_batches, session.stages
    most, least = batches - 4 * devices, SIZE.left_out * batches
    if 2 * batches * devices <= SIZE.one_cut or session.space.schedule != "search":
        return 0
    counts = [
        most // unit * unit for unit in (math.lcm(SIZE.repeated, 2 * devices), math.lcm(4, 2 * devices), SIZE.repeated)
    ]
    return next((count for count in counts if count >= least), 0)


def fewer_batches(session: Session, bound: Callable[[Session], float]) -> Session | None:
    """The search with few micro-batches; None where the problem is small as it is."""
    less = left_out(session)
    if not less:
        return None
    problem = session.problem
    workload = replace(problem.workload, micro_batches=problem.workload.micro_batches - less)
    small = session.inner(
        Problem(problem.model, problem.cluster, workload),
        session.space,
        lambda event: session.report(f"{event.phase}, few micro-batches"),
    )
    small.proof.of_searched(bound(small))
    limit_uses(session, small)
    return small


def limit_uses(session: Session, small: Session) -> None:
    """Tells the search with few micro-batches what is of no use with all of them."""
    fewer, batches = small.problem.workload.micro_batches, session.problem.workload.micro_batches
    small.incumbent.limit(session.best_s * fewer / batches)


def take_over(session: Session, small: Session, orders: list[Order]) -> None:
    """Offers the named schedules that did best with few micro-batches, and the repetitions of the best plans."""
    ranked = sorted((found for found in small.seen if not lacking(found)), key=lambda found: found.forecast.step_s)
    for found in ranked[: COUNT.taken_over]:
        _named(session, found, orders)
    plans = [Candidate(small.problem, p.stages, p.pipelines, p.stash) for p in [small.best] if p is not None]
    lists = [p.orders for p in [small.best] if p is not None]
    for found in ranked[: COUNT.taken_over]:
        plans.append(found.candidate)
        lists.append(found.ops.lists())
    for candidate, listed in zip(plans, lists, strict=True):
        if session.done:
            return
        _repeat(session, candidate, listed)


def _named(session: Session, found: Assembled, orders: list[Order]) -> None:
    """The named schedule of a plan with few micro-batches, with all of them."""
    used = {policy for row in found.candidate.stash for policy in row}
    for order in orders:
        if session.done:
            return
        try:
            layout = build(found.source, len(order), session.problem.workload.micro_batches)
        except ScheduleError:
            return
        placed = place(layout, order, len(session.problem.cluster))
        if any(stash_policy(policy).leaves for policy in used):
            try_relieved(session, placed, _cuts(found.candidate))
        elif used == {KEEP}:
            try_layout(session, placed, islice(cuts_for(session, placed, 0), 1), layout.name)
        else:
            try_mixed(session, placed, used - {KEEP}, layout.name)


def _cuts(candidate: Candidate) -> Cuts:
    """Where a candidate's layers are cut."""
    return tuple(accumulate(map(len, candidate.stages[:-1])))


def _repeat(session: Session, candidate: Candidate, listed: object) -> None:
    from ..orders import (
        Arm,  # compiles: loaded when needed
        simulated,
    )

    if any(policy not in (KEEP, RECOMPUTE) for row in candidate.stash for policy in row):
        return
    split, count = session.space.split_backward, len(candidate.pipelines)
    batches = session.problem.workload.micro_batches
    longer = Candidate(
        session.problem,
        candidate.stages,
        tuple(
            Pipeline(p.forward, p.backward, tuple(range(k, batches, count))) for k, p in enumerate(candidate.pipelines)
        ),
        candidate.stash,
    )
    if bounds.candidate(longer, None, split) >= session.best_s:
        return
    arm = Arm(candidate, split, False, session.seed)
    arm.seed_with(listed)  # type: ignore[arg-type]
    full = arm.stretched(Arm(longer, split, False, session.seed))
    plan = simulated(full) if full.order is not None else None
    if plan is not None:
        session.offer(plan, "order search")
