"""What a search with a flush answers: its best plan with what is proven, or what the least bad one lacks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain

from .. import bounds
from ..basics import until
from ..graph import Candidate
from ..lower import Assembled, assembled
from ..partition import lightest
from ..plan import Pipeline, Plan
from ..schedules import capped
from .common import SECONDS, SIZE, Considered, Result, Session, answered, lacking, shortages, unanswered
from .named import Order, place
from .plainest import plainest
from .proofs import nothing_fits, parts_of, told_of
from .sharding import settled


def answer(session: Session, orders: list[Order], hint: Plan | None) -> Result:
    """The answer at the end of a search, with what can be proven in the grace after its deadline."""
    if session.best is None:
        return _no_plan(session, orders)
    best = settled(session, session.best, hint if session.space.schedule == "search" else None)
    best = plainest(session, best)
    with until(session.clock.deadline + SECONDS.grace):
        whole = told_of(session.problem, session.space, session.proof.asked_s, best, session.bounded)
        parts = chain(*(parts_of(part, orders, best) for part in (session, *session.reordered)))
        solver = "CP-SAT" if session.space.schedule == "search" else ""
        return answered(session, _joined(best), whole, parts if session.bounded else (), _considered(session), solver)


def _considered(session: Session) -> tuple[Considered, ...]:
    """The named schedules that were simulated, then everything else."""
    fit = [found for found in session.seen if not lacking(found)]
    named = Considered(
        f"named schedules on their best cuts: {len(session.seen)} simulated, {len(fit)} fit",
        session.bound_s,
        min((found.forecast.step_s for found in fit), default=None),
        "simulated",
    )
    less = session.smaller
    fewer = () if less is None else less.ledger.settled(less.best_s)
    parts = [replace(part, what=f"few micro-batches: {part.what}") for part in fewer]
    return (named, *parts, *session.ledger.settled(session.best_s))


def _joined(plan: Plan) -> Plan:
    """The plan with pipelines of one route and one row of stash policies made one."""
    taken: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]], list[int]] = {}
    for pipeline, row in zip(plan.pipelines, plan.stash, strict=True):
        taken.setdefault((pipeline.forward, pipeline.backward, row), []).extend(pipeline.micro_batches)
    if len(taken) == len(plan.pipelines):
        return plan
    pipelines = tuple(Pipeline(forward, backward, tuple(sorted(m))) for (forward, backward, _), m in taken.items())
    return replace(plan, pipelines=pipelines, stash=tuple(row for _, _, row in taken))


def _no_plan(session: Session, orders: list[Order]) -> Result:
    """Infeasible where proven, with what the least bad plan lacks; else unknown."""
    least = _least_bad(session, orders)
    short = shortages(least) if least is not None else ()
    least_s = bounds.any_plan(session.problem)
    asked_s = session.proof.asked_s
    bound_s = max(asked_s, least_s) if math.isfinite(asked_s) else least_s
    return unanswered(bound_s, short, bool(short) and nothing_fits(session), _considered(session))


def _least_bad(session: Session, orders: list[Order]) -> Plan | None:
    """The plan that exceeds its limits least: of those simulated, or one micro-batch at a time on the lightest cut."""
    tried = list(session.seen)
    large = session.ops > SIZE.one_cut
    if (session.space.schedule == "search" or not tried) and not (large and session.over):
        for order in orders:
            found = lightest(session.chain, order, [1] * len(order))
            if found is not None:
                tried.append(_serial(session, order, found[0]))
    least = min(tried, key=lacking, default=None)
    return None if least is None else least.plan


def _serial(session: Session, order: Order, cuts: tuple[int, ...]) -> Assembled:
    layout = capped(len(order), session.problem.workload.micro_batches, 1)
    placed = place(layout, order, len(session.problem.cluster))
    candidate = Candidate(session.problem, session.chain.stages(cuts), placed.pipelines)
    return assembled(candidate, placed.orders, placed.name)
