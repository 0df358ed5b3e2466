"""The plan that a caller starts from, on the problem that is searched."""

from __future__ import annotations

from ...basics import PlanError
from ...check import check
from ...graph import Candidate
from ...lower import assemble
from ...plan import Plan
from ...schedules import known, spelled_out
from ..common import Session
from .halves import possible_orders
from .kept_orders import own_orders


def _schedule_of(plan: Plan) -> str:
    """What a plan says where it came from, if that is a schedule's name; else it was searched for."""
    name, replicas = spelled_out(plan.provenance.source)
    groups = "" if replicas is None else f", {replicas} replicas"
    return f"{name if known(name) else 'search'}{groups}"


def run_hint(session: Session, hint: Plan) -> None:
    """The caller's plan, simulated on this problem; ignored where it does not apply, or the checker says why not.

    Its stages list their layers as the data goes, whoever wrote them: what moves ends of stages takes the outermost.
    """
    rank = session.problem.model.rank
    stages = tuple(tuple(sorted(stage, key=lambda name: rank.get(name, -1))) for stage in hint.stages)
    candidate = Candidate(session.problem, stages, hint.pipelines, hint.stash)
    try:
        found = assemble(candidate, possible_orders(candidate, own_orders(hint)), _schedule_of(hint))
    except (PlanError, KeyError, IndexError):
        return
    if not check(found):
        session.offer(found, "hint")
