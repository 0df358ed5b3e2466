"""ModelGraph: the layer graph with measured or analytic costs, and its file format (model.json)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelError
from .files import write_text

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

    @property
    def backward_s(self) -> float:
        """Seconds of the whole backward."""
        return self.backward_input_s + self.backward_weight_s

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(f"layer name must be a non-empty string, got {self.name!r}")
        for key in _TIMES:
            _check_number(self.name, key, getattr(self, key), whole=False)
        for key in _SIZES:
            _check_number(self.name, key, getattr(self, key), whole=True)
        if self.input_bytes is not None:
            _check_number(self.name, "input_bytes", self.input_bytes, whole=True)


_TIMES = ("forward_s", "backward_input_s", "backward_weight_s")
_SIZES = (
    "parameter_bytes",
    "stash_bytes",
    "weight_stash_bytes",
    "output_bytes",
    "workspace_bytes",
    "buffer_bytes",
)


def _check_number(layer: str, key: str, value: object, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelError(f"layer {layer!r}: {key} must be a number, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ModelError(f"layer {layer!r}: {key} must be finite and not negative, got {value!r}")
    if whole and value != int(value):
        raise ModelError(f"layer {layer!r}: {key} must be a whole number of bytes, got {value!r}")


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
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise ModelError(f"layer {layer.name!r} appears twice")
            seen.add(layer.name)
        for source, target in self.edges:
            for end in (source, target):
                if end not in seen:
                    raise ModelError(f"edge {source!r} -> {target!r}: there is no layer {end!r}")
        self._check_shared(seen)
        graph = networkx.DiGraph(self.edges)
        if not networkx.is_directed_acyclic_graph(graph):
            cycle = [edge[0] for edge in networkx.find_cycle(graph)]
            raise ModelError(f"the layer graph has a cycle: {' -> '.join(map(repr, [*cycle, cycle[0]]))}")

    def _check_shared(self, known: set[str]) -> None:
        shared: dict[str, int] = {}
        for group in self.shared:
            for member in group.layers:
                if member not in known:
                    raise ModelError(f"shared parameters name layer {member!r}, which does not exist")
                shared[member] = shared.get(member, 0) + group.bytes
            if len(group.layers) < 2 or len(set(group.layers)) < len(group.layers):
                raise ModelError(f"shared parameters need two or more different layers, got {list(group.layers)}")
        for member, size in shared.items():
            whole = self.layers[self.index[member]].parameter_bytes
            if size > whole:
                raise ModelError(f"layer {member!r} shares {size} bytes of parameters, but has {whole}")

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
    def fingerprint(self) -> str:
        """Hash of layer names, parameter sizes, parameter shapes where known, edges, and what is shared."""
        parts = [[x.name, x.parameter_bytes, x.parameter_shapes] for x in self.layers]
        tied = [[[group.layers, group.bytes] for group in self.shared]] if self.shared else []
        return hashlib.sha256(json.dumps([parts, self.edges, *tied]).encode()).hexdigest()[:16]

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
        if not isinstance(content, dict):
            raise ModelError(f"a model must be a JSON object, got {type(content).__name__}")
        known = {"format", "version", "name", "micro_batch_size", "layers", "edges", "device", "shared"}
        _no_unknown(content, known, "model")
        if content.get("format") != FORMAT:
            raise ModelError(f"format must be {FORMAT!r}, got {content.get('format')!r}")
        if content.get("version") != VERSION:
            raise ModelError(f"model version must be {VERSION}, got {content.get('version')!r}")
        layers = content.get("layers")
        if not isinstance(layers, list):
            raise ModelError("layers must be a list")
        size = content.get("micro_batch_size", 1)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ModelError(f"micro_batch_size must be a whole number of at least 1, got {size!r}")
        name, device = content.get("name", "model"), content.get("device")
        if not isinstance(name, str) or not (device is None or isinstance(device, str)):
            raise ModelError("name and device must be strings")
        return cls(
            tuple(_layer_from_dict(entry, position) for position, entry in enumerate(layers)),
            _edges_from(content.get("edges", [])),
            name,
            size,
            device,
            _shared_from(content.get("shared", [])),
        )

    def save(self, path: str | Path) -> None:
        """Writes model.json."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> ModelGraph:
        """Reads model.json; raises ModelError (one line) when it is not one."""
        try:
            content = json.loads(Path(path).read_text())
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise ModelError(f"{path} is not JSON: {error}") from None
        return cls.from_dict(content)


def _no_unknown(content: Mapping[str, object], known: set[str], where: str) -> None:
    for key in content:
        if key not in known:
            raise ModelError(f"{where}: unknown key {key!r}")


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
    return content


def _layer_from_dict(entry: object, position: int) -> Layer:
    if not isinstance(entry, dict):
        raise ModelError(f"layers[{position}] must be an object, got {entry!r}")
    values: dict[str, Any] = dict(entry)
    where = f"layer {values.get('name', position)!r}"
    _no_unknown(values, _LAYER_KEYS, where)
    if "name" not in values:
        raise ModelError(f"layers[{position}] has no name")
    if "backward_s" in values:
        if "backward_input_s" in values or "backward_weight_s" in values:
            raise ModelError(f"{where}: give backward_s or its two halves, not both")
        values["backward_input_s"] = values.pop("backward_s")
        values["separable"] = False
    if "weight_stash_bytes" not in values:
        values["weight_stash_bytes"] = values.get("stash_bytes", 0)
    shapes = values.get("parameter_shapes")
    if shapes is not None:
        try:
            values["parameter_shapes"] = tuple(tuple(int(n) for n in shape) for shape in shapes)
        except (TypeError, ValueError):
            raise ModelError(f"{where}: parameter_shapes must be a list of lists of sizes") from None
    layer = Layer(**values)
    whole = {k: int(getattr(layer, k)) for k in (*_SIZES, "input_bytes") if getattr(layer, k) is not None}
    return Layer(**(values | whole))


def _edges_from(content: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(content, list):
        raise ModelError("edges must be a list of pairs of layer names")
    for edge in content:
        if not (isinstance(edge, list) and len(edge) == 2 and all(isinstance(end, str) for end in edge)):
            raise ModelError(f"edge {edge!r} must be a pair of layer names")
    return tuple(dict.fromkeys((edge[0], edge[1]) for edge in content))


def _shared_from(content: object) -> tuple[SharedParameters, ...]:
    if not isinstance(content, list):
        raise ModelError("shared must be a list")
    groups = []
    for entry in content:
        if not isinstance(entry, dict) or set(entry) != {"layers", "bytes"}:
            raise ModelError(f"shared entry {entry!r} must have exactly the keys layers and bytes")
        _check_number(str(entry["layers"]), "shared bytes", entry["bytes"], whole=True)
        groups.append(SharedParameters(tuple(entry["layers"]), int(entry["bytes"])))
    return tuple(groups)
