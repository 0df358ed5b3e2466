"""Published instances and models as partition problems, and their best partitions.

The objectives (docs/formats.md) are those of the files' authors. `solve` counts the value it returns anew from the
file's nodes and edges (`costs.py`), so that neither groups, ticks nor the solver can make it wrong.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar, assert_never

from ...basics import InputError
from ...formats import PipeDreamProfile, PiperInstance, PlacementInstance
from .costs import count
from .instance import Devices, Instance, LayerInstance, NodeBlock, configure
from .problem import GraphProblem, Group, Lean, Tensor, moved
from .search import Effort, GraphCut, OnBetter, cut_graph

_Node = TypeVar("_Node", bound=Hashable)


@dataclass(frozen=True)
class PublishedCut:
    """A partition of an instance: value and bound in the unit of its objective."""

    status: str
    objective: float | None
    bound: float | None
    blocks: tuple[NodeBlock, ...]

    @property
    def gap(self) -> float | None:
        """How far above the bound the partition is at most: its value divided by the bound, less one."""
        if self.objective is None or self.bound is None:
            return None
        if self.objective <= self.bound:
            return 0.0
        return self.objective / self.bound - 1 if self.bound > 0 else math.inf


def solve(
    instance: Instance,
    devices: Devices | None = None,
    *,
    time_limit: float = 60.0,
    workers: int = 2,
    seed: int = 0,
    on_better: OnBetter | None = None,
) -> PublishedCut:
    """The best partition, the best so far when interrupted; raises InputError when the devices make no sense for it.

    `on_better`: called with value and bound of every improvement, in the objective's unit.
    """
    given = devices or Devices()
    instance = configure(instance, given)
    problem, members = _problem(instance, given)
    scale = _scale(instance)

    def told(value: float, bound: float) -> None:
        if on_better is not None:
            on_better(value * scale, bound * scale)

    result = cut_graph(problem, Effort(time_limit, workers), seed, told)
    if result.partition is None:
        return PublishedCut(result.status, None, None, ())
    blocks = tuple(
        NodeBlock(
            tuple(i for g in block.groups for i in members[g]),
            block.cpu,
            frozenset(i for g in block.lean for i in members[g]),
        )
        for block in result.partition
    )
    value = count(instance, blocks, given)
    return PublishedCut(result.status, value, _bound(result, value, scale), blocks)


def _bound(result: GraphCut, value: float, scale: float) -> float:
    return min(value, (result.bound or 0.0) * scale)


def _scale(instance: Instance) -> float:
    """The problem's unit in the objective's: profiles and models are cut in milliseconds, and told in seconds."""
    return 1e-3 if isinstance(instance, (PipeDreamProfile, LayerInstance)) else 1.0


def _problem(instance: Instance, devices: Devices) -> tuple[GraphProblem, Sequence[Sequence[Hashable]]]:
    limit = math.inf if devices.limit_bytes is None else devices.limit_bytes
    if isinstance(instance, PlacementInstance):
        return placement_problem(instance), instance.groups.members
    if isinstance(instance, PiperInstance):
        return piper_problem(instance)
    if isinstance(instance, PipeDreamProfile):
        return pipedream_problem(instance, devices.count or 0, devices.link_bandwidth, limit)
    if isinstance(instance, LayerInstance):
        return layer_problem(instance, devices.count or 0, devices.link_bandwidth, limit)
    assert_never(instance)


# ------------------------------------------------------------------ problems


def placement_problem(instance: PlacementInstance) -> GraphProblem:
    """Max load of dnn-partitioning, in milliseconds. Groups as in `instance.groups`."""
    groups = instance.groups
    place = {i: g for g, ids in enumerate(groups.members) for i in ids}
    readers: dict[int, set[int]] = {}
    for edge in instance.edges:
        readers.setdefault(edge.source, set()).add(edge.target)
    tensors = [Tensor(i, frozenset(targets), instance.cost_ms[i]) for i, targets in readers.items()]
    return GraphProblem(
        tuple(_placement_group(instance, ids) for ids in groups.members),
        groups.edges,
        moved(tensors, place),
        instance.accelerators,
        instance.cpus,
        limit_bytes=instance.limit_bytes,
    )


def _placement_group(instance: PlacementInstance, ids: Sequence[int]) -> Group:
    nodes = [instance.node[i] for i in ids]
    work = math.fsum(n.accelerator_ms for n in nodes) if all(n.on_accelerator for n in nodes) else math.inf
    return Group(work, math.fsum(n.cpu_ms for n in nodes), math.fsum(n.size_bytes for n in nodes))


def pipedream_problem(
    profile: PipeDreamProfile, stages: int, bandwidth: float, limit_bytes: float = math.inf
) -> tuple[GraphProblem, Sequence[Sequence[str]]]:
    """Stage time of PipeDream, straight, in milliseconds; and the node of every group.

    With a limit a stage holds its parameters and activations once for itself and for every later stage: PipeDream
    stashes weights with every micro-batch in flight.
    """
    order = _topological([n.id for n in profile.nodes], profile.edges)
    place = {i: g for g, i in enumerate(order)}
    nodes = {n.id: n for n in profile.nodes}
    groups = [
        Group(
            round(nodes[i].forward_ms + nodes[i].backward_ms, 9),
            in_flight_bytes=nodes[i].parameter_bytes + nodes[i].activation_bytes,
        )
        for i in order
    ]
    readers: dict[str, set[int]] = {}
    for source, target in profile.edges:
        readers.setdefault(source, set()).add(place[target])
    tensors = tuple(
        Tensor(place[i], frozenset(targets), 2e3 * nodes[i].activation_bytes / bandwidth)
        for i, targets in readers.items()
    )
    edges = tuple((place[a], place[b]) for a, b in profile.edges)
    problem = GraphProblem(tuple(groups), edges, tensors, stages, every=True, limit_bytes=limit_bytes, overlap=True)
    return problem, [(i,) for i in order]


def layer_problem(
    instance: LayerInstance, stages: int, bandwidth: float, limit_bytes: float = math.inf
) -> tuple[GraphProblem, Sequence[Sequence[str]]]:
    """A model's stage time in milliseconds; and the layer of every group.

    With a limit a stage holds parameters, their gradients and buffers once, and its stashes once for itself and for
    every later stage.
    """
    model = instance.model
    order = [model.layers[i] for i in model.topological]
    place = {layer.name: g for g, layer in enumerate(order)}
    groups = tuple(
        Group(
            1e3 * (layer.forward_s + layer.backward_s),
            static_bytes=layer.parameter_bytes + layer.trained_bytes + layer.buffer_bytes,
            in_flight_bytes=layer.stash_bytes,
        )
        for layer in order
    )
    readers: dict[str, set[int]] = {}
    for source, target in model.edges:
        readers.setdefault(source, set()).add(place[target])
    tensors = tuple(
        Tensor(place[name], frozenset(targets), 2e3 * order[place[name]].output_bytes / bandwidth)
        for name, targets in readers.items()
    )
    edges = tuple((place[a], place[b]) for a, b in model.edges)
    overlap = instance.objective == "overlap"
    problem = GraphProblem(groups, edges, tensors, stages, every=overlap, limit_bytes=limit_bytes, overlap=overlap)
    return problem, [(layer.name,) for layer in order]


def piper_problem(instance: PiperInstance) -> tuple[GraphProblem, Sequence[Sequence[int]]]:
    """Time per micro-batch of Piper's slowest stage, in seconds, with a mode for every layer; and its nodes."""
    for node in instance.nodes:
        for mode in (node.vanilla, node.recompute):
            if mode is not None and mode.synchronised:
                raise InputError(f"node {node.id} synchronises on one device, which is not supported")
    order = _topological([n.id for n in instance.nodes], [(a, b) for a, b, _ in instance.edges])
    place = {i: g for g, i in enumerate(order)}
    nodes = {n.id: n for n in instance.nodes}
    groups = []
    for i in order:
        plain, other = nodes[i].vanilla, nodes[i].recompute
        lean = None if other is None else Lean(other.time_s, other.static_bytes, other.in_flight_bytes)
        groups.append(Group(plain.time_s, math.inf, plain.static_bytes, plain.in_flight_bytes, lean))
    tensors = tuple(
        Tensor(place[a], frozenset([place[b]]), 2 * size / instance.bandwidth) for a, b, size in instance.edges
    )
    edges = tuple((place[a], place[b]) for a, b, _ in instance.edges)
    problem = GraphProblem(tuple(groups), edges, tensors, instance.devices, limit_bytes=instance.limit_bytes)
    return problem, [(i,) for i in order]


def _topological(nodes: Sequence[_Node], edges: Sequence[tuple[_Node, _Node]]) -> list[_Node]:
    import networkx

    graph: networkx.DiGraph[_Node] = networkx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    rank = {node: position for position, node in enumerate(nodes)}
    return list(networkx.lexicographical_topological_sort(graph, key=lambda node: rank[node]))
