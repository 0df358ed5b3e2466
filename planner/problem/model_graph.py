"""ModelGraph: the layer graph with measured or analytic costs, and its file format (model.json)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..basics import (
    MOST_BYTES,
    MOST_DEVICES,
    MOST_EDGES,
    MOST_LAYERS,
    MOST_NAME,
    MOST_SPEED,
    ModelError,
    reading,
    refusing,
    shown,
    write_text,
)
from .kept_twice import KeptTwice, kept_twice_from, kept_twice_to_list
from .layer import Layer, Output, layer_from_dict, layer_to_dict
from .presets import KindSpeed

if TYPE_CHECKING:
    import networkx

FORMAT = "contraflow/model"
VERSION = 1
WAYS = ("tensor", "sequence", "expert")
"""What a team of ranks may divide a layer by; all of them by the same ranks."""


@dataclass(frozen=True)
class SharedParameters:
    """Parameters that several layers hold in common (tied weights): `bytes` of every member's `parameter_bytes`."""

    layers: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class ModelGraph:
    """The layer DAG. Immutable, validated at construction, picklable.

    Raises ModelError, naming the layer, on duplicate names, dangling edges and cycles.

    Attributes:
        micro_batch_size, device: samples that the costs are of; where they were measured, or for which preset.
        shared: tied parameters.
        ways: by what a team of ranks divides every layer (WAYS), and into how many parts; costs are then one rank's,
            with what the ranks tell each other inside the layer. Empty: one rank computes a layer.
        speeds: of other kinds of devices than `device`.
        named: edges that carry some of their layer's outputs only, with the names of these.
        kept_twice: what stashes have in common.
    """

    layers: tuple[Layer, ...]
    edges: tuple[tuple[str, str], ...] = ()
    name: str = "model"
    micro_batch_size: int = 1
    device: str | None = None
    shared: tuple[SharedParameters, ...] = field(default=())
    ways: tuple[tuple[str, int], ...] = ()
    speeds: tuple[KindSpeed, ...] = ()
    named: tuple[tuple[tuple[str, str], tuple[str, ...]], ...] = ()
    kept_twice: tuple[KeptTwice, ...] = ()

    def __post_init__(self) -> None:
        import networkx

        if not self.layers:
            raise ModelError("the model has no layers")
        self._check_ways()
        self._check_sizes()
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise ModelError(f"layer {shown(layer.name)} appears twice")
            seen.add(layer.name)
        for source, target in self.edges:
            for end in (source, target):
                if end not in seen:
                    raise ModelError(f"edge {shown(source)} -> {shown(target)}: there is no layer {shown(end)}")
        self._check_named()
        self._check_shared(seen)
        if self.kept_twice:
            self._check_kept_twice()
        graph = networkx.DiGraph(self.edges)
        if not networkx.is_directed_acyclic_graph(graph):
            cycle = [edge[0] for edge in networkx.find_cycle(graph)]
            few = [*map(shown, cycle[:4]), *(["..."] if len(cycle) > 4 else []), shown(cycle[0])]
            raise ModelError(f"the layer graph has a cycle: {' -> '.join(few)}")

    def _check_sizes(self) -> None:
        """Whatever adds up layers stays exact."""
        with refusing(ModelError):
            reading.at_most(len(self.layers), MOST_LAYERS, "layers")
            reading.at_most(len(self.edges), MOST_EDGES, "edges")
        if self.total_bytes > MOST_BYTES:
            raise ModelError(
                f"the layers have {self.total_bytes} bytes together, at most {MOST_BYTES} are planned with"
            )

    def _check_ways(self) -> None:
        with refusing(ModelError):
            for name, count in self.ways:
                reading.mapping({name: count}, "ways", WAYS)
                reading.whole(count, name, "ways", 1, MOST_DEVICES)
        parts = {count for _, count in self.ways if count > 1}
        if len(parts) > 1:
            raise ModelError(f"ways: the same ranks divide a layer by all of them, got {shown(dict(self.ways))}")

    def _check_named(self) -> None:
        edges = set(self.edges)
        for (source, target), names in self.named:
            where = f"edge {shown(source)} -> {shown(target)}"
            if (source, target) not in edges:
                raise ModelError(f"{where} carries tensors, but there is no such edge")
            known = {output.name for output in self.layers[self.index[source]].outputs}
            for name in names:
                if name not in known:
                    raise ModelError(f"{where}: layer {shown(source)} has no output {shown(name)}")
            if not names or len(set(names)) < len(names):
                raise ModelError(f"{where} must carry one or more different tensors, got {shown(names)}")

    def _check_kept_twice(self) -> None:
        """Every pair is an edge, and the second of them keeps as much."""
        seen: set[tuple[str, str]] = set()
        left: dict[str, list[int]] = {}
        for pair in self.kept_twice:
            where = f"kept_twice {shown(pair.first)}, {shown(pair.second)}"
            if pair[:2] not in self.carried:
                raise ModelError(f"{where}: there is no such edge")
            if pair[:2] in seen:
                raise ModelError(f"{where} is there twice")
            seen.add(pair[:2])
            layer = self.layers[self.index[pair.second]]
            rest = left.setdefault(layer.name, [layer.stash_bytes - layer.selective_bytes, layer.weight_stash_bytes])
            for number, (key, size) in enumerate((("bytes", pair.bytes), ("weight_bytes", pair.weight_bytes))):
                with refusing(ModelError):
                    rest[number] -= reading.whole(size, key, where, most=MOST_BYTES)
                if rest[number] < 0:
                    of = "weight stash" if number else "stash that nothing drops"
                    raise ModelError(
                        f"{where}: {key} is {size}, and the {of} of {shown(layer.name)} has {rest[number] + size} left"
                    )

    @cached_property
    def carried(self) -> Mapping[tuple[str, str], tuple[Output, ...]]:
        """The tensors of every edge; one without a name is all that its layer gives."""
        named = {edge: set(names) for edge, names in self.named}
        found = {}
        for edge in self.edges:
            layer = self.layers[self.index[edge[0]]]
            outputs = layer.outputs or (Output("", layer.output_bytes),)
            found[edge] = tuple(output for output in outputs if edge not in named or output.name in named[edge])
        return found

    def carried_bytes(self, source: str, targets: Iterable[str]) -> int:
        """Of the tensors that any of these layers takes from one, each once."""
        return sum(output.bytes for output in {o for target in targets for o in self.carried[source, target]})

    @property
    def team(self) -> int:
        """Ranks that compute every layer together."""
        return max((count for _, count in self.ways), default=1)

    @cached_property
    def total_bytes(self) -> int:
        """All sizes of all layers: more than anything that a micro-batch needs, however it is counted."""
        return sum(layer.total_bytes for layer in self.layers)

    def _check_shared(self, known: set[str]) -> None:
        shared: dict[str, int] = {}
        for group in self.shared:
            for member in group.layers:
                if member not in known:
                    raise ModelError(f"shared parameters name layer {shown(member)}, which does not exist")
                shared[member] = shared.get(member, 0) + group.bytes
            if len(group.layers) < 2 or len(set(group.layers)) < len(group.layers):
                raise ModelError(f"shared parameters need two or more different layers, got {shown(group.layers)}")
        for member, size in shared.items():
            whole = self.layers[self.index[member]].parameter_bytes
            if size > whole:
                raise ModelError(f"layer {shown(member)} shares {size} bytes of parameters, but has {whole}")

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of every layer in `layers`, by name."""
        return {layer.name: position for position, layer in enumerate(self.layers)}

    def graph(self) -> networkx.DiGraph[str]:
        """The layer graph as networkx.DiGraph, every node with its `layer`."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for layer in self.layers:
            graph.add_node(layer.name, layer=layer)
        graph.add_edges_from(self.edges)
        return graph

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """Layer positions in a topological order, the file's order where the edges leave a choice."""
        import networkx

        order = networkx.lexicographical_topological_sort(self.graph(), key=lambda name: self.index[name])
        return tuple(self.index[name] for name in order)

    @cached_property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """The layers that every layer takes something from, by name."""
        found: dict[str, list[str]] = {layer.name: [] for layer in self.layers}
        for source, target in self.edges:
            found[target].append(source)
        return {name: tuple(before) for name, before in found.items()}

    @cached_property
    def rank(self) -> Mapping[str, int]:
        """Where every layer stands in the topological order, by name."""
        return {self.layers[position].name: number for number, position in enumerate(self.topological)}

    @cached_property
    def straight(self) -> bool:
        """Whether there is one topological order only: every layer takes something from the one before it."""
        names, edges = [self.layers[position].name for position in self.topological], set(self.edges)
        return all(pair in edges for pair in zip(names, names[1:], strict=False))

    def in_order(self, positions: Sequence[int]) -> ModelGraph:
        """The same layers and edges, the layers as in this topological order of their positions."""
        return replace(self, layers=tuple(self.layers[position] for position in positions))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of layer names, parameter sizes, parameter shapes where known, edges, and what is shared."""
        parts: list[list[object]] = [[x.name, x.parameter_bytes, x.parameter_shapes] for x in self.layers]
        for part, layer in zip(parts, self.layers, strict=True):
            part += [] if layer.trained_bytes == layer.parameter_bytes else [layer.trained_bytes]
        tied = [[[group.layers, group.bytes] for group in self.shared]] if self.shared else []
        return hashlib.sha256(json.dumps([parts, self.edges, *tied]).encode()).hexdigest()[:16]

    @cached_property
    def measured_fingerprint(self) -> str:
        """Hash of the model, of the samples that its costs are of, and of how a team divides it."""
        ways = [sorted(self.ways)] if self.ways else []
        return hashlib.sha256(json.dumps([self.fingerprint, self.micro_batch_size, *ways]).encode()).hexdigest()[:16]

    @classmethod
    def chain(cls, layers: Sequence[Layer], name: str = "model", **rest: Any) -> ModelGraph:
        """A model whose layers follow one another."""
        names = [layer.name for layer in layers]
        return cls(tuple(layers), tuple(zip(names, names[1:], strict=False)), name, **rest)

    # ---------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """The content of model.json (design: files and commands)."""
        named = dict(self.named)
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "micro_batch_size": self.micro_batch_size,
            "layers": [layer_to_dict(layer) for layer in self.layers],
            "edges": [[*edge, *([list(named[edge])] if edge in named else [])] for edge in self.edges],
        }
        if self.device is not None:
            content["device"] = self.device
        if self.shared:
            content["shared"] = [{"layers": list(g.layers), "bytes": g.bytes} for g in self.shared]
        if self.kept_twice:
            content["kept_twice"] = kept_twice_to_list(self.kept_twice)
        content |= {"ways": dict(self.ways)} if self.ways else {}
        return content | ({"speeds": speeds_to_dict(self.speeds)} if self.speeds else {})

    @classmethod
    def from_dict(cls, content: object) -> ModelGraph:
        """The model graph of a parsed model.json; raises ModelError naming the key or layer."""
        with refusing(ModelError):
            return cls._read(content)

    @classmethod
    def _read(cls, content: object) -> ModelGraph:
        top = reading.mapping(content, "a model", what="a JSON object")
        reading.mapping(top, "model", _KEYS)
        reading.versioned(top, FORMAT, VERSION, "model")
        layers = reading.items(top, "layers", "model", MOST_LAYERS)
        size = reading.whole(top.get("micro_batch_size", 1), "micro_batch_size", "model", 1, MOST_BYTES)
        device = top.get("device")
        edges = _edges_from(top.get("edges", []))
        return cls(
            tuple(layer_from_dict(entry, position) for position, entry in enumerate(layers)),
            tuple(edges),
            reading.text(top.get("name", "model"), "name", "model"),
            size,
            None if device is None else reading.text(device, "device", "model"),
            _shared_from(top.get("shared", [])),
            tuple(reading.mapping(top.get("ways", {}), "ways", WAYS).items()),
            _speeds_from(top.get("speeds", {})),
            tuple((edge, names) for edge, names in edges.items() if names is not None),
            kept_twice_from(top.get("kept_twice", [])),
        )

    def save(self, path: str | Path) -> None:
        """Writes model.json."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> ModelGraph:
        """Reads model.json; raises ModelError (one line) when it is not one."""
        with refusing(ModelError):
            return cls.from_dict(reading.read_json(path))


_KEYS = {
    *("format", "version", "name", "micro_batch_size", "layers", "edges", "device", "shared", "ways", "speeds"),
    "kept_twice",
}


def _edges_from(content: object) -> dict[tuple[str, str], tuple[str, ...] | None]:
    """By edge, the names of the tensors that it carries; None: all of them."""
    found: dict[tuple[str, str], tuple[str, ...] | None] = {}
    for edge in reading.sequence(content, "edges", MOST_EDGES):
        pair = isinstance(edge, list) and len(edge) in (2, 3) and all(isinstance(end, str) for end in edge[:2])
        if not pair or not all(isinstance(names, list) for names in edge[2:]):
            raise ModelError(f"edge {shown(edge)} must be a pair of layer names, or these and names of tensors")
        names = None
        if len(edge) == 3:
            names = reading.texts(reading.sequence(edge[2], "an edge's tensors", MOST_NAME), "tensors", "edges")
        if found.setdefault((edge[0], edge[1]), names) != names:
            raise ModelError(f"edge {shown(edge[0])} -> {shown(edge[1])} is there twice, with other tensors")
    return found


def _shared_from(content: object) -> tuple[SharedParameters, ...]:
    groups = []
    for position, entry in enumerate(reading.sequence(content, "shared", MOST_LAYERS)):
        where = f"shared[{position}]"
        group = reading.mapping(entry, where, {"layers", "bytes"})
        size = reading.whole(reading.required(group, "bytes", where), "bytes", where, most=MOST_BYTES)
        members = reading.texts(reading.items(group, "layers", where, MOST_LAYERS), "layers", where)
        groups.append(SharedParameters(members, size))
    return tuple(groups)


def speeds_to_dict(speeds: Iterable[KindSpeed]) -> dict[str, Any]:
    """As model.json has them."""
    return {kind.name: {"mean": kind.mean, "least": kind.least, "most": kind.most} for kind in speeds}


def _speeds_from(content: object) -> tuple[KindSpeed, ...]:
    found = []
    table = reading.mapping(content, "speeds", what="an object of objects")
    reading.at_most(len(table), MOST_DEVICES, "speeds")
    for name, entry in table.items():
        where = f"speeds.{reading.name_in(name)}"
        values = reading.mapping(entry, where, {"mean", "least", "most"})
        least, mean, most = (
            reading.positive(reading.required(values, key, where), key, where, 1 / MOST_SPEED, MOST_SPEED)
            for key in ("least", "mean", "most")
        )
        if not least <= mean <= most:
            raise ModelError(f"{where}: mean must be from least to most, got {mean:g} of {least:g} to {most:g}")
        found.append(KindSpeed(reading.text(name, "the name", "speeds"), mean, least, most))
    return tuple(found)
