"""Placement instances of dnn-partitioning (Tarnawski et al., NeurIPS'20): JSON with forward and backward nodes.

An accelerator is called FPGA there, whatever it is. Latencies and transfer costs are milliseconds, sizes bytes. What
must be together on a device (a colour class; a strongly connected component that the colours close) is one group, and
groups are ordered by their forward nodes; a group without forward nodes is ordered as the mirror image of its
backward edges, which is what the authors' own programme does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..basics import MOST_BYTES, MOST_DEVICES, MOST_EDGES, MOST_LAYERS, MOST_SECONDS, reading
from ..problem import Layer, ModelGraph
from . import published
from .published import FormatError

TRANSFER_BYTES_PER_MS = 2**31 / 1000
"""Bandwidth behind the transfer costs of the published operator graphs; for edges that give no size."""
_SAME_COST = 1e-6
_TOP = "the instance"
_MOST_MS = 1000 * MOST_SECONDS


@dataclass(frozen=True)
class Operator:
    """One node: milliseconds on an accelerator and on a CPU, and the bytes it takes on an accelerator."""

    id: int
    name: str
    accelerator_ms: float
    cpu_ms: float
    size_bytes: float
    backward: bool
    color: int | None
    on_accelerator: bool


@dataclass(frozen=True)
class Transfer:
    """One edge: the milliseconds that moving the source's output takes, and its bytes where the file has them."""

    source: int
    target: int
    cost_ms: float
    size_bytes: float | None


@dataclass(frozen=True)
class Groups:
    """Nodes that share a device, in a topological order, and the order between groups (pairs of positions)."""

    members: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PlacementInstance:
    """An instance as its file says it: the graph, and what the devices are."""

    name: str
    nodes: tuple[Operator, ...]
    edges: tuple[Transfer, ...]
    accelerators: int
    cpus: int
    limit_bytes: float

    @cached_property
    def node(self) -> Mapping[int, Operator]:
        """Nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def cost_ms(self) -> Mapping[int, float]:
        """Milliseconds to move the output of every node that has a consumer, by id."""
        return {edge.source: edge.cost_ms for edge in self.edges}

    @cached_property
    def groups(self) -> Groups:
        """What is together on a device."""
        return _groups(self)

    @cached_property
    def model(self) -> ModelGraph:
        """One layer a group for the planner, in seconds; raises FormatError on a node for CPUs only.

        Sizes become `buffer_bytes`: memory that is there all step, whatever is in flight. Gradients of tensors are as
        large as the tensors; tensors from a forward to another group's backward are not in the model.
        """
        for node in self.nodes:
            if not node.on_accelerator:
                raise FormatError(f"node {node.id} runs on CPUs only, which a model cannot say")
        sizes = self._output_bytes()
        names = self._names()
        layers = [self._layer(names[i], ids, sizes[i]) for i, ids in enumerate(self.groups.members)]
        return ModelGraph(tuple(layers), tuple((names[a], names[b]) for a, b in self.groups.edges), self.name)

    def _layer(self, name: str, ids: Sequence[int], output_bytes: float) -> Layer:
        nodes = [self.node[i] for i in ids]
        return Layer(
            name=name,
            forward_s=sum(n.accelerator_ms for n in nodes if not n.backward) / 1000,
            backward_input_s=sum(n.accelerator_ms for n in nodes if n.backward) / 1000,
            separable=False,
            buffer_bytes=round(sum(n.size_bytes for n in nodes)),
            output_bytes=round(output_bytes),
        )

    def _output_bytes(self) -> list[float]:
        """Bytes of the forward tensors that leave every group, each once."""
        place = {i: position for position, ids in enumerate(self.groups.members) for i in ids}
        leaving: dict[int, float] = {}
        for edge in self.edges:
            if place[edge.source] != place[edge.target] and not self.node[edge.target].backward:
                size = edge.size_bytes if edge.size_bytes is not None else edge.cost_ms * TRANSFER_BYTES_PER_MS
                leaving[edge.source] = max(size, leaving.get(edge.source, 0.0))
        return [sum(leaving.get(i, 0.0) for i in ids) for ids in self.groups.members]

    def _names(self) -> list[str]:
        """Every group's first forward node by name, with its id where names repeat."""
        first = [next((i for i in ids if not self.node[i].backward), ids[0]) for ids in self.groups.members]
        names = [self.node[i].name for i in first]
        times = Counter(names)
        return [name if times[name] == 1 else f"{name} #{i}" for name, i in zip(names, first, strict=True)]


def parse(content: object, name: str) -> PlacementInstance:
    """The instance in a parsed JSON file; raises FormatError naming the node or the edge."""
    with published.as_format():
        return _instance(content, name)


def _instance(content: object, name: str) -> PlacementInstance:
    top = reading.mapping(content, _TOP)
    nodes = tuple(_operator(entry, i) for i, entry in enumerate(reading.items(top, "nodes", _TOP, MOST_LAYERS)))
    if not nodes:
        raise FormatError(f"{_TOP}: there are no nodes")
    seen: dict[int, Operator] = {}
    for node in nodes:
        if node.id in seen:
            raise FormatError(f"node {node.id} appears twice")
        seen[node.id] = node
    edges = tuple(_transfer(entry, i, seen) for i, entry in enumerate(reading.items(top, "edges", _TOP, MOST_EDGES)))
    _one_cost(edges)
    published.acyclic((edge.source, edge.target) for edge in edges)
    return PlacementInstance(
        name,
        nodes,
        edges,
        reading.whole(reading.required(top, "maxFPGAs", _TOP), "maxFPGAs", _TOP, most=MOST_DEVICES),
        reading.whole(reading.required(top, "maxCPUs", _TOP), "maxCPUs", _TOP, most=MOST_DEVICES),
        reading.number(reading.required(top, "maxSizePerFPGA", _TOP), "maxSizePerFPGA", _TOP),
    )


def load(path: str | Path) -> PlacementInstance:
    """Reads an instance, named after its file; raises FormatError."""
    with published.as_format():
        return parse(reading.read_json(path), Path(path).stem)


def _operator(entry: object, position: int) -> Operator:
    values = reading.mapping(entry, f"nodes[{position}]")
    identity = published.identity(reading.required(values, "id", f"nodes[{position}]"), "id", f"nodes[{position}]")
    where = f"node {identity}"
    color = values.get("colorClass")
    return Operator(
        identity,
        _name(values, identity, where),
        reading.number(reading.required(values, "fpgaLatency", where), "fpgaLatency", where, _MOST_MS),
        reading.number(reading.required(values, "cpuLatency", where), "cpuLatency", where, _MOST_MS),
        reading.number(values.get("size", 0.0), "size", where, MOST_BYTES),
        published.flag(reading.required(values, "isBackwardNode", where), "isBackwardNode", where),
        None if color is None else published.identity(color, "colorClass", where),
        published.flag(values.get("supportedOnFpga", True), "supportedOnFpga", where),
    )


def _name(values: Mapping[str, Any], identity: int, where: str) -> str:
    """The node's name; its id where it has none."""
    found = values.get("name", identity)
    return str(found) if isinstance(found, int | float) else reading.text(found, "name", where) or str(identity)


def _transfer(entry: object, position: int, nodes: Mapping[int, Operator]) -> Transfer:
    where = f"edges[{position}]"
    values = reading.mapping(entry, where)
    source, target = (
        published.identity(reading.required(values, key, where), key, where) for key in ("sourceId", "destId")
    )
    where = f"edge {source} -> {target}"
    published.known(source, nodes, where)
    published.known(target, nodes, where)
    if nodes[source].backward and not nodes[target].backward:
        raise FormatError(f"{where} leads from a backward node to a forward node")
    size: Any = values.get("size")
    return Transfer(
        source,
        target,
        reading.number(reading.required(values, "cost", where), "cost", where, _MOST_MS),
        None if size is None else reading.number(size, "size", where, MOST_BYTES),
    )


def _one_cost(edges: Iterable[Transfer]) -> None:
    costs: dict[int, float] = {}
    for edge in edges:
        first = costs.setdefault(edge.source, edge.cost_ms)
        if abs(first - edge.cost_ms) > _SAME_COST:
            raise FormatError(f"edges out of node {edge.source} have two costs: {first} and {edge.cost_ms}")


def _groups(instance: PlacementInstance) -> Groups:
    """Colour classes, then the strongly connected components of their order, in the file's order where free."""
    import networkx

    own = -1 - max((abs(n.color) for n in instance.nodes if n.color is not None), default=0)
    color = {n.id: own - i if n.color is None else n.color for i, n in enumerate(instance.nodes)}
    forward = {color[n.id] for n in instance.nodes if not n.backward}
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(color.values())
    for edge in instance.edges:
        a, b = color[edge.source], color[edge.target]
        if not instance.node[edge.target].backward:
            graph.add_edge(a, b)
        elif instance.node[edge.source].backward and not (a in forward and b in forward):
            graph.add_edge(b, a)
    graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
    merged = networkx.condensation(graph)
    place = {c: component for component, data in merged.nodes(data=True) for c in data["members"]}
    members: dict[int, list[int]] = {}
    for node in instance.nodes:
        members.setdefault(place[color[node.id]], []).append(node.id)
    first = {component: position for position, component in enumerate(members)}
    order = list(networkx.lexicographical_topological_sort(merged, key=lambda component: first[component]))
    rank = {component: position for position, component in enumerate(order)}
    edges = sorted((rank[a], rank[b]) for a, b in merged.edges)
    return Groups(tuple(tuple(members[component]) for component in order), tuple(edges))
