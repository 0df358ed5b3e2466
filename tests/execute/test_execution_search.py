"""What the search finds where memory is scarce, trained: exactly as in one process, within the planned memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from runs import STEPS, Case, assert_equals_reference, in_threads, profiled, run_plans_together, sized, worst_excess

from contraflow.executor.run.launch import execute
from contraflow.models import resolve
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
    graph = sized(resolve(CASE.model), dtype=CASE.dtype, layers="block")
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("space", "share", "wanted"),
    [
        (SearchSpace(pipelines=1), 0.75, "recompute"),
        pytest.param(
            SearchSpace(pipelines=1, recompute=False, split_backward=False), 0.88, "offload", marks=pytest.mark.slow
        ),
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


@pytest.mark.slow
def test_a_plan_that_ships_stashes_trains_as_one_process(tmp_path: Path) -> None:
    """Room for what four devices hold on average: the first ones ship to the last ones, found by the search."""
    graph = profiled("mlp-deep", CASE.dtype)
    times = {"forward_s": 1e-3, "backward_input_s": 1e-3, "backward_weight_s": 1e-3}
    graph = replace(graph, layers=tuple(replace(layer, **times) for layer in graph.layers))
    case = Case("search", "mlp-deep", 4, 8)
    space = SearchSpace(pipelines=1, recompute=False, offload=False, split_backward=False, replicas=1)
    cluster = Cluster((NodeGroup(1, 4, DeviceType("toy", 1 << 40), Link(1e9, 20e-6)),))
    workload = Workload(8, case.optimizer)
    roomy = plan(graph, cluster, workload, replace(space, schedule="1f1b"), 20, workers=1).plan
    assert roomy is not None
    assert roomy.forecast is not None
    made = None
    for share in (0.95, 0.9, 0.85, 0.8, 0.75):
        limit = int(share * max(roomy.forecast.peak_bytes))
        found = plan(
            graph, cluster, replace(workload, memory_limit_bytes=limit), space, 20, workers=1, deterministic_limit=0.2
        ).plan
        if found is not None and any(policy.startswith("ship>") for row in found.stash for policy in row):
            made = found
            break
    assert made is not None, "no plan that ships was found"
    assert check(made) == []
    for result in (in_threads(made, self_check=True), *run_plans_together([made], tmp_path)):
        assert_equals_reference(case, result)
        assert max(result.peak_bytes) <= limit
