"""Ways to form equal groups of devices, and a plan of one group laid on all of them."""

from __future__ import annotations

from collections.abc import Iterator

from ...basics import PlanError
from ...bounds import load
from ...graph import Candidate, across, around_step_s, ship_target
from ...lower import assemble
from ...plan import Plan, Problem
from ...problem import Across, SearchSpace
from ..common import HOPE, Groups, dealt, equal_groups, fits, objective_s
from .kept_orders import own_orders
from .on_groups import named_on


def splits(problem: Problem, space: SearchSpace) -> Iterator[Groups]:
    """Every way to form equal groups: neighbours together, and, where that is something else, replicas together.

    Groups are equal when their devices are of the same kinds, and lie in nodes in the same way. None where at most
    two pipelines are allowed: these are for the two directions.
    """
    devices = len(problem.cluster)
    allowed = space.pipelines if space.pipelines is not None else (1 if space.schedule != "search" else devices)
    most = min(problem.workload.micro_batches, devices, allowed if allowed > 2 else 1)
    for width in range(2, most + 1) if space.replicas is None else (space.replicas,):
        size = devices // width
        if width < 2 or devices % width or not 0 < size <= len(problem.model.layers):
            continue
        equal = equal_groups(problem, width)
        yield from equal[:1] if equal and cheap(problem, equal[0]) else equal


def cheap(problem: Problem, groups: Groups) -> bool:
    """Whether reducing the gradients of equal stages between these groups takes little of the step."""
    return reduction_s(problem, groups) <= HOPE.cheap_reduction * load(problem)


def reduction_s(problem: Problem, groups: Groups) -> float:
    """Seconds of adding up the gradients of one device's equal share of the parameters between the groups.

    Where optimizers are shared, of gathering these parameters as well.
    """
    members = tuple(group[-1] for group in groups)
    trained = sum(x.trained_bytes for x in problem.model.layers) // len(groups[0])
    return around_step_s(problem, members, trained)


def ways_to_lay(problem: Problem, groups: Groups) -> list[Groups]:
    """The groups that a plan of one of these is laid on: where sums are cheap, all that are as many."""
    return equal_groups(problem, len(groups)) if cheap(problem, groups) else [groups]


def least_across(problem: Problem, groups: Groups) -> Across:
    """What sums between the groups take at the least, wherever the replicas lie in the end; a NIC is needed where it is
    by all ways to lay them.
    """
    found = [across(problem, each) for each in ways_to_lay(problem, groups)]
    on_nics = frozenset.intersection(*(one.on_nics for one in found))
    return Across(min(one.seconds_a_byte for one in found), min(one.latency_s for one in found), on_nics)


def best_laid(problem: Problem, groups: Groups, plan: Plan) -> Plan | None:
    """A plan of one group on all of them, replicas together where that is shorter and has no search of its own."""
    found = [laid(problem, each, plan) for each in ways_to_lay(problem, groups)]
    fitting = [one for one in found if one is not None and fits(one)]
    return min(fitting, key=objective_s, default=next((one for one in found if one is not None), None))


def laid(problem: Problem, groups: Groups, plan: Plan) -> Plan | None:
    """A plan of one group on all of them, micro-batches dealt out in turns; None where it does not run."""
    routed, orders = dealt(problem, groups, plan.pipelines, own_orders(plan))
    stash = tuple(tuple(_moved(policy, devices) for policy in plan.stash[row]) for _, row, devices in routed)
    pipelines = tuple(pipeline for pipeline, _, _ in routed)
    try:
        candidate = Candidate(problem, plan.stages, pipelines, stash)
        return assemble(candidate, orders, named_on(groups, plan.provenance.source))
    except PlanError:
        return None


def _moved(policy: str, devices: tuple[int, ...]) -> str:
    target = ship_target(policy)
    return policy if target is None else f"ship>{devices[target]}"
