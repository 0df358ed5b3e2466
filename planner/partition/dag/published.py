"""Published instances as partition problems, and what a partition of one costs, counted in the file's own terms.

The objectives (docs/formats.md) are those of the files' authors. `solve` counts the value it returns anew from the
file's nodes and edges, so that neither groups, ticks nor the solver can make it wrong.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ...basics import InputError
from ...formats import PipeDreamProfile, PiperInstance, PlacementInstance, Published
from .problem import GraphProblem, Group, Lean, Tensor, moved
from .search import GraphCut, cut_graph

_Node = TypeVar("_Node", bound=Hashable)

BANDWIDTH = 1.25e9
"""Bytes a second between PipeDream's stages where nothing is said: the 10 Gbit/s of its first cluster."""
_SLACK = 1 + 1e-12


@dataclass(frozen=True)
class Devices:
    """What to partition for; None: as the file says.

    Attributes:
        count: accelerators; for PipeDream the exact number of stages, otherwise the most.
        bandwidth: bytes a second; dnn-partitioning files give transfer times instead.
    """

    count: int | None = None
    cpus: int | None = None
    limit_bytes: float | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class NodeBlock:
    """One stage in the file's own ids: who runs it, and which of its layers recompute (Piper)."""

    nodes: tuple[Hashable, ...]
    cpu: bool = False
    recompute: frozenset[Hashable] = frozenset()


@dataclass(frozen=True)
class PublishedCut:
    """A partition of a published instance: value and bound in the unit of that format's objective."""

    status: str
    objective: float | None
    bound: float | None
    blocks: tuple[NodeBlock, ...]


def solve(
    instance: Published,
    devices: Devices | None = None,
    *,
    time_limit: float = 60.0,
    workers: int = 2,
    seed: int = 0,
) -> PublishedCut:
    """The best partition; raises InputError when the devices make no sense for the format."""
    instance = configure(instance, devices or Devices())
    given = devices or Devices()
    problem, members = _problem(instance, given)
    result = cut_graph(problem, time_limit=time_limit, workers=workers, seed=seed)
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
    value, scale = count(instance, blocks, given), _unit(instance)
    return PublishedCut(result.status, value, _bound(result, value, scale), blocks)


def _bound(result: GraphCut, value: float, scale: float) -> float:
    return min(value, (result.bound or 0.0) * scale)


def _unit(instance: Published) -> float:
    """The objective's unit in the problem's: PipeDream's problem is in milliseconds, its objective in seconds."""
    return 1e-3 if isinstance(instance, PipeDreamProfile) else 1.0


def configure(instance: Published, devices: Devices) -> Published:
    """The instance with what the devices say in place of what its file says; raises InputError."""
    if (devices.count is not None and devices.count < 0) or (devices.cpus is not None and devices.cpus < 0):
        raise InputError("there cannot be fewer than no devices")
    if isinstance(instance, PlacementInstance):
        if devices.bandwidth is not None:
            raise InputError("a dnn-partitioning file gives transfer times: a bandwidth has no effect")
        return replace(
            instance,
            accelerators=instance.accelerators if devices.count is None else devices.count,
            cpus=instance.cpus if devices.cpus is None else devices.cpus,
            limit_bytes=instance.limit_bytes if devices.limit_bytes is None else devices.limit_bytes,
        )
    if devices.cpus:
        raise InputError("only dnn-partitioning files say what a CPU can do")
    if isinstance(instance, PiperInstance):
        return replace(
            instance,
            devices=instance.devices if devices.count is None else devices.count,
            limit_bytes=instance.limit_bytes if devices.limit_bytes is None else devices.limit_bytes,
            bandwidth=instance.bandwidth if devices.bandwidth is None else devices.bandwidth,
        )
    if devices.count is None:
        raise InputError("a PipeDream profile does not say how many stages: give their number")
    return instance.trained


def _problem(instance: Published, devices: Devices) -> tuple[GraphProblem, Sequence[Sequence[Hashable]]]:
    if isinstance(instance, PlacementInstance):
        return placement_problem(instance), instance.groups.members
    if isinstance(instance, PiperInstance):
        return piper_problem(instance)
    limit = math.inf if devices.limit_bytes is None else devices.limit_bytes
    return pipedream_problem(instance, devices.count or 0, devices.bandwidth or BANDWIDTH, limit)


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
    if bandwidth <= 0:
        raise InputError("a bandwidth must be above 0")
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


# ------------------------------------------------------------------ what a partition costs


def count(instance: Published, blocks: Sequence[NodeBlock], devices: Devices | None = None) -> float:
    """The objective of a partition from the file's nodes and edges alone.

    Raises InputError when the partition breaks a rule of the format; `instance` as `configure` returns it.
    """
    place: dict[Hashable, int] = {i: s for s, block in enumerate(blocks) for i in block.nodes}
    if sorted(map(str, place)) != sorted(str(n.id) for n in instance.nodes):
        raise InputError("a partition must have every node once")
    given = devices or Devices()
    if isinstance(instance, PlacementInstance):
        return _count_placement(instance, blocks, place)
    if isinstance(instance, PiperInstance):
        return _count_piper(instance, blocks, place)
    return _count_pipedream(instance, blocks, place, given)


def _count_placement(instance: PlacementInstance, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int]) -> float:
    loads = []
    colors: dict[int, int] = {}
    for node in instance.nodes:
        if node.color is not None and colors.setdefault(node.color, place[node.id]) != place[node.id]:
            raise InputError(f"colour {node.color} is on two devices")
    for edge in instance.edges:
        ends = (place[edge.source], place[edge.target])
        if not instance.node[edge.target].backward and ends[0] > ends[1]:
            raise InputError(f"edge {edge.source} -> {edge.target} leads back")
    for s, block in enumerate(blocks):
        nodes = [instance.node[i] for i in block.nodes if isinstance(i, int)]
        if block.cpu:
            loads.append(math.fsum(n.cpu_ms for n in nodes))
            continue
        crossing = {e.source for e in instance.edges if (place[e.source] == s) != (place[e.target] == s)}
        loads.append(math.fsum([*(n.accelerator_ms for n in nodes), *(instance.cost_ms[i] for i in crossing)]))
        if math.fsum(n.size_bytes for n in nodes) > instance.limit_bytes * _SLACK:
            raise InputError(f"stage {s} does not fit")
    if sum(b.cpu for b in blocks) > instance.cpus or sum(not b.cpu for b in blocks) > instance.accelerators:
        raise InputError("there are more stages than devices")
    return max(loads)


def _count_pipedream(
    profile: PipeDreamProfile, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int], devices: Devices
) -> float:
    if len(blocks) != devices.count or not all(block.nodes for block in blocks):
        raise InputError(f"there must be {devices.count} stages")
    bandwidth = devices.bandwidth or BANDWIDTH
    last: dict[str, int] = {}
    for source, target in profile.edges:
        if place[source] > place[target]:
            raise InputError(f"edge {source} -- {target} leads back")
        last[source] = max(last.get(source, 0), place[target])
    times = []
    for s in range(len(blocks)):
        inside = [n for n in profile.nodes if place[n.id] == s]
        times.append(math.fsum(t for n in inside for t in (n.forward_ms, n.backward_ms)) / 1000)
        beyond = [n for n in profile.nodes if place[n.id] <= s < last.get(n.id, 0)]
        times.append(2 * math.fsum(n.activation_bytes for n in beyond) / bandwidth)
        held = (len(blocks) - s) * math.fsum(n.parameter_bytes + n.activation_bytes for n in inside)
        if devices.limit_bytes is not None and held > devices.limit_bytes * _SLACK:
            raise InputError(f"stage {s} does not fit")
    return max(times)


def _count_piper(instance: PiperInstance, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int]) -> float:
    if len(blocks) > instance.devices:
        raise InputError("there are more stages than devices")
    nodes = {n.id: n for n in instance.nodes}
    loads = []
    for s, block in enumerate(blocks):
        modes = []
        for i in block.nodes:
            node = nodes[i]  # type: ignore[index]
            mode = node.recompute if i in block.recompute else node.vanilla
            if mode is None:
                raise InputError(f"node {i} has no such mode")
            modes.append(mode)
        crossing = [c for a, b, c in instance.edges if (place[a] == s) != (place[b] == s)]
        loads.append(math.fsum([*(m.time_s for m in modes), *(2 * c / instance.bandwidth for c in crossing)]))
        flying = len(blocks) - s
        held = math.fsum(m.static_bytes + flying * m.in_flight_bytes for m in modes)
        if held > instance.limit_bytes * _SLACK:
            raise InputError(f"stage {s} does not fit")
    if any(place[a] > place[b] for a, b, _ in instance.edges):
        raise InputError("an edge leads back")
    return max(loads)
