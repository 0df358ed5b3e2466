"""Plans whose devices are teams of ranks, for small models of the zoo."""

from __future__ import annotations

from functools import cache

import torch
from instances import cut_evenly
from runs import SAMPLES, Case, at_given_times, rewritten, stashed

from contraflow.executor.measure.analytic import analytic_profile
from contraflow.models import resolve
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

Ways = tuple[tuple[str, int], ...]


@cache
def team_graph(name: str, ways: Ways, precision: str = "fp32") -> ModelGraph:
    """A model's bytes on one lane of such a team, its times given."""
    found = analytic_profile(resolve(name), SAMPLES, PRESETS["A100-40GB"], precision, ways=dict(ways))
    return at_given_times(ModelGraph.from_dict(found))


def team_plan(case: Case, ways: Ways) -> Plan:
    """The plan of a case with teams for devices: layers dealt out evenly."""
    graph = team_graph(case.model, ways, "bf16" if case.dtype is torch.bfloat16 else "fp32")
    team = graph.team
    layout = build(case.schedule, case.devices, case.micro_batches)
    workload = Workload(case.micro_batches, case.optimizer, case.precision, update_every=case.update)
    problem = Problem(graph, Cluster.uniform(case.devices * team).teams(team), workload)
    whole = Candidate(problem, cut_evenly(graph, layout.stages), layout.pipelines, (), case.weights)
    candidate = stashed(whole, case.stash)
    return assemble(candidate, [rewritten(order, candidate, case.halves) for order in layout.orders], case.schedule)
