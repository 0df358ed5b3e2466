"""Small problems and plans that several tests plan with."""

from __future__ import annotations

from contraflow.planner.graph import Candidate
from contraflow.planner.graph.updates import with_returns
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Pipeline, Plan, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build
from contraflow.planner.search.common.result import Result


def uniform(layers: int, forward: float = 1.0, backward: float = 1.0, **rest: int) -> ModelGraph:
    """A chain of equal layers: times in seconds, a stash of one byte unless told otherwise."""
    costs = {"stash_bytes": 1, "weight_stash_bytes": rest.get("stash_bytes", 1)} | rest
    return ModelGraph.chain([Layer(f"layer{k}", forward, backward, separable=False, **costs) for k in range(layers)])


def nothing_better(result: Result) -> bool:
    """Whether no plan of the space asked for is better, or none of the part of it that the answer names."""
    if result.status == "optimal":
        return True
    plan, among = result.plan, result.among
    assert plan is not None
    assert plan.forecast is not None
    return among is not None and plan.forecast.objective_s <= among.bound_s * (1 + 1e-6)


def one_layer_a_stage(model: ModelGraph) -> tuple[tuple[str, ...], ...]:
    """Every layer its own stage."""
    return tuple((layer.name,) for layer in model.layers)


def named(
    name: str,
    devices: int,
    micro_batches: int,
    forward: float = 1.0,
    backward: float = 1.0,
    memory: int = 1 << 40,
    link: Link = Link(),  # noqa: B008 - immutable
    model: ModelGraph | None = None,
    workload: Workload | None = None,
    **options: int,
) -> Plan:
    """The plan of a named schedule with one uniform layer a stage."""
    layout = build(name, devices, micro_batches, **options)
    model = model or uniform(layout.stages, forward, backward)
    problem = Problem(model, Cluster.uniform(devices, memory, link), workload or Workload(micro_batches))
    candidate = Candidate(problem, one_layer_a_stage(model), layout.pipelines, (), layout.weights)
    orders = with_returns(candidate, layout.orders, layout.ahead) if layout.ahead else layout.orders
    return assemble(candidate, orders, name)


SLOW = Link(5.0, 1.0)  # 10 bytes in 2 s, a second of latency


def by_lists(
    forward: tuple[int, ...],
    backward: tuple[int, ...],
    lists: list[str],
    policies: str = "keep",
    nodes: tuple[int, ...] = (),
    **costs: int,
) -> Plan:
    """One layer a stage, F and B of 2 s, a stash of 10 bytes; every device's compute ops in words like 0F0."""
    sizes = {"stash_bytes": 10, "weight_stash_bytes": 10} | costs
    model = ModelGraph.chain([Layer(f"l{k}", 2, 2, separable=False, **sizes) for k in range(len(forward))])
    kind = DeviceType("toy", 10**6)
    groups = [NodeGroup(1, n, kind, SLOW, 10**6, SLOW) for n in nodes or (len(lists),)]
    batches = tuple(range(1 + max(op_from_text(word).micro_batch for word in " ".join(lists).split())))
    problem = Problem(model, Cluster(tuple(groups), Link(2.5, 2.0)), Workload(len(batches)))
    pipeline = Pipeline(forward, backward, batches)
    row = tuple(policies.split()) if " " in policies else (policies,) * len(forward)
    candidate = Candidate(problem, one_layer_a_stage(model), (pipeline,), (row,))
    return assemble(candidate, [[op_from_text(word) for word in words.split()] for words in lists])
