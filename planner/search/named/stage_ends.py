"""Where the stages of the best plan end: ends move, go and come while that makes the step shorter, its orders staying.

Stages that follow one another on one device compute as one would, but each has a sum of gradients, an update and a
gathering of its own: few large ones begin late, many small ones wait for one another. Between stages of two devices one
end decides how much each computes; several together may leave that as it is, and change who waits for whom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from ...basics import PlanError
from ...graph import Candidate
from ...lower import assemble
from ...plan import Op, Plan
from ..common import COUNT, SHARE, Session, moved_end, nearby_cuts, same_devices
from .finer import in_pieces, sums
from .kept_orders import own_orders


def move_ends(session: Session) -> None:
    """Descends from the best plan."""
    plan = session.best
    if plan is None or session.over or session.space.schedule != "search":
        return
    end = time.monotonic() + (session.remaining_s if session.clock.fixed else SHARE.stage_ends * session.remaining_s)
    left = COUNT.stage_ends
    while left > 0 and plan is not None and session.rounds.moves_ends(plan):
        for found in islice(_neighbours(plan), left):
            left -= 1
            if session.over or time.monotonic() >= end:
                return
            session.offer(found, found.provenance.source)
            if session.best is not plan:
                break
        else:
            return
        plan = session.best


def _neighbours(plan: Plan) -> Iterator[Plan]:
    """Plans with ends of stages elsewhere, that can be run: on one device where sums between replicas take time."""
    if sums(plan):
        yield from _on_one_device(plan)
    assert plan.forecast is not None
    for stages in nearby_cuts(plan, plan.forecast.step_s):
        yield from _assembled(plan, Candidate(plan.problem, stages, plan.pipelines, plan.stash))


def _on_one_device(plan: Plan) -> Iterator[Plan]:
    """Plans with one end between stages of a device elsewhere, left out, or one more."""
    alike = [same_devices(plan, s) for s in range(len(plan.stages) - 1)]
    for s in range(len(plan.stages) - 1):
        if alike[s]:
            for move in ((s, -1), (s, 1)):
                stages = moved_end(plan.stages, move)
                if stages is not None:
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
