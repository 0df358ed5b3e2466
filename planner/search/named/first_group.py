"""What the first of several equal groups does in a plan on all of them: where its search may go on from."""

from __future__ import annotations

from contextlib import suppress

from ...basics import PlanError
from ...graph import Candidate, ship_target
from ...lower import assemble
from ...plan import Pipeline, Plan, Problem
from ..common import Groups, parts
from .kept_orders import own_orders


def lies_on(groups: Groups, plan: Plan) -> bool:
    """Whether every pipeline of a plan stays in one of these groups, and every group has some."""
    found = parts(plan, groups)
    return found is not None and len(found) == len(groups)


def of_first_group(problem: Problem, groups: Groups, plan: Plan) -> Plan | None:
    """The plan's part on the first group, for the problem of that group alone; what `laid` makes a plan on all of.

    None where a pipeline leaves its group, some group has none, stashes are shipped, the first group has another number
    of micro-batches than its problem, or the part does not run alone.
    """
    if not lies_on(groups, plan):
        return None
    rows = [row for row, pipeline in enumerate(plan.pipelines) if pipeline.forward[0] in groups[0]]
    if any(ship_target(policy) is not None for row in rows for policy in plan.stash[row]):
        return None
    batches = sorted(m for row in rows for m in plan.pipelines[row].micro_batches)
    if len(batches) != problem.workload.micro_batches:
        return None
    number = {m: k for k, m in enumerate(batches)}
    place = {d: k for k, d in enumerate(groups[0])}
    pipelines = []
    for row in rows:
        forward, backward = plan.pipelines[row].forward, plan.pipelines[row].backward
        mine = tuple(number[m] for m in plan.pipelines[row].micro_batches)
        pipelines.append(Pipeline(tuple(place[d] for d in forward), tuple(place[d] for d in backward), mine))
    orders = own_orders(plan)
    listed = [[op._replace(micro_batch=number[op.micro_batch]) for op in orders[d]] for d in groups[0]]
    name = plan.provenance.source.removesuffix(f", {len(groups)} replicas")
    with suppress(PlanError):
        candidate = Candidate(problem, plan.stages, tuple(pipelines), tuple(plan.stash[row] for row in rows))
        return assemble(candidate, listed, name)
    return None
