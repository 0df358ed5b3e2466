"""ModelGraph: the layer graph with measured or analytic costs, and its file format (model.json)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..basics import (
    MOST_BYTES,
    MOST_EDGES,
    MOST_LAYERS,
    MOST_NAME,
    MOST_SECONDS,
    ModelError,
    reading,
    refusing,
    shown,
    write_text,
)

if TYPE_CHECKING:
    import networkx

FORMAT = "contraflow/model"
VERSION = 1


@dataclass(frozen=True)
class Layer:
    """The smallest piece the planner may cut between, with its cost for one micro-batch.

    Times are seconds on the device the model was profiled on, sizes are bytes.

    Attributes:
        backward_input_s, backward_weight_s: the two halves of the backward; `separable` is False when only
            their sum is known (it is then kept in `backward_input_s`).
        stash_bytes: what one forward leaves for its backward, the saved input included, parameters excluded.
        weight_stash_bytes: what is held between the input half and the weight half of the backward.
        output_bytes: the tensor sent on; its gradient has the same size.
        input_bytes: what recompute keeps and what a first stage receives; None: the predecessors' output.
        workspace_bytes: transient memory of the running op beyond stash, received and sent tensors.
        buffer_bytes: persistent state that is not trained (BatchNorm statistics, masks).
        parameter_shapes: shapes of the parameter tensors where known, for the fingerprint.
        trainable_bytes: of the parameters, those that are trained; the others are frozen and have neither gradients nor
            optimizer state. None: all of them.
    """

    name: str
    forward_s: float = 0.0
    backward_input_s: float = 0.0
    backward_weight_s: float = 0.0
    separable: bool = True
    parameter_bytes: int = 0
    stash_bytes: int = 0
    weight_stash_bytes: int = 0
    output_bytes: int = 0
    input_bytes: int | None = None
    workspace_bytes: int = 0
    buffer_bytes: int = 0
    parameter_shapes: tuple[tuple[int, ...], ...] | None = None
    trainable_bytes: int | None = None

    @property
    def trained_bytes(self) -> int:
        """Bytes of the parameters that are trained."""
        return self.parameter_bytes if self.trainable_bytes is None else self.trainable_bytes

    @property
    def backward_s(self) -> float:
        """Seconds of the whole backward."""
        return self.backward_input_s + self.backward_weight_s

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(f"layer name must be a non-empty string, got {shown(self.name)}")
        where = f"layer {shown(self.name)}"
        with refusing(ModelError):
            reading.text(self.name, "name", where)
            for key in _TIMES:
                reading.number(getattr(self, key), key, where, MOST_SECONDS)
            for key in _SIZES:
                reading.whole(getattr(self, key), key, where, most=MOST_BYTES)
            if self.input_bytes is not None:
                reading.whole(self.input_bytes, "input_bytes", where, most=MOST_BYTES)
            if self.trainable_bytes is not None:
                reading.whole(self.trainable_bytes, "trainable_bytes", where, most=MOST_BYTES)
        if self.trained_bytes > self.parameter_bytes:
            raise ModelError(
                f"{where}: trainable_bytes must be at most parameter_bytes, {self.parameter_bytes}, "
                f"got {self.trained_bytes}"
            )


_MOST_DIMENSIONS = 64  # of a tensor, in torch
_TIMES = ("forward_s", "backward_input_s", "backward_weight_s")
_SIZES = (
    "parameter_bytes",
    "stash_bytes",
    "weight_stash_bytes",
    "output_bytes",
    "workspace_bytes",
    "buffer_bytes",
)


@dataclass(frozen=True)
class SharedParameters:
    """Parameters that several layers hold in common (tied weights): `bytes` of every member's `parameter_bytes`."""

    layers: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class ModelGraph:
    """The layer DAG. Immutable, validated at construction, picklable.

    Raises ModelError, naming the layer, on duplicate names, dangling edges and cycles.
    """

    layers: tuple[Layer, ...]
    edges: tuple[tuple[str, str], ...] = ()
    name: str = "model"
    micro_batch_size: int = 1
    device: str | None = None
    shared: tuple[SharedParameters, ...] = field(default=())

    def __post_init__(self) -> None:
        import networkx

        if not self.layers:
            raise ModelError("the model has no layers")
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
        self._check_shared(seen)
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

    @cached_property
    def total_bytes(self) -> int:
        """All sizes of all layers: more than anything that a micro-batch needs, however it is counted."""
        return sum(sum(getattr(x, key) for key in _SIZES) + (x.input_bytes or 0) for x in self.layers)

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
        """Hash of the model and of the samples that its costs are of."""
        return hashlib.sha256(json.dumps([self.fingerprint, self.micro_batch_size]).encode()).hexdigest()[:16]

    @classmethod
    def chain(cls, layers: Sequence[Layer], name: str = "model", **rest: Any) -> ModelGraph:
        """A model whose layers follow one another."""
        names = [layer.name for layer in layers]
        return cls(tuple(layers), tuple(zip(names, names[1:], strict=False)), name, **rest)

    # ---------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """The content of model.json (design: files and commands)."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "micro_batch_size": self.micro_batch_size,
            "layers": [_layer_to_dict(layer) for layer in self.layers],
            "edges": [list(edge) for edge in self.edges],
        }
        if self.device is not None:
            content["device"] = self.device
        if self.shared:
            content["shared"] = [{"layers": list(g.layers), "bytes": g.bytes} for g in self.shared]
        return content

    @classmethod
    def from_dict(cls, content: object) -> ModelGraph:
        """The model graph of a parsed model.json; raises ModelError naming the key or layer."""
        with refusing(ModelError):
            return cls._read(content)

    @classmethod
    def _read(cls, content: object) -> ModelGraph:
        top = reading.mapping(content, "a model", what="a JSON object")
        reading.mapping(top, "model", _KEYS)
        if top.get("format") != FORMAT:
            raise ModelError(f"format must be {FORMAT!r}, got {shown(top.get('format'))}")
        if top.get("version") != VERSION:
            raise ModelError(f"model version must be {VERSION}, got {shown(top.get('version'))}")
        layers = reading.items(top, "layers", "model", MOST_LAYERS)
        size = reading.whole(top.get("micro_batch_size", 1), "micro_batch_size", "model", 1, MOST_BYTES)
        device = top.get("device")
        return cls(
            tuple(_layer_from_dict(entry, position) for position, entry in enumerate(layers)),
            _edges_from(top.get("edges", [])),
            reading.text(top.get("name", "model"), "name", "model"),
            size,
            None if device is None else reading.text(device, "device", "model"),
            _shared_from(top.get("shared", [])),
        )

    def save(self, path: str | Path) -> None:
        """Writes model.json."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> ModelGraph:
        """Reads model.json; raises ModelError (one line) when it is not one."""
        with refusing(ModelError):
            return cls.from_dict(reading.read_json(path))


_KEYS = {"format", "version", "name", "micro_batch_size", "layers", "edges", "device", "shared"}
_LAYER_KEYS = {f.name for f in fields(Layer)} - {"separable"} | {"backward_s"}


def _layer_to_dict(layer: Layer) -> dict[str, Any]:
    content: dict[str, Any] = {"name": layer.name, "forward_s": layer.forward_s}
    if layer.separable:
        content |= {
            "backward_input_s": layer.backward_input_s,
            "backward_weight_s": layer.backward_weight_s,
        }
    else:
        content["backward_s"] = layer.backward_s
    content |= {key: getattr(layer, key) for key in _SIZES}
    if layer.input_bytes is not None:
        content["input_bytes"] = layer.input_bytes
    if layer.parameter_shapes is not None:
        content["parameter_shapes"] = [list(shape) for shape in layer.parameter_shapes]
    if layer.trainable_bytes is not None:
        content["trainable_bytes"] = layer.trainable_bytes
    return content


def _layer_from_dict(entry: object, position: int) -> Layer:
    values = dict(reading.mapping(entry, f"layers[{position}]"))
    where = f"layer {shown(values.get('name', position))}"
    reading.mapping(values, where, _LAYER_KEYS)
    if "name" not in values:
        raise ModelError(f"layers[{position}] has no name")
    if "backward_s" in values:
        if "backward_input_s" in values or "backward_weight_s" in values:
            raise ModelError(f"{where}: give backward_s or its two halves, not both")
        reading.number(values["backward_s"], "backward_s", where, MOST_SECONDS)
        values["backward_input_s"] = values.pop("backward_s")
        values["separable"] = False
    if "weight_stash_bytes" not in values:
        values["weight_stash_bytes"] = values.get("stash_bytes", 0)
    if values.get("parameter_shapes") is not None:
        values["parameter_shapes"] = _shapes_from(values["parameter_shapes"], where)
    layer = Layer(**values)
    whole = {
        k: int(getattr(layer, k)) for k in (*_SIZES, "input_bytes", "trainable_bytes") if getattr(layer, k) is not None
    }
    return Layer(**(values | whole))


def _shapes_from(content: object, where: str) -> tuple[tuple[int, ...], ...]:
    """At most so many numbers as a name has letters: nobody's layer has more."""
    shapes = reading.sequence(content, f"{where}: parameter_shapes", MOST_NAME)
    found = []
    for shape in shapes:
        sizes = reading.sequence(shape, f"{where}: parameter_shapes: a shape", _MOST_DIMENSIONS)
        found.append(tuple(reading.whole(n, "parameter_shapes", where, most=MOST_BYTES) for n in sizes))
        if prod(found[-1]) > MOST_BYTES:
            raise ModelError(f"{where}: a parameter of shape {shown(shape)} has more than {MOST_BYTES} numbers")
    return tuple(found)


def _edges_from(content: object) -> tuple[tuple[str, str], ...]:
    edges = reading.sequence(content, "edges", MOST_EDGES)
    for edge in edges:
        if not (isinstance(edge, list) and len(edge) == 2 and all(isinstance(end, str) for end in edge)):
            raise ModelError(f"edge {shown(edge)} must be a pair of layer names")
    return tuple(dict.fromkeys((edge[0], edge[1]) for edge in edges))


def _shared_from(content: object) -> tuple[SharedParameters, ...]:
    groups = []
    for position, entry in enumerate(reading.sequence(content, "shared", MOST_LAYERS)):
        where = f"shared[{position}]"
        group = reading.mapping(entry, where, {"layers", "bytes"})
        size = reading.whole(reading.required(group, "bytes", where), "bytes", where, most=MOST_BYTES)
        members = reading.texts(reading.items(group, "layers", where, MOST_LAYERS), "layers", where)
        groups.append(SharedParameters(members, size))
    return tuple(groups)
