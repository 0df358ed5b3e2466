"""What the search finds where memory is scarce, trained: exactly as in one process, within the planned memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runs import STEPS, Case, assert_equals_reference, profiled, worst_excess

from contraflow.executor.run.launch import execute
from contraflow.planner.check import check
from contraflow.planner.plan import Plan
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.driver import plan

CASE = Case("search", "gpt-tiny", 2, 4)
KEPT_1F1B = 2_658_816
"""Bytes of 1F1B's peak with all stashes kept."""


def _searched(space: SearchSpace, limit: int, wanted: str) -> Plan:
    """A plan on two devices that has a policy; the layers' bytes are measured, their times all equal."""
    graph = profiled(CASE.model, CASE.dtype)
    times = {"forward_s": 1e-3, "backward_input_s": 1e-3, "backward_weight_s": 1e-3}
    graph = replace(graph, layers=tuple(replace(layer, **times) for layer in graph.layers))
    kind = DeviceType("toy", limit)
    cluster = Cluster((NodeGroup(1, 2, kind, Link(1e9, 20e-6), host_link=Link(2e8, 20e-6)),))
    workload, best = Workload(4, CASE.optimizer), None
    for seed in range(6):
        best = plan(graph, cluster, workload, space, 300, seed, 1, deterministic_limit=1, hint=best).plan
        if best is not None and len(best.pipelines) > 1 and any(wanted in row for row in best.stash):
            return best
    raise AssertionError(f"no plan with {wanted} for some micro-batches found")


@pytest.mark.parametrize(
    ("space", "share", "wanted"),
    [
        (SearchSpace(pipelines=1), 0.75, "recompute"),
        (SearchSpace(pipelines=1, recompute=False, split_backward=False), 0.88, "offload"),
    ],
    ids=["recompute", "offload"],
)
def test_a_plan_for_little_memory_trains_as_one_process(space: SearchSpace, share: float, wanted: str) -> None:
    """Micro-batches of one route with policies of their own, on less memory than 1F1B takes."""
    limit = int(share * KEPT_1F1B)
    made = _searched(space, limit, wanted)
    assert check(made) == []
    assert len({pipeline.forward for pipeline in made.pipelines}) == 1
    assert len(made.pipelines) > 1
    result = execute(made, STEPS, dtype=CASE.dtype, transport="threads", return_state=True)
    assert_equals_reference(CASE, result)
    assert max(worst_excess(result).values()) <= 1.0
    assert max(result.peak_bytes) <= limit
