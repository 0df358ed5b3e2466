"""Plans that are known as arms: the best so far, the next best, and those on other routes."""

from __future__ import annotations

from dataclasses import replace

from ...graph import RECOMPUTE, Candidate, stash_policy
from ...plan import Plan
from ..common import COUNT, RACE, SIZE, Session, binding, lacking, policies
from .arm import Arm, bound, halved
from .arrays import knows


def ops_of(candidate: Candidate) -> int:
    """Forwards and both halves of backwards of one pipeline with all micro-batches."""
    return 3 * len(candidate.stages) * candidate.problem.workload.micro_batches


def best_known(session: Session, others: int = 0) -> list[Arm]:
    """The best plan so far as an arm, and so many of the next best that were simulated: each on a cut of its own, or
    with other sorts of stashes.

    Those too since a worse plan may lead to a better one than the best does. Where memory binds, each also with room
    for tensors in transit.
    """
    arms = [] if session.best is None else _arms_of(session, session.best)
    sorts = {_sort(arm.candidate) for arm in arms}
    for found in sorted(session.seen, key=lambda one: one.forecast.step_s) if others else ():
        if _sort(found.candidate) in sorts or lacking(found):
            continue
        sorts.add(_sort(found.candidate))
        arms += _arms_of(session, found.plan)
        others -= 1
        if not others:
            break
    return arms


def on_other_routes(session: Session) -> list[Arm]:
    """The best plans that were simulated on other routes than the best one, as arms: named orders, and blocks."""
    arms, known = list[Arm](), set() if session.best is None else {session.best.pipelines}
    near_s = RACE.mutant * session.best_s
    for found in sorted(session.seen, key=lambda one: one.forecast.step_s):
        if len(known) > COUNT.other_routes or found.forecast.step_s >= near_s:
            break
        if found.candidate.pipelines not in known and not lacking(found):
            known.add(found.candidate.pipelines)
            arms += _arms_of(session, found.plan)
    return arms


def _sort(candidate: Candidate) -> tuple[object, ...]:
    """A cut, and what becomes of its stashes, wherever they go."""
    return candidate.stages, frozenset(stash_policy(policy).name for row in candidate.stash for policy in row)


def _arms_of(session: Session, plan: Plan) -> list[Arm]:
    """A plan as arms, with the stashes that leave their device also made again; none where they do not know these."""
    candidate = Candidate(session.problem, plan.stages, plan.pipelines, plan.stash)
    separate = any(pipeline.forward != pipeline.backward for pipeline in plan.pipelines)
    if separate or not knows(candidate) or ops_of(candidate) * len(plan.pipelines) > SIZE.annealed_ops:
        return []
    again = tuple(tuple(RECOMPUTE if stash_policy(policy).leaves else policy for policy in row) for row in plan.stash)
    variants = [candidate]
    if again != plan.stash and RECOMPUTE in policies(session.problem, session.space):
        variants.append(replace(candidate, stash=again))
    return [arm for variant in variants for arm in _seeded(session, variant, plan)]


def _seeded(session: Session, candidate: Candidate, plan: Plan) -> list[Arm]:
    """Arms of a candidate that begin with a plan's orders."""
    split, least_s = session.space.split_backward, bound(candidate, session.space.split_backward)
    margins = [(), _in_transit(candidate)] if binding(session.problem) else [()]
    arms = [
        Arm(candidate, halves, False, session.seed + k, m, bound_s=least_s)
        for halves in halved(candidate, split)
        for k, m in enumerate(margins)
    ]
    return [arm for arm in (arm.seeded(plan.orders) for arm in arms) if arm.order is not None]


def _in_transit(candidate: Candidate) -> tuple[int, ...]:
    """Bytes of two tensors at every boundary of a device's stages, which arrays leave out."""
    found = [0] * len(candidate.problem.cluster)
    for producer, consumer, size in candidate.costs.edges:
        ends = {(p.forward[producer], p.forward[consumer]) for p in candidate.pipelines}
        for device in {d for pair in ends if pair[0] != pair[1] for d in pair}:
            found[device] += 2 * size
    return tuple(found)
