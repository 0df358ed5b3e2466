"""No device is above the peak that was planned: what the forecast might have left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from async_plans import SCHEDULED, separated
from async_plans import run as run_threads
from runs import worst_excess

from contraflow.planner.cluster import Link
from contraflow.planner.lower import assemble
from contraflow.planner.operations import Candidate, StageCosts
from contraflow.planner.plan import Kind, Plan
from contraflow.planner.simulate import simulate


def linked(plan: Plan, link: Link) -> Plan:
    """The same compute in the same order on other links."""
    (group,) = plan.problem.cluster.nodes
    cluster = replace(plan.problem.cluster, nodes=(replace(group, link=link),))
    candidate = Candidate(replace(plan.problem, cluster=cluster), plan.stages, plan.pipelines, plan.stash, plan.weights)
    line = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
    return assemble(candidate, [[op for op in order if op.kind in line] for order in plan.orders])


@pytest.mark.parametrize("link", [Link(), Link(latency_s=20e-6), Link(1e9)], ids=["free", "late", "slow"])
def test_parameters_sent_at_once_are_a_copy_all_the_same(link: Link) -> None:
    """While new parameters leave, the owner holds them twice, even if it takes no time."""
    plan = linked(separated("naive", 2, 1), link)
    costs = StageCosts.of(plan.problem.model, plan.stages)
    for device, memory in enumerate(simulate(plan).device_memory):
        assert dict(memory.peak_parts)["weight versions"] >= costs.parameter_bytes[1 - device]
    found = run_threads(plan, (10,), SCHEDULED, torch.float32)
    assert max(worst_excess(found).values()) <= 1, worst_excess(found)
