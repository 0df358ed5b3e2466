"""Small problems, and plans of them: of named schedules, of given orders, and of op lists in words. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from contraflow.planner import plan
from contraflow.planner.graph import Candidate
from contraflow.planner.graph.updates import with_returns
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.schedules import ASYNCHRONOUS, build
from contraflow.planner.search.common import Result
from contraflow.planner.search.named import own_orders


def uniform(layers: int, forward: float = 1.0, backward: float = 1.0, **rest: int) -> ModelGraph:
    """A chain of equal layers: times in seconds, a stash of one byte unless told otherwise."""
    costs = {"stash_bytes": 1, "weight_stash_bytes": rest.get("stash_bytes", 1)} | rest
    return ModelGraph.chain([Layer(f"layer{k}", forward, backward, separable=False, **costs) for k in range(layers)])


def solved(model: ModelGraph, cluster: Cluster, workload: Workload, space: SearchSpace | None = None) -> Result:
    """What `plan` finds of a small problem with a given effort, a second or two: the same on any machine."""
    return plan(model, cluster, workload, space or SearchSpace(), 300, workers=1, deterministic_limit=0.5)


def step_of(found: Any) -> float:
    """Seconds of a plan, or of the plan that was found."""
    made = found if isinstance(found, Plan) else found.plan
    assert made is not None
    assert made.forecast is not None
    return float(made.forecast.step_s)


def nothing_better(result: Result) -> bool:
    """Whether no plan of the space asked for is better, or none of the part of it that the answer names."""
    if result.status == "optimal":
        return True
    made, among = result.plan, result.among
    assert made is not None
    assert made.forecast is not None
    return among is not None and made.forecast.objective_s <= among.bound_s * (1 + 1e-6)


def one_layer_a_stage(model: ModelGraph) -> tuple[tuple[str, ...], ...]:
    """Every layer its own stage."""
    return cut_evenly(model, len(model.layers))


def cut_evenly(model: ModelGraph, stages: int) -> tuple[tuple[str, ...], ...]:
    """Layers dealt out to stages, as evenly as they go."""
    names = [layer.name for layer in model.layers]
    cuts = [round(s * len(names) / stages) for s in range(stages + 1)]
    return tuple(tuple(names[a:b]) for a, b in pairwise(cuts))


def named(
    name: str,
    devices: int,
    micro_batches: int,
    forward: float = 1.0,
    backward: float = 1.0,
    cluster: Cluster | None = None,
    model: ModelGraph | None = None,
    workload: Workload | None = None,
    **options: int,
) -> Plan:
    """The plan of a named schedule; layers dealt out evenly, by default one uniform layer a stage on free links."""
    layout = build(name, devices, micro_batches, **options)
    model = model or uniform(layout.stages, forward, backward)
    problem = Problem(model, cluster or Cluster.uniform(devices), workload or Workload(micro_batches))
    candidate = Candidate(problem, cut_evenly(model, layout.stages), layout.pipelines, (), layout.weights)
    orders = with_returns(candidate, layout.orders, layout.ahead) if layout.ahead else layout.orders
    return assemble(candidate, orders, name)


def one_faster(cluster: Cluster, device: int, factor: float = 11 / 10) -> Cluster:
    """The cluster with one device that computes so many times as fast; files of clusters cannot say that of a node."""
    made, devices = replace(cluster), list(cluster.devices)
    kind = devices[device].kind
    devices[device] = replace(devices[device], kind=replace(kind, speed=kind.speed * factor))
    made.__dict__["devices"] = tuple(devices)
    return made


def by_orders(
    model: ModelGraph,
    pipelines: Sequence[Pipeline],
    orders: Sequence[Sequence[Op]],
    workload: Workload | None = None,
    cluster: Cluster | None = None,
    stash: tuple[tuple[str, ...], ...] = (),
    weights: str = FLUSH,
) -> Plan:
    """Layers dealt out evenly to the stages of the pipelines, compute in these orders, by default on free links."""
    asked = workload or Workload(sum(len(p.micro_batches) for p in pipelines))
    problem = Problem(model, cluster or Cluster.uniform(len(orders)), asked)
    stages = cut_evenly(model, len(pipelines[0].forward))
    return assemble(Candidate(problem, stages, tuple(pipelines), stash, weights), orders)


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


# ------------------------------------------------------------------ without a flush


POLICIES = tuple(name for name in WEIGHT_POLICIES if name != FLUSH)
NAMES = [name for name in ASYNCHRONOUS if name != "pipefb"]
"""Schedules with one device a stage."""


def machine(devices: int, bandwidth: float | None = None, link: Link = Link(), memory: int = 1 << 30) -> Cluster:  # noqa: B008
    return Cluster((NodeGroup(1, devices, DeviceType("device", memory, 1.0, bandwidth), link),))


def steady(name: str, devices: int, batches: int, update: int | None = None, **costs: int) -> Plan:
    """A named schedule of uniform stages: forward 1 s, backward 2 s, 3 bytes of parameters, messages free."""
    stages = build(name, devices, batches).stages
    model = uniform(stages, 1.0, 2.0, **({"parameter_bytes": 3} | costs))
    return named(name, devices, batches, model=model, workload=Workload(batches, update_every=update))


def passes(plan: Plan, device: int) -> str:
    """A device's ops in line, without their stage."""
    line = [op for op in plan.orders[device] if op.kind in (Kind.F, Kind.B, Kind.STEP, Kind.PREDICT)]
    return " ".join(str(op)[1:] for op in line)


def replicated(model: ModelGraph, workload: Workload, weights: str, cluster: Cluster | None = None) -> Plan:
    """Two pipelines of two stages on four devices, taking micro-batches in turn."""
    count = workload.micro_batches
    pipelines = [Pipeline((2 * r, 2 * r + 1), (2 * r, 2 * r + 1), tuple(range(r, count, 2))) for r in range(2)]
    orders = [
        [op._replace(micro_batch=2 * op.micro_batch + r) for op in order]
        for r in range(2)
        for order in build("1f1b", 2, count // 2).orders
    ]
    return by_orders(model, pipelines, orders, workload, cluster, weights=weights)


def separated(model: ModelGraph, workload: Workload, weights: str, cluster: Cluster) -> Plan:
    """Stage s runs forward on device s, backward on device D-1-s (PipeFB); D + 1 forwards before the first backward."""
    devices, count = len(cluster), workload.micro_batches
    route, first = tuple(range(devices)), min(devices + 1, count)
    orders = []
    for d in range(devices):
        line = [Op(Kind.F, d, m) for m in range(first)]
        for m in range(count):
            line.append(Op(Kind.B, devices - 1 - d, m))
            line += [Op(Kind.F, d, first + m)] if first + m < count else []
        orders.append(line)
    pipeline = Pipeline(route, route[::-1], tuple(range(count)))
    return by_orders(model, [pipeline], orders, workload, cluster, weights=weights)


def shared(plan: Plan) -> Plan:
    """The same plan with optimizers that replicas share."""
    problem = replace(plan.problem, workload=replace(plan.problem.workload, sharded=True))
    candidate = Candidate(problem, plan.stages, plan.pipelines, plan.stash)
    found = assemble(candidate, own_orders(plan), plan.provenance.source)
    assert any(op.kind is Kind.GATHER for order in found.orders for op in order)
    return found
