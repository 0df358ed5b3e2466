"""Piper instances (NeurIPS'21): JSON with the ways to run every layer, tensor-parallel degree by degree.

Of the degrees only 1 is read: one device runs a layer in a mode, `vanilla` or `activation recomp`. Times are those of
forward and backward together for one micro-batch, in seconds; sizes are bytes. A mode holds A bytes for every
micro-batch in flight and B bytes all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ..basics import (
    LEAST_RATE,
    MOST_BYTES,
    MOST_DEVICES,
    MOST_EDGES,
    MOST_LAYERS,
    MOST_MICRO_BATCHES,
    MOST_RATE,
    MOST_SECONDS,
    reading,
    shown,
)
from ..problem import Layer, ModelGraph
from . import published
from .published import FormatError

ModeName = Literal["vanilla", "recompute"]
_RECOMPUTE = "activation recomp"
_TOP = "the instance"
_FORWARD_SHARE = 1 / 3
"""Forward's share of a layer's time where the file does not tell: the backward does twice the work."""


@dataclass(frozen=True)
class Mode:
    """How a layer runs on one device: seconds of a micro-batch, bytes in flight (A) and all the time (B).

    `synchronised`: it needs traffic between tensor-parallel devices, which one device should not.
    """

    time_s: float
    parameter_bytes: float
    in_flight_bytes: float
    static_bytes: float
    synchronised: bool


@dataclass(frozen=True)
class PiperLayer:
    """A layer and its modes on one device; `recompute` is None where the file has none."""

    id: int
    name: str
    vanilla: Mode
    recompute: Mode | None

    @property
    def forward_s(self) -> float:
        """Seconds of the forward: what recompute adds; a third of the whole where that is no answer."""
        more = self.recompute.time_s - self.vanilla.time_s if self.recompute is not None else -1.0
        return more if 0 <= more <= self.vanilla.time_s else self.vanilla.time_s * _FORWARD_SHARE


@dataclass(frozen=True)
class PiperInstance:
    """An instance as its file says it. `edges` are (source, target, bytes of one micro-batch)."""

    name: str
    nodes: tuple[PiperLayer, ...]
    edges: tuple[tuple[int, int, float], ...]
    devices: int
    limit_bytes: float
    bandwidth: float
    micro_batches: int

    @cached_property
    def model(self) -> ModelGraph:
        """The layers for the planner, `vanilla`, micro-batches as profiled."""
        return self.to_model()

    def to_model(self, mode: ModeName = "vanilla", micro_batch_size: int = 1) -> ModelGraph:
        """The layers for the planner, for micro-batches that are so many times the profiled one.

        `recompute` runs the forward again in every backward and stashes A of that mode; what it makes again is
        workspace. Raises FormatError when a layer has no such mode.
        """
        sizes: dict[int, float] = {}
        for source, _, size in self.edges:
            sizes[source] = max(size, sizes.get(source, 0.0))
        names = self._names()
        layers = [self._layer(n, names[n.id], mode, micro_batch_size, sizes.get(n.id, 0.0)) for n in self.nodes]
        edges = tuple((names[source], names[target]) for source, target, _ in self.edges)
        return ModelGraph(tuple(layers), edges, self.name, micro_batch_size)

    def _layer(self, node: PiperLayer, name: str, mode: ModeName, size: int, output_bytes: float) -> Layer:
        how = node.vanilla if mode == "vanilla" else node.recompute
        if how is None:
            raise FormatError(f"node {node.id} has no mode {_RECOMPUTE!r} on one device")
        stash = round(how.in_flight_bytes * size)
        return Layer(
            name=name,
            forward_s=min(node.forward_s, how.time_s) * size,
            backward_input_s=max(0.0, how.time_s - node.forward_s) * size,
            separable=False,
            parameter_bytes=round(how.parameter_bytes),
            stash_bytes=stash,
            weight_stash_bytes=stash,
            workspace_bytes=round(max(0.0, how.static_bytes - 2 * how.parameter_bytes) * size),
            output_bytes=round(output_bytes * size),
        )

    def _names(self) -> dict[int, str]:
        """Names by id, with the id where names repeat."""
        times = Counter(node.name for node in self.nodes)
        return {n.id: n.name if times[n.name] == 1 else f"{n.name} #{n.id}" for n in self.nodes}


def parse(content: object, name: str) -> PiperInstance:
    """The instance in a parsed JSON file; raises FormatError naming the node or the edge."""
    with published.as_format():
        return _instance(content, name)


def _instance(content: object, name: str) -> PiperInstance:
    top = reading.mapping(content, _TOP)
    nodes = tuple(_layer(entry, i) for i, entry in enumerate(reading.items(top, "nodes", _TOP, MOST_LAYERS)))
    if not nodes:
        raise FormatError(f"{_TOP}: there are no nodes")
    seen: set[int] = set()
    for node in nodes:
        if node.id in seen:
            raise FormatError(f"node {node.id} appears twice")
        seen.add(node.id)
    edges: dict[tuple[int, int], float] = {}
    for position, entry in enumerate(reading.items(top, "edges", _TOP, MOST_EDGES)):
        source, target, size = _edge(entry, position, seen)
        if (source, target) in edges:
            raise FormatError(f"edge {source} -> {target} appears twice")
        edges[source, target] = size
    published.acyclic(edges)
    batch = "mbsInBatch" if "mbsInBatch" in top else "maxBatchSize"
    return PiperInstance(
        name,
        nodes,
        tuple((source, target, size) for (source, target), size in edges.items()),
        reading.whole(reading.required(top, "maxDevices", _TOP), "maxDevices", _TOP, 1, MOST_DEVICES),
        reading.number(reading.required(top, "maxMemoryPerDevice", _TOP), "maxMemoryPerDevice", _TOP),
        reading.positive(reading.required(top, "bandwidth", _TOP), "bandwidth", _TOP, LEAST_RATE, MOST_RATE),
        reading.whole(top.get(batch, 1), batch, _TOP, 1, MOST_MICRO_BATCHES),
    )


def load(path: str | Path) -> PiperInstance:
    """Reads an instance, named after its file; raises FormatError."""
    with published.as_format():
        return parse(reading.read_json(path), Path(path).stem)


def _layer(entry: object, position: int) -> PiperLayer:
    values = reading.mapping(entry, f"nodes[{position}]")
    identity = published.identity(reading.required(values, "id", f"nodes[{position}]"), "id", f"nodes[{position}]")
    where = f"node {identity}"
    degrees = reading.mapping(reading.required(values, "TMPCs", where), f"{where}: TMPCs")
    modes: dict[str, Mode] = {}
    for entry in reading.items(degrees, "1", f"{where}: TMPCs"):
        mode = reading.mapping(entry, f"{where}: mode")
        name = str(reading.required(mode, "id", f"{where}: mode"))
        modes[name] = _mode(mode, f"{where}, mode {shown(name)}")
    if "vanilla" not in modes:
        raise FormatError(f"{where} has no mode 'vanilla' on one device")
    return PiperLayer(identity, _name(values, identity, where), modes["vanilla"], modes.get(_RECOMPUTE))


def _name(values: Mapping[str, object], identity: int, where: str) -> str:
    """The layer's name; its id where it has none."""
    found = values.get("name", identity)
    return str(found) if isinstance(found, int | float) else reading.text(found, "name", where) or str(identity)


_COSTS = {
    "timePerSample": MOST_SECONDS, "parameterSize": MOST_BYTES, "memoryUsageA": MOST_BYTES, "memoryUsageB": MOST_BYTES,
}  # fmt: skip


def _mode(values: Mapping[str, object], where: str) -> Mode:
    costs = [reading.number(reading.required(values, key, where), key, where, most) for key, most in _COSTS.items()]
    syncs = [_syncs(values.get(key, {}), key, where) for key in ("syncTimeFw", "syncTimeBw")]
    return Mode(costs[0], costs[1], costs[2], costs[3], any(syncs))


def _syncs(content: object, key: str, where: str) -> bool:
    """Is there any traffic?"""
    bytes_of_ends = reading.mapping(content, f"{where}: {key}").values()
    return sum(reading.number(value, key, where) for value in bytes_of_ends) > 0


def _edge(entry: object, position: int, nodes: set[int]) -> tuple[int, int, float]:
    where = f"edges[{position}]"
    values = reading.mapping(entry, where)
    source, target = (
        published.identity(reading.required(values, key, where), key, where) for key in ("sourceId", "destId")
    )
    where = f"edge {source} -> {target}"
    published.known(source, nodes, where)
    published.known(target, nodes, where)
    cost = reading.number(reading.required(values, "communicationCost", where), "communicationCost", where, MOST_BYTES)
    return source, target, cost
