"""Where stages end that follow one another on one device: ends move, go and come while that makes the step shorter.

Such stages compute as one would, but each has a sum of gradients, an update and a gathering of its own: few large ones
begin late, many small ones wait for one another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise

from ...basics import PlanError
from ...graph import Candidate
from ...lower import assemble
from ...plan import Op, Plan
from ..common import COUNT, SHARE, Session
from .finer import in_pieces, sums
from .kept_orders import own_orders


def move_ends(session: Session) -> None:
    """Descends from the best plan, where sums between replicas take time."""
    plan = session.best
    if plan is None or session.over or session.space.schedule != "search" or not sums(plan):
        return
    end = time.monotonic() + (session.remaining_s if session.clock.fixed else SHARE.stage_ends * session.remaining_s)
    left = COUNT.stage_ends
    while left > 0 and plan is not None and session.rounds.moves_ends(plan):
        for found in islice(_neighbours(plan), left):
            left -= 1
            if session.over or time.monotonic() >= end:
                return
            if session.offer(found, found.provenance.source):
                break
        else:
            return
        plan = session.best


def _neighbours(plan: Plan) -> Iterator[Plan]:
    """Plans with one end of a stage elsewhere, left out, or one more, that can be run."""
    alike = [_alike(plan, s) for s in range(len(plan.stages) - 1)]
    for s, (one, other) in enumerate(pairwise(plan.stages)):
        if alike[s]:
            for left, right in ((one[:-1], one[-1:] + other), (one + other[:1], other[1:])):
                if left and right:
                    stages = (*plan.stages[:s], left, right, *plan.stages[s + 2 :])
                    yield from _assembled(plan, Candidate(plan.problem, stages, plan.pipelines, plan.stash))
    for s in range(len(plan.stages) - 1):
        if alike[s]:
            yield from _merged(plan, s)
    for s, stage in enumerate(plan.stages):
        if len(stage) > 1:
            whole = [[each] for each in plan.stages]
            whole[s] = [stage[: len(stage) // 2], stage[len(stage) // 2 :]]
            found = in_pieces(plan, whole)
            if found is not None:
                yield found


def _alike(plan: Plan, s: int) -> bool:
    """Whether a stage and the next one have the same devices and policies."""
    routes = all(row[s] == row[s + 1] for pipeline in plan.pipelines for row in (pipeline.forward, pipeline.backward))
    return routes and all(row[s] == row[s + 1] for row in plan.stash)


def _assembled(plan: Plan, candidate: Candidate, orders: list[list[Op]] | None = None) -> Iterator[Plan]:
    """The candidate in these orders, or those of the plan; nothing where it does not run."""
    with suppress(PlanError):
        yield assemble(candidate, orders or own_orders(plan), plan.provenance.source)


def _merged(plan: Plan, s: int) -> Iterator[Plan]:
    """The plan with a stage and the next one as one."""
    stages = (*plan.stages[:s], plan.stages[s] + plan.stages[s + 1], *plan.stages[s + 2 :])

    def without(row: tuple[int, ...]) -> tuple[int, ...]:
        return row[: s + 1] + row[s + 2 :]

    pipelines = tuple(
        replace(pipeline, forward=without(pipeline.forward), backward=without(pipeline.backward))
        for pipeline in plan.pipelines
    )
    stash = tuple(row[: s + 1] + row[s + 2 :] for row in plan.stash)
    orders = [list(_without(order, s)) for order in own_orders(plan)]
    yield from _assembled(plan, Candidate(plan.problem, stages, pipelines, stash), orders)


def _without(order: list[Op], s: int) -> Iterator[Op]:
    """A compute order whose ops of a stage and the next one are those of one, each where the later of both stood."""
    last = {(op.kind, op.micro_batch): op.stage for op in order if op.stage in (s, s + 1)}
    for op in order:
        if op.stage in (s, s + 1):
            if op.stage == last[op.kind, op.micro_batch]:
                yield op._replace(stage=s)
        else:
            yield op._replace(stage=op.stage - (op.stage > s))
