"""Small problems and plans that several tests plan with."""

from __future__ import annotations

from contraflow.planner.graph import Candidate
from contraflow.planner.graph.updates import with_returns
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
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
