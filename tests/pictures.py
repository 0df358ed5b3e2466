"""Small plans that need no search, for tests of files, pictures and commands."""

from __future__ import annotations

from collections.abc import Sequence

from contraflow.planner.cluster import Cluster
from contraflow.planner.lower import assemble
from contraflow.planner.model_graph import Layer, ModelGraph
from contraflow.planner.operations import Candidate
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.workload import Workload

MIB = 1024**2


def chain(layers: int, name: str = "toy", forward_s: float = 1.0, backward_s: float = 2.0) -> ModelGraph:
    """Equal layers in a chain that stash a MiB each."""
    return ModelGraph.chain(
        [
            Layer(chr(ord("a") + k), forward_s, backward_s, separable=False, stash_bytes=MIB, parameter_bytes=MIB)
            for k in range(layers)
        ],
        name=name,
    )


def one_way(
    devices: int, micro_batches: int, name: str = "toy", memory_bytes: int = 1024 * MIB, forward_s: float = 1.0
) -> Plan:
    """1F1B on a chain of one layer a device."""
    orders = [_alternating(s, devices - s, micro_batches) for s in range(devices)]
    route = tuple(range(devices))
    model = chain(devices, name, forward_s, 2 * forward_s)
    problem = Problem(model, Cluster.uniform(devices, memory_bytes), Workload(micro_batches))
    stages = tuple((layer.name,) for layer in model.layers)
    pipeline = Pipeline(route, route, tuple(range(micro_batches)))
    return assemble(Candidate(problem, stages, (pipeline,)), orders, "1f1b")


def _alternating(stage: int, in_flight: int, micro_batches: int) -> list[Op]:
    ready = [Op(Kind.F, stage, m) for m in range(min(in_flight, micro_batches))]
    for m in range(micro_batches):
        ready.append(Op(Kind.B, stage, m))
        if m + in_flight < micro_batches:
            ready.append(Op(Kind.F, stage, m + in_flight))
    return ready


def two_device_plan() -> Plan:
    """1F1B of four micro-batches on two devices."""
    return one_way(2, 4)


def both_ways() -> Plan:
    """Two stages, two devices, one micro-batch in each direction."""
    model = chain(2)
    problem = Problem(model, Cluster.uniform(2, 1024 * MIB), Workload(2))
    pipelines = (Pipeline((0, 1), (0, 1), (0,)), Pipeline((1, 0), (1, 0), (1,)))
    orders: Sequence[Sequence[Op]] = [
        [Op(Kind.F, 0, 0), Op(Kind.F, 1, 1), Op(Kind.B, 1, 1), Op(Kind.B, 0, 0)],
        [Op(Kind.F, 0, 1), Op(Kind.F, 1, 0), Op(Kind.B, 1, 0), Op(Kind.B, 0, 1)],
    ]
    return assemble(Candidate(problem, (("a",), ("b",)), pipelines), orders, "chimera")
