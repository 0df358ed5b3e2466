"""Forward and backward of a stage on different devices: exactly as in one process, within the planned memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from routes import BOTH_WAYS, LAST_AT_HOME, MIXED, NODES_OF_THEIR_OWN, ONE_STAGE_REPLICATED, SWAPPED, Routes, made
from runs import (
    LINK,
    SAMPLES,
    assert_as_planned,
    assert_same,
    in_threads,
    profiled,
    run_plans_together,
    truth,
    worst_excess,
)

from contraflow.executor.basics.errors import ExecutionError
from contraflow.executor.oracle.reference import ReferenceRun, train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.state.agreement import Signature, agree
from contraflow.models import resolve
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.problem.workload import Workload
from contraflow.planner.search.exact.instance import Rules
from contraflow.planner.search.exact.search import solve
from contraflow.planner.search.exact.solver import Effort

IN_THREADS: dict[str, partial[Plan]] = {
    "swapped, kept": partial(made, "gpt-tiny", SWAPPED, ["keep", "keep"]),
    "swapped, split": partial(made, "gpt-tiny", SWAPPED, ["keep", "keep"], halves=True),
    "last at home, recomputed": partial(made, "gpt-tiny-dropout", LAST_AT_HOME, ["recompute", "keep"]),
    "own nodes, recomputed": partial(made, "gpt-tiny", NODES_OF_THEIR_OWN, ["recompute", "recompute"], halves=True),
    "own nodes, through the host": partial(made, "gpt-tiny", NODES_OF_THEIR_OWN, ["offload", "offload"]),
    "own nodes, each way": partial(made, "mlp-deep", NODES_OF_THEIR_OWN, ["keep", "offload"], 8),
    "mixed, replicas": partial(made, "gpt-tiny", MIXED, ["keep", "keep"]),
    "tied, both ends apart": partial(made, "gpt-tiny-tied", SWAPPED, ["keep", "recompute"]),
    "tied, own nodes": partial(made, "gpt-tiny-tied", NODES_OF_THEIR_OWN, ["offload", "keep"]),
    "tied, replicas": partial(made, "gpt-tiny-tied", MIXED, ["keep", "keep"]),
    "one stage replicated": partial(made, "gpt-tiny", ONE_STAGE_REPLICATED, ["keep", "keep"], 5),
    "one stage replicated, batch norm": partial(made, "resnet-tiny", ONE_STAGE_REPLICATED, ["recompute", "keep"], 5),
    "batch norm, kept": partial(made, "resnet-tiny", SWAPPED, ["keep", "keep"]),
    "batch norm, replicas": partial(made, "resnet-tiny", BOTH_WAYS, ["keep", "recompute"]),
    "batch norm, own nodes": partial(made, "resnet-tiny", NODES_OF_THEIR_OWN, ["offload", "recompute"]),
}


def true_of(plan: Plan) -> ReferenceRun:
    workload = plan.problem.workload
    return truth(plan.problem.model.name, workload.micro_batches, workload.optimizer, torch.float32)


@pytest.mark.parametrize("name", IN_THREADS)
def test_threads_equal_single_process_within_the_planned_memory(name: str) -> None:
    """Losses, parameters and buffers after five steps, and every device's peak."""
    plan = IN_THREADS[name]()
    assert_as_planned(in_threads(plan), true_of(plan))


@pytest.mark.long
def test_processes_equal_single_process_within_the_planned_memory(tmp_path: Path) -> None:
    """The same on gloo processes: kept, recomputed, through the host, and replicas with statistics."""
    plans = [
        made("gpt-tiny", SWAPPED, ["keep", "recompute"], halves=True),
        made("gpt-tiny", SWAPPED, ["offload", "keep"]),
        made("resnet-tiny", BOTH_WAYS, ["keep", "keep"]),
    ]
    for plan, result in zip(plans, run_plans_together(plans, tmp_path), strict=True):
        assert_as_planned(result, true_of(plan))


def test_forward_devices_hold_neither_gradients_nor_optimizer() -> None:
    """With Adam, parameters alone are a quarter of what the owner keeps; measured peaks are near the planned ones."""
    plan = made("gpt-tiny", NODES_OF_THEIR_OWN, ["recompute", "recompute"], lead=1, optimizer="adam")
    result = in_threads(plan, steps=2)
    for device, share in worst_excess(result).items():
        assert 0.75 <= share <= 1.0, f"device {device}: {share:.3f}"
    assert result.peak_bytes[0] < 0.75 * result.peak_bytes[2]


def test_a_checkpoint_goes_on_under_another_placement(tmp_path: Path) -> None:
    """Buffers are those of the forward devices, parameters those of the owners; the next plan swaps the two."""
    first = made("resnet-tiny", SWAPPED, ["keep", "keep"])
    second = made("resnet-tiny", LAST_AT_HOME, ["keep", "keep"])
    execute(first, 3, transport="threads", self_check=False, checkpoint=tmp_path)
    result = execute(
        second, 2, transport="threads", self_check=False, checkpoint=tmp_path, resume=True, return_state=True
    )
    expected = train_reference(resolve("resnet-tiny"), 4, SAMPLES, "momentum", 5)
    assert result.losses == pytest.approx(expected.losses[3:], abs=1e-5)
    assert result.state is not None
    for name, reference in expected.state.items():
        assert_same(name, result.state[name], reference)


@pytest.mark.long
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_placement_of_both_devices_is_executed_exactly(data: st.DataObject) -> None:
    """Two stages on up to four devices, any policies, any lead: losses of two steps and memory."""
    devices = st.integers(0, data.draw(st.integers(0, 3)))
    pairs = st.tuples(devices, devices)
    ways = data.draw(st.integers(1, 2))
    routes = Routes(tuple(data.draw(pairs) for _ in range(ways)), tuple(data.draw(pairs) for _ in range(ways)))
    policies = [data.draw(st.sampled_from(["keep", "recompute", "offload"])) for _ in range(2)]
    plan = made("mlp", routes, policies, 4, data.draw(st.integers(1, 4)), data.draw(st.booleans()))
    result = in_threads(plan, steps=2)
    expected = truth("mlp", 4, "momentum", torch.float32)
    assert result.losses == pytest.approx(expected.losses[:2], abs=1e-5)
    for device, (peak, planned) in enumerate(zip(result.peak_bytes, result.forecast_peak_bytes, strict=True)):
        assert peak <= planned, f"device {device}"


def test_programs_that_differ_between_ranks_are_named() -> None:
    """The stage, both ranks and what differs."""

    class Transport:
        def all_gather_object(self, mine: object) -> list[object]:
            one = Signature((("0.weight", (2, 2), "float32"),), (), None, "float32", (16,), (), "code")
            return [{3: one}, {3: one._replace(piece_bytes=(32,))}]

    with pytest.raises(ExecutionError, match=r"^stage 3: its piece_bytes differ between ranks 0 and 1: 16 and 32$"):
        agree(Transport(), {})  # type: ignore[arg-type]


@pytest.mark.long
def test_a_searched_placement_runs_on_a_real_model() -> None:
    """The exact search places one forward elsewhere on a toy problem; its devices and orders here."""
    layers = [Layer(f"layer{k}", 1, 2, separable=False, stash_bytes=1) for k in range(3)]
    toy = Cluster((NodeGroup(1, 3, DeviceType("toy", 2), Link(4.0)),))
    problem = Problem(ModelGraph.chain(layers), toy, Workload(6))
    found = solve(
        Candidate(problem, (("layer0",), ("layer1",), ("layer2",)), (Pipeline((0, 1, 2), (0, 1, 2), tuple(range(6))),)),
        Effort(60, 1e9, 2),
        Rules(open=True),
    )
    assert found.plan is not None
    assert any(p.forward != p.backward for p in found.plan.pipelines)
    compute = [[op for op in order if op.kind in (Kind.F, Kind.B)] for order in found.plan.orders]
    graph = profiled("gpt-tiny", torch.float32)
    names = [layer.name for layer in graph.layers]
    stages = (tuple(names[:2]), tuple(names[2:4]), tuple(names[4:]))
    cluster = Cluster((NodeGroup(1, 3, DeviceType("custom", PRESETS["cpu"].memory_bytes), LINK, host_link=LINK),))
    candidate = Candidate(Problem(graph, cluster, Workload(6)), stages, found.plan.pipelines)
    plan = assemble(candidate, compute)
    assert check(plan) == []
    assert_as_planned(in_threads(plan), true_of(plan))
