"""Small plans that need no search, for tests of files, pictures and commands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from instances import named, uniform

from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

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


def busy_cluster(devices: int, nodes: int = 1) -> Cluster:
    """Links and host links on which everything takes time, in equal nodes."""
    link, host = Link(16 * MIB, 0.01), Link(8 * MIB, 0.02)
    group = NodeGroup(nodes, devices // nodes, DeviceType("toy", 64 * MIB, memory_bandwidth=64.0 * MIB), link)
    return Cluster((replace(group, host_memory_bytes=64 * MIB, host_link=host),), Link(8 * MIB, 0.05))


def busy_chain(layers: int) -> ModelGraph:
    """Layers with everything that a picture shows: two halves of a backward, tensors, stashes, workspace."""
    costs = {"parameter_bytes": MIB, "stash_bytes": MIB, "weight_stash_bytes": MIB, "output_bytes": MIB // 4}
    return ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, 1.0, workspace_bytes=512, **costs) for k in range(layers)])


def routed(
    routes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    policy: str = "keep",
    micro_batches: int = 4,
    nodes: int = 1,
    devices: int = 0,
) -> Plan:
    """All forwards and then all backwards on these (forward, backward) routes, dealt out in turns; `policy` for all."""
    stages = len(routes[0][0])
    devices = devices or 1 + max(max(max(pair) for pair in route) for route in routes)
    problem = Problem(busy_chain(stages), busy_cluster(devices, nodes), Workload(micro_batches))
    pipelines = tuple(
        Pipeline(forward, backward, tuple(range(k, micro_batches, len(routes))))
        for k, (forward, backward) in enumerate(routes)
    )
    stash = tuple((policy,) * stages for _ in routes)
    cut = tuple((layer.name,) for layer in problem.model.layers)
    orders: list[list[Op]] = [[] for _ in range(devices)]
    again = [Kind.R] if policy == "recompute" else []
    for kind in (Kind.F, *again, Kind.B):
        for m in range(micro_batches):
            pipeline = pipelines[m % len(routes)]
            for s in range(stages):
                orders[(pipeline.forward if kind == Kind.F else pipeline.backward)[s]].append(Op(kind, s, m))
    if again:
        orders = [_remade_in_turn(order) for order in orders]
    return assemble(Candidate(problem, cut, pipelines, stash), orders, "by hand")


def _remade_in_turn(order: list[Op]) -> list[Op]:
    """Every R right before its backward."""
    rest = [op for op in order if op.kind != Kind.R]
    return [found for op in rest for found in ([op._replace(kind=Kind.R), op] if op.kind == Kind.B else [op])]


ONE_ROUTE = (((0, 1), (0, 1)),)


@functools.cache
def pictured() -> dict[str, Plan]:
    """Plans that between them have everything a picture can show."""
    three = build("zb-h1", 3, 4)
    halves = Candidate(
        Problem(busy_chain(3), busy_cluster(3), Workload(4)), tuple((f"layer{k}",) for k in range(3)), three.pipelines
    )
    return {
        "halves": assemble(halves, three.orders, "zb-h1"),
        "both ways": routed([((0, 1), (0, 1)), ((1, 0), (1, 0))]),
        "offload": routed(ONE_ROUTE, "offload"),
        "recompute": routed(ONE_ROUTE, "recompute"),
        "ship": routed([((0, 1), (0, 1)), ((2, 1), (2, 1))], "ship>3", devices=4),
        "apart": routed([((0, 1), (2, 1))]),
        "apart, offload": routed([((0, 1), (2, 1))], "offload"),
        "replicas": routed([((0, 1), (0, 1)), ((2, 3), (2, 3))], nodes=2),
    }


def chimera() -> Plan:
    """Two directions with messages that take time, parameters to reduce, and a limit."""
    model = uniform(4, 1.0, 2.0, stash_bytes=40, parameter_bytes=30, output_bytes=10, workspace_bytes=5)
    return named("chimera", 4, 8, model=model, cluster=Cluster.uniform(4, 400, Link(100.0, 0.02)))


NASTY = '</script><script>alert("&")</script><!--\u2028\u2029\ud800'


def nasty_plan() -> Plan:
    """A model and a layer with such names."""
    model = ModelGraph.chain([Layer(NASTY, 1, 2, separable=False), Layer("b", 1, 2, separable=False)], name=NASTY)
    plan = named("1f1b", 2, 2, model=model)
    return replace(plan, provenance=replace(plan.provenance, source=NASTY))
