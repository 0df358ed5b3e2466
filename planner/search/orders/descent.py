"""Which stashes to recompute: from a plan that recomputes all, keep as many as memory holds, the most useful first.

Each pipeline's micro-batches fall into a few groups that take turns, and every (group, stage) is decided on its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from ...graph import KEEP, RECOMPUTE, Candidate
from ...plan import Pipeline, Plan
from ..common import COUNT, SIZE, Session, excess, lacking
from .arm import Arm
from .kernels import NEVER
from .race import simulated
from .ready import KERNELS
from .translate import remade


def keep_what_fits(session: Session) -> Iterator[None]:
    """Improves the best plans that recompute every stash by keeping what memory holds; once each.

    Yields after every stash that was looked at, so that it can go on where time was too short.
    """
    if not KERNELS.ready(session.clock, session.remaining_s):
        return
    for plan in _recomputing(session):
        if session.rounds.descends(plan):
            yield from _kept(session, plan)
            session.rounds.end_descent(plan)


def _kept(session: Session, plan: Plan) -> Iterator[None]:
    arm = Arm(_grouped(session, plan), session.space.split_backward, False, session.seed)
    if arm.ops > SIZE.descended_ops:
        return
    arm.seed_with(plan.orders)
    for _ in range(COUNT.fitted):
        if arm.order is None:
            return
        better = yield from _descend(arm)
        found = simulated(better)
        if found is None or session.offer(found, "stash decisions"):
            return
        lowered = arm.lowered or (0,) * len(session.problem.cluster)
        arm = arm.tightened(tuple(a + b for a, b in zip(lowered, excess(found), strict=True)))
        arm.seed_with(plan.orders)


def _recomputing(session: Session) -> list[Plan]:
    """Plans simulated so far that fit and recompute every stash, fastest first."""
    plans = [
        found
        for found in session.seen
        if all(policy == RECOMPUTE for row in found.candidate.stash for policy in row) and not lacking(found)
    ]
    return [found.plan for found in sorted(plans, key=lambda found: found.forecast.step_s)[: COUNT.extremes]]


def _grouped(session: Session, plan: Plan) -> Candidate:
    """The plan's candidate with every pipeline's micro-batches in a few pipelines of the same route."""
    pipelines: list[Pipeline] = []
    for pipeline in plan.pipelines:
        for k in range(COUNT.stash_groups):
            mine = pipeline.micro_batches[k :: COUNT.stash_groups]
            if mine:
                pipelines.append(Pipeline(pipeline.forward, pipeline.backward, mine))
    rows = tuple((RECOMPUTE,) * len(plan.stages) for _ in pipelines)
    return Candidate(session.problem, plan.stages, tuple(pipelines), rows)


def _descend(arm: Arm) -> Generator[None, None, Arm]:
    """Keeps one (group, stage) after the other where that fits and is no slower, late stages first."""
    for group, stage in _places(arm.candidate):
        yield
        stash = arm.candidate.stash
        row = stash[group]
        rows = (*stash[:group], (*row[:stage], KEEP, *row[stage + 1 :]), *stash[group + 1 :])
        other = replace(arm, candidate=replace(arm.candidate, stash=rows), order=None, seconds=NEVER)
        assert arm.order is not None
        other.accept(remade(other.arrays, arm.order))
        if other.order is not None and other.seconds <= arm.seconds:
            arm = other
    return arm


def _places(candidate: Candidate) -> Iterator[tuple[int, int]]:
    """Groups and stages, the last stages first: their stashes live shortest."""
    for stage in reversed(range(len(candidate.stages))):
        for group in range(len(candidate.pipelines)):
            yield group, stage
