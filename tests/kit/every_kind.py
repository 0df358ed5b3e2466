"""Random plans of every kind that a plan file may hold, for what must be true of any plan."""

from __future__ import annotations

import random
from dataclasses import replace

from random_plans import plans_of, random_candidate, tied
from varied import endless, in_random_orders

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph import Candidate, holders
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.search.named import own_orders

KINDS = ("plain", "separate", "policies", "tied", "shared", "teams", "endless")
"""Any routes; backward devices of their own; every micro-batch another row of policies; tied layers; optimizers that
replicas share; devices that are teams; without a flush."""


def of_kind(kind: str, seed: int) -> Plan | None:
    """A random plan of a kind; None where the draw allows none."""
    rng = random.Random(seed)
    if kind == "endless":
        problem = endless(random_candidate(seed).problem, rng)
        return next(in_random_orders(problem, rng, 8), None)
    if kind == "shared":
        some = (of_kind("plain", 64 * seed + k) for k in range(64))
        return next((one for one in map(_shared, filter(None, some)) if one is not None), None)
    candidate = random_candidate(
        seed, kind == "separate", ("recompute", "offload", "ship") if kind == "policies" else None
    )
    if kind == "tied":
        candidate = tied(candidate, seed)
    if kind == "teams":
        candidate = of_teams(candidate)
    return next(iter(plans_of(candidate, seed, 1, rng.random() < 0.5)), None)


def of_teams(candidate: Candidate) -> Candidate:
    """The candidate on teams of two ranks; links between teams are those of their ranks."""
    problem = candidate.problem
    nodes = tuple(replace(node, devices=2 * node.devices) for node in problem.cluster.nodes)
    cluster = Cluster(nodes, problem.cluster.network, overhead=problem.cluster.overhead).teams(2)
    model: ModelGraph = replace(problem.model, ways=(("tensor", 2),))
    return replace(candidate, problem=Problem(model, cluster, problem.workload))


def _shared(plan: Plan) -> Plan | None:
    """With an optimizer that replicas share; None where no stage has any."""
    if max(map(len, holders(plan).values())) < 2:
        return None
    problem = replace(plan.problem, workload=replace(plan.problem.workload, sharded=True))
    try:
        return assemble(Candidate(problem, plan.stages, plan.pipelines, plan.stash), own_orders(plan))
    except PlanError:
        return None
