"""Where the stages of the best plan end: ends move, go and come while that makes the step shorter, its orders staying.

Stages that follow one another on one device compute as one would, but each has a sum of gradients, an update and a
gathering of its own: few large ones begin late, many small ones wait for one another. Between stages of two devices one
end decides how much each computes; several together may leave that as it is, and change who waits for whom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import TypeVar

import numpy as np

from ...basics import PlanError
from ...forecast import Timeline
from ...graph import Candidate, Structured
from ...lower import Assembled, simulated
from ...plan import COLLECTIVES, Kind, Op, Plan
from ..common import COUNT, SHARE, TOLERANCE, Session, moved_end, nearby_cuts, same_devices
from .finer import in_pieces, sums
from .halves import possible_orders
from .kept_orders import own_orders
from .last_weights import weights_by_sums

Orders = list[list[Op]]
_T = TypeVar("_T")
Score = tuple[float, float]
"""A plan's step, and the seconds at which its devices are done, together: where several are last, one at a time gains
no step.
"""


def move_ends(session: Session) -> None:
    """Descends from the best plan, and from what is plainer: pieces of stages, and halves of backwards, hide that.

    One plan of each descent in turn. Called again with the same best plan, they go on where time had ended them.
    """
    here = session.best
    if here is None or session.over or session.space.schedule != "search":
        return
    end = time.monotonic() + (session.remaining_s if session.clock.fixed else SHARE.stage_ends * session.remaining_s)
    descents = session.rounds.moving(here, lambda: [_descent(session, start) for start in (here, *_plainer(here))])
    while descents and not session.over and time.monotonic() < end:
        descents[:] = [descent for descent in descents if next(descent, False)]
    if session.best is not None:
        session.rounds.moved(session.best)


def _descent(session: Session, here: Plan) -> Iterator[bool]:
    """From a plan to better ones whose stages end elsewhere; True for each that is simulated."""
    score, left, found = _score(here, _simulated(here)), COUNT.stage_ends, True
    while found:
        found = False
        for candidate, orders in islice(_neighbours(here), left):
            left -= 1
            with suppress(PlanError):
                timeline = _timed(candidate, orders)
                other = _score(candidate, timeline)
                if _better(other, score):
                    plan = Assembled(candidate, timeline.jobs.ops, timeline.forecast(), here.provenance.source).plan
                    if session.offer(plan, plan.provenance.source):
                        here, score, found = plan, other, True
            yield True
            if found:
                break


def _plainer(plan: Plan) -> Iterator[Plan]:
    """The plan with the stages that follow one another on one device as one, and so with whole backwards: what runs,
    and is another.
    """
    orders, joined = own_orders(plan), any(same_devices(plan, s) for s in range(len(plan.stages) - 1))
    halves = any(op.kind is Kind.W for order in orders for op in order)
    for listed in ([orders] if joined else []) + ([_with_whole_backwards(orders)] if halves else []):
        with suppress(PlanError):
            candidate, lists = _joined(plan, listed)
            timeline = _timed(candidate, lists)
            yield Assembled(candidate, timeline.jobs.ops, timeline.forecast(), plan.provenance.source).plan


def _with_whole_backwards(orders: Orders) -> Orders:
    return [
        [op._replace(kind=Kind.B) if op.kind is Kind.I else op for op in order if op.kind is not Kind.W]
        for order in orders
    ]


def _simulated(plan: Plan) -> Timeline:
    return simulated(Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash), own_orders(plan))


def _timed(candidate: Candidate, orders: Orders) -> Timeline:
    """What orders of other stages take on these: whole and halved backwards may come together in one stage."""
    return simulated(candidate, possible_orders(candidate, orders))


def _score(plan: Structured, timeline: Timeline) -> Score:
    jobs = timeline.jobs
    ops, done = jobs.ops, np.zeros(len(plan.problem.cluster))
    np.maximum.at(done, ops.device, jobs.end[: len(ops)])
    for n in ops.where(*COLLECTIVES).tolist():
        op = Op(Kind(int(ops.kind[n])), *(int(column[n]) for column in (ops.stage, ops.micro_batch, ops.peer)))
        done[ops.device[n]] = max(done[ops.device[n]], jobs.end[jobs.reduce_job[op.collective]])
    return timeline.step_s, float(done.sum())


def _better(one: Score, other: Score) -> bool:
    """Whether the step is shorter, or as long and devices are done sooner."""
    shorter, longer = (other[0] * (1 + sign * TOLERANCE.sums) for sign in (-1, 1))
    return one[0] < shorter or (one[0] <= longer and one[1] < other[1] * (1 - TOLERANCE.sums))


def _neighbours(plan: Plan) -> Iterator[tuple[Candidate, Orders]]:
    """Plans with ends of stages elsewhere; on one device, where sums take time, with weight halves as these ask for."""
    if sums(plan):
        for candidate, orders in chain([_cut_at(plan, plan.stages)], _on_one_device(plan)):
            yield candidate, weights_by_sums(candidate, orders)
    assert plan.forecast is not None
    for stages in nearby_cuts(plan, plan.forecast.step_s):
        yield _cut_at(plan, stages)


def _cut_at(plan: Plan, stages: tuple[tuple[str, ...], ...]) -> tuple[Candidate, Orders]:
    return Candidate(plan.problem, stages, plan.pipelines, plan.stash), own_orders(plan)


def _on_one_device(plan: Plan) -> Iterator[tuple[Candidate, Orders]]:
    """Plans with one end between stages of a device elsewhere, left out, or one more."""
    alike = [s for s in range(len(plan.stages) - 1) if same_devices(plan, s)]
    for s in alike:
        for move in ((s, -1), (s, 1)):
            stages = moved_end(plan.stages, move)
            if stages is not None:
                yield _cut_at(plan, stages)
    for s in alike:
        yield _merged(plan, s)
    for s, stage in enumerate(plan.stages):
        for size in sorted({1, len(stage) // 2, len(stage) - 1} - {0}) if len(stage) > 1 else ():
            whole = [[each] for each in plan.stages]
            whole[s] = [stage[:size], stage[size:]]
            yield in_pieces(plan, whole)


def _merged(plan: Plan, s: int) -> tuple[Candidate, Orders]:
    """The plan with a stage and the next one as one."""
    return _as_one(plan, [number - (number > s) for number in range(len(plan.stages))], own_orders(plan))


def _joined(plan: Plan, orders: Orders) -> tuple[Candidate, Orders]:
    """The plan in these orders with all stages that follow one another on one device as one."""
    ends = (not same_devices(plan, s) for s in range(len(plan.stages) - 1))
    return _as_one(plan, [0, *accumulate(map(int, ends))], orders)


def _as_one(plan: Plan, number: Sequence[int], orders: Orders) -> tuple[Candidate, Orders]:
    """The plan with the stages of the same number as one."""
    groups = [[s for s, other in enumerate(number) if other == n] for n in range(number[-1] + 1)]

    def firsts(row: tuple[_T, ...]) -> tuple[_T, ...]:
        return tuple(row[group[0]] for group in groups)

    stages = tuple(tuple(chain.from_iterable(plan.stages[s] for s in group)) for group in groups)
    pipelines = tuple(replace(p, forward=firsts(p.forward), backward=firsts(p.backward)) for p in plan.pipelines)
    stash = tuple(firsts(row) for row in plan.stash)
    return Candidate(plan.problem, stages, pipelines, stash), [list(_numbered(order, number)) for order in orders]


def _numbered(order: list[Op], number: Sequence[int]) -> Iterator[Op]:
    """A compute order whose ops of stages with one number are those of one, each where the last of them stood."""
    last = {(op.kind, number[op.stage], op.micro_batch): op.stage for op in order}
    for op in order:
        if op.stage == last[op.kind, number[op.stage], op.micro_batch]:
            yield op._replace(stage=number[op.stage])
