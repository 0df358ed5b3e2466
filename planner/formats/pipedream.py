"""PipeDream profiles, `graph.txt` (SOSP'19): one node a line with its times, then the edges, indented.

    node4 -- Conv2d(3, 64, ...) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=64.0, parameter_size=8.0
    <tab>node1 -- node4

Times are milliseconds and sizes bytes, for one micro-batch. A node that returns several tensors gives their sizes
as a list, `[64.0; 8.0]`.
"""  # noqa: E501

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..basics import MOST_BYTES, MOST_EDGES, MOST_LAYERS, MOST_SECONDS, reading, shown
from ..problem import Layer, ModelGraph
from . import published
from .published import FormatError

_TIMES = ("forward_compute_time", "backward_compute_time")
_KEYS = (*_TIMES, "activation_size", "parameter_size")


@dataclass(frozen=True)
class ProfileNode:
    """One line of the profile: milliseconds and bytes of one micro-batch."""

    id: str
    description: str
    forward_ms: float
    backward_ms: float
    output_bytes: tuple[float, ...]
    parameter_bytes: float

    @property
    def activation_bytes(self) -> float:
        """Bytes of all tensors the node returns."""
        return sum(self.output_bytes)

    @property
    def layer(self) -> Layer:
        """The node as a layer; the activation is what it sends on and, as in PipeDream, what it stashes."""
        size = round(self.activation_bytes)
        return Layer(
            name=f"{self.id} {self.description.split('(')[0].strip()}".strip(),
            forward_s=self.forward_ms / 1000,
            backward_input_s=self.backward_ms / 1000,
            separable=False,
            parameter_bytes=round(self.parameter_bytes),
            stash_bytes=size,
            weight_stash_bytes=size,
            output_bytes=size,
        )


@dataclass(frozen=True)
class PipeDreamProfile:
    """A profile as its file says it; `trained` and `model` leave out what PipeDream leaves out."""

    name: str
    nodes: tuple[ProfileNode, ...]
    edges: tuple[tuple[str, str], ...]

    @cached_property
    def trained(self) -> PipeDreamProfile:
        """The profile without Input sources and `__getitem__` sinks, which PipeDream's optimizer drops too."""
        read, fed = {source for source, _ in self.edges}, {target for _, target in self.edges}
        kept = {
            node.id
            for node in self.nodes
            if not (node.id not in fed and node.description.startswith("Input"))
            and not (node.id not in read and node.description.startswith("__getitem__"))
        }
        if not kept:
            raise FormatError(f"{shown(self.name)}: there is nothing but inputs")
        nodes = tuple(node for node in self.nodes if node.id in kept)
        return PipeDreamProfile(self.name, nodes, tuple(e for e in self.edges if kept.issuperset(e)))

    @cached_property
    def model(self) -> ModelGraph:
        """The layers for the planner, in seconds; raises FormatError when there are only inputs."""
        layers = {node.id: node.layer for node in self.trained.nodes}
        edges = tuple((layers[source].name, layers[target].name) for source, target in self.trained.edges)
        return ModelGraph(tuple(layers.values()), edges, self.name)


def looks_like(text: str) -> bool:
    """Does the first line that is not empty read as a node of a profile?"""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return " -- " in first


def parse(text: str, name: str) -> PipeDreamProfile:
    """The profile in a graph.txt; raises FormatError naming the line or the node."""
    with published.as_format():
        return _profile(text, name)


def _profile(text: str, name: str) -> PipeDreamProfile:
    nodes: dict[str, ProfileNode] = {}
    edges: dict[tuple[str, str], int] = {}
    for count, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if line.startswith(("\t", " ")):
            edges.setdefault(_edge(line, f"line {count}"), count)
            continue
        node = _node(line, f"line {count}")
        if node.id in nodes:
            raise FormatError(f"line {count}: node {shown(node.id)} appears twice")
        nodes[node.id] = node
    reading.at_most(len(nodes), MOST_LAYERS, "nodes")
    reading.at_most(len(edges), MOST_EDGES, "edges")
    if not nodes:
        raise FormatError("the profile: there are no nodes")
    for (source, target), count in edges.items():
        for end in (source, target):
            published.known(end, nodes, f"line {count}: edge {reading.name_in(source)} -- {reading.name_in(target)}")
    published.acyclic(edges)
    return PipeDreamProfile(name, tuple(nodes.values()), tuple(edges))


def load(path: str | Path) -> PipeDreamProfile:
    """Reads graph.txt, named after its folder; raises FormatError."""
    with published.as_format():
        return parse(reading.read_text(path), Path(path).resolve().parent.name or "profile")


def _edge(line: str, where: str) -> tuple[str, str]:
    ends = [part.strip() for part in line.split(" -- ")]
    if len(ends) != 2 or not all(ends):
        raise FormatError(f"{where}: an edge must read `source -- target`, got {shown(line.strip())}")
    return ends[0], ends[1]


def _node(line: str, where: str) -> ProfileNode:
    parts = [part.strip() for part in line.split(" -- ")]
    if len(parts) < 3 or not parts[0]:
        raise FormatError(f"{where}: a node must read `id -- description -- costs`, got {shown(line.strip())}")
    where = f"{where}: node {shown(parts[0])}"
    costs = dict(_cost(entry, where) for entry in parts[2].split(","))
    for key in _KEYS:
        reading.required(costs, key, where)
    for key in (*_TIMES, "parameter_size"):
        if len(costs[key]) != 1:
            raise FormatError(f"{where}: {key} must be one number, got {len(costs[key])}")
    forward, backward, parameters = (costs[key][0] for key in (*_TIMES, "parameter_size"))
    return ProfileNode(parts[0], parts[1], forward, backward, costs["activation_size"], parameters)


def _cost(entry: str, where: str) -> tuple[str, tuple[float, ...]]:
    key, equals, value = (part.strip() for part in entry.partition("="))
    if not equals:
        raise FormatError(f"{where}: a cost must read `key=number`, got {shown(entry.strip())}")
    listed = re.fullmatch(r"\[(.*)\]", value)
    return key, tuple(_number(part, key, where) for part in (listed[1].split(";") if listed else [value]))


def _number(text: str, key: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise FormatError(f"{where}: {key} must be a number, got {shown(text.strip())}") from None
    return reading.number(value, key, where, 1000 * MOST_SECONDS if key in _TIMES else MOST_BYTES)
