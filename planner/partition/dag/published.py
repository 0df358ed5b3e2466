"""Published instances and models as partition problems, and their best partitions.

The objectives (docs/formats.md) are those of the files' authors. `solve` counts the value it returns anew from the
file's nodes and edges (`costs.py`), so that neither groups, ticks nor the solver can make it wrong.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, assert_never

from ...formats import PipeDreamProfile, PiperInstance, PiperMode, PlacementInstance
from .costs import count
from .instance import Devices, Instance, LayerInstance, NodeBlock, configure
from .problem import GraphProblem, Group, Tensor, moved
from .search import Effort, GraphCut, OnBetter, cut_graph
from .widths import Mode, Stage, WidthProblem

if TYPE_CHECKING:
    from .width_search import WidthCut

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

    cut: WidthCut | GraphCut
    if isinstance(problem, WidthProblem):
        from .width_search import cut_widths  # loads the compiler

        cut = cut_widths(problem, Effort(time_limit, workers), seed, told)
        blocks = [_width_block(instance, stage, members) for stage in cut.stages]
    else:
        cut = cut_graph(problem, Effort(time_limit, workers), seed, told)
        blocks = [
            NodeBlock(tuple(i for g in block.groups for i in members[g]), block.cpu) for block in cut.partition or ()
        ]
    if not blocks:
        return PublishedCut(cut.status, None, None, ())
    value = count(instance, blocks, given)
    return PublishedCut(cut.status, value, min(value, (cut.bound or 0.0) * scale), tuple(blocks))


def _width_block(instance: Instance, stage: Stage, members: Sequence[Sequence[Hashable]]) -> NodeBlock:
    """A stage in the file's ids."""
    nodes = tuple(i for g in stage.groups for i in members[g])
    modes: tuple[str, ...] = ()
    if isinstance(instance, PiperInstance):
        by_id = {node.id: node for node in instance.nodes}
        names = (list(by_id[i].modes[stage.ways]) for i in nodes)  # type: ignore[index]
        modes = tuple(name[k] for name, k in zip(names, stage.modes, strict=True))
    return NodeBlock(nodes, False, stage.replicas, stage.ways, modes)


def _scale(instance: Instance) -> float:
    """The problem's unit in the objective's: profiles and models are cut in milliseconds, and told in seconds."""
    return 1e-3 if isinstance(instance, (PipeDreamProfile, LayerInstance)) else 1.0


def _problem(instance: Instance, devices: Devices) -> tuple[GraphProblem | WidthProblem, Sequence[Sequence[Hashable]]]:
    limit = math.inf if devices.limit_bytes is None else devices.limit_bytes
    if isinstance(instance, PlacementInstance):
        return placement_problem(instance), instance.groups.members
    if isinstance(instance, PiperInstance):
        return piper_problem(instance, devices)
    if isinstance(instance, PipeDreamProfile):
        straight = pipedream_problem(instance, devices.count or 0, devices.link_bandwidth, limit)
        return straight if devices.replicas is None else (_replicated(instance, devices, *straight), straight[1])
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


def _replicated(
    profile: PipeDreamProfile, devices: Devices, straight: GraphProblem, members: Sequence[Sequence[str]]
) -> WidthProblem:
    """Stage time of PipeDream with replicas, in milliseconds, as its optimizer counts.

    r replicas sum their gradients for 4 (r - 1) / r of the weights' bytes, once for r micro-batches.
    """
    weights = {node.id: node.parameter_bytes for node in profile.nodes}
    modes = [
        [Mode(group.work, weights[i], group.in_flight_bytes)]
        for group, (i,) in zip(straight.groups, members, strict=True)
    ]
    most = min(devices.replicas or 1, straight.accelerators)
    sync = {r: 4e3 * (r - 1) / (r * r * devices.link_bandwidth) for r in range(1, most + 1)}
    return WidthProblem(replace(straight, every=False), {1: modes}, sync, straight.accelerators)


def piper_problem(instance: PiperInstance, devices: Devices) -> tuple[WidthProblem, Sequence[Sequence[int]]]:
    """Time per micro-batch of Piper's slowest stage, in the file's unit; and the node of every group."""
    order = _topological([n.id for n in instance.nodes], [(a, b) for a, b, _ in instance.edges])
    place = {i: g for g, i in enumerate(order)}
    nodes = {n.id: n for n in instance.nodes}
    per_byte = 2 / instance.bandwidth

    def mode(of: PiperMode) -> Mode:
        into, out = (
            {place[i]: size * per_byte for i, size in sizes.items() if size} for sizes in (of.sync_in, of.sync_out)
        )
        return Mode(of.time_s, of.parameter_bytes, of.in_flight_bytes, of.static_bytes, into, out)

    most_ways = instance.devices if devices.ways is None else devices.ways
    ways = sorted({t for node in instance.nodes for t in node.modes if t <= min(instance.devices, most_ways)})
    modes = {t: [[mode(m) for m in nodes[i].modes.get(t, {}).values()] for i in order] for t in ways}
    tensors = tuple(Tensor(place[a], frozenset([place[b]]), size * per_byte) for a, b, size in instance.edges)
    edges = tuple((place[a], place[b]) for a, b, _ in instance.edges)
    groups = tuple(Group(0.0) for _ in order)
    graph = GraphProblem(groups, edges, tensors, instance.devices, limit_bytes=instance.limit_bytes)
    most = min(instance.devices, instance.micro_batches)
    widths = range(1, (most if devices.replicas is None else min(most, devices.replicas)) + 1)
    scale = 4 / instance.micro_batches / instance.bandwidth
    sync = {d: scale * (d - 1) / d for d in widths if instance.micro_batches % d == 0}
    return WidthProblem(graph, modes, sync, most), [(i,) for i in order]


def _topological(nodes: Sequence[_Node], edges: Sequence[tuple[_Node, _Node]]) -> list[_Node]:
    import networkx

    graph: networkx.DiGraph[_Node] = networkx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    rank = {node: position for position, node in enumerate(nodes)}
    return list(networkx.lexicographical_topological_sort(graph, key=lambda node: rank[node]))
