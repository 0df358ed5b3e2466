"""Finer stages on the same devices: gradient sums of the later ones overlap the backwards of the earlier ones.

A stage's gradients are summed between its replicas as soon as its own last backward has ended; of a stage in one piece
that is when nothing is left to be computed meanwhile. PyTorch's data parallelism does this by buckets (Li et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from ...basics import PlanError
from ...graph import Candidate, around_step_s, holders, stash_policy
from ...lower import assemble
from ...plan import Op, Pipeline, Plan
from ...schedules import cut_ops
from ..common import SIZE, Session
from .kept_orders import own_orders


def run_finer(session: Session) -> None:
    """The best plan with every stage in so many pieces on its devices, where sums between replicas take time."""
    plan = session.best
    if plan is not None and not session.over and session.space.schedule == "search" and session.rounds.refines(plan):
        offer_finer(session, plan)


def offer_finer(session: Session, plan: Plan, most: int = SIZE.chunks) -> float:
    """Offers a plan with every stage in pieces, `most` at the most, where that may help; the step of the best of these,
    in seconds."""
    best_s = math.inf
    for parts in range(2, most + 1) if sums(plan) else ():
        found = None if session.over else finer(plan, parts)
        if found is None:
            continue
        assert found.forecast is not None
        if session.offer(found, found.provenance.source):
            best_s = min(best_s, found.forecast.step_s)
    return best_s


def sums(plan: Plan) -> bool:
    """Whether summing gradients between replicas takes time, those in other groups included, in a plan by which nothing
    leaves its device.
    """
    if any(stash_policy(policy).leaves for row in plan.stash for policy in row):
        return False
    if any(pipeline.forward != pipeline.backward for pipeline in plan.pipelines):
        return False
    return longest_sum_s(Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash)) > 0


def longest_sum_s(candidate: Candidate) -> float:
    """Seconds of summing the gradients of the stage whose sum takes longest, and of gathering its parameters."""
    trained = candidate.costs.own_trained_bytes
    members = holders(candidate).items()
    return max((around_step_s(candidate.problem, mine, int(trained[s])) for s, mine in members if mine), default=0.0)


def finer(plan: Plan, parts: int) -> Plan | None:
    """A plan with each of its stages in up to so many pieces of about equal time; None where there are none, or it does
    not run.
    """
    pieces = [_pieces(plan, stage, parts) for stage in plan.stages]
    if all(len(mine) == 1 for mine in pieces):
        return None
    with suppress(PlanError):
        return assemble(*in_pieces(plan, pieces), plan.provenance.source)
    return None


def in_pieces(plan: Plan, pieces: Sequence[Sequence[tuple[str, ...]]]) -> tuple[Candidate, list[list[Op]]]:
    """The stages of a plan in these runs of their layers, and its compute orders with ops for each."""
    first = [sum(map(len, pieces[:s])) for s in range(len(pieces))]
    names = [list(range(begin, begin + len(mine))) for begin, mine in zip(first, pieces, strict=True)]

    def route(devices: Sequence[int]) -> tuple[int, ...]:
        return tuple(d for d, mine in zip(devices, pieces, strict=True) for _ in mine)

    pipelines = tuple(Pipeline(route(p.forward), route(p.backward), p.micro_batches) for p in plan.pipelines)
    stash = tuple(tuple(text for text, mine in zip(row, pieces, strict=True) for _ in mine) for row in plan.stash)
    stages = tuple(piece for mine in pieces for piece in mine)
    orders = [list(cut_ops(order, names)) for order in own_orders(plan)]
    return Candidate(plan.problem, stages, pipelines, stash), orders


def _pieces(plan: Plan, stage: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    """The layers of a stage in up to so many runs of about equal seconds."""
    model = plan.problem.model
    seconds = [model.layers[model.index[name]].backward_s for name in stage]
    whole, done, found = sum(seconds) or 1.0, 0.0, dict[int, list[str]]()
    for name, own in zip(stage, seconds, strict=True):
        found.setdefault(min(parts - 1, int(parts * (done + own / 2) / whole)), []).append(name)
        done += own
    return [tuple(mine) for mine in found.values()]
