"""Piper instances (NeurIPS'21): JSON with the ways to run every layer, tensor-parallel degree by degree.

At every degree (its ways) a layer runs in one of some modes, as `vanilla` and `activation recomp`. Times are those of
forward and backward together for one micro-batch, in seconds; sizes are bytes of one device. A mode holds A bytes for
every micro-batch in flight and B bytes all the time. A model is made of what one device does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
VANILLA, RECOMPUTE = "vanilla", "activation recomp"
"""The modes of the published files."""
_TOP = "the instance"
_FORWARD_SHARE = 1 / 3
"""Forward's share of a layer's time where the file does not tell: the backward does twice the work."""


@dataclass(frozen=True)
class Mode:
    """How a layer runs: seconds of a micro-batch; of each device its bytes in flight (A) and all the time (B).

    `sync_in` and `sync_out`: bytes that its tensor-parallel devices exchange where the edge from (to) that layer
    leads to another stage; the forward's, and as many again in the backward.
    """

    time_s: float
    parameter_bytes: float
    in_flight_bytes: float
    static_bytes: float
    sync_in: Mapping[int, float] = field(default_factory=dict)
    sync_out: Mapping[int, float] = field(default_factory=dict)

    @property
    def synchronised(self) -> bool:
        """Does it need traffic between tensor-parallel devices?"""
        return any(self.sync_in.values()) or any(self.sync_out.values())


@dataclass(frozen=True)
class PiperLayer:
    """A layer and its modes by name, for every number of ways that it can be run in."""

    id: int
    name: str
    modes: Mapping[int, Mapping[str, Mode]]

    @property
    def vanilla(self) -> Mode:
        """On one device; raises FormatError when the file has no such mode."""
        return self.alone(VANILLA)

    def alone(self, name: str) -> Mode:
        """A mode on one device; raises FormatError when the file has none of that name."""
        found = self.modes.get(1, {}).get(name)
        if found is None:
            raise FormatError(f"node {self.id} has no mode {name!r} on one device")
        return found

    @property
    def forward_s(self) -> float:
        """Seconds of the forward: what recompute adds; a third of the whole where that is no answer."""
        recompute = self.modes[1].get(RECOMPUTE)
        more = recompute.time_s - self.vanilla.time_s if recompute is not None else -1.0
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
        how = node.vanilla if mode == "vanilla" else node.alone(RECOMPUTE)
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
    _known_edges(nodes, edges)
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


def _known_edges(nodes: Iterable[PiperLayer], edges: Container[tuple[int, int]]) -> None:
    """Raises FormatError where layers exchange bytes over an edge that there is not."""
    for node in nodes:
        for ways, modes in node.modes.items():
            for name, mode in modes.items():
                ends = [(other, node.id) for other, size in mode.sync_in.items() if size]
                ends += [(node.id, other) for other, size in mode.sync_out.items() if size]
                for source, target in ends:
                    if (source, target) not in edges:
                        where = f"node {node.id}, mode {shown(name)} in {ways} ways"
                        raise FormatError(f"{where}: there is no edge {source} -> {target} to synchronise")


def _layer(entry: object, position: int) -> PiperLayer:
    values = reading.mapping(entry, f"nodes[{position}]")
    identity = published.identity(reading.required(values, "id", f"nodes[{position}]"), "id", f"nodes[{position}]")
    where = f"node {identity}"
    degrees = reading.mapping(reading.required(values, "TMPCs", where), f"{where}: TMPCs")
    modes: dict[int, dict[str, Mode]] = {}
    for key in degrees:
        ways = _whole_key(key, f"{where}: TMPCs", 1, MOST_DEVICES)
        modes[ways] = _modes(reading.items(degrees, key, f"{where}: TMPCs"), where, ways)
    if not any(modes.values()):
        raise FormatError(f"{where} has no mode")
    return PiperLayer(identity, _name(values, identity, where), modes)


def _modes(entries: Sequence[object], where: str, ways: int) -> dict[str, Mode]:
    """The modes of a layer in so many ways, by name."""
    found: dict[str, Mode] = {}
    for entry in entries:
        values = reading.mapping(entry, f"{where}: mode")
        name = str(reading.required(values, "id", f"{where}: mode"))
        place = f"{where}, mode {shown(name)}" + ("" if ways == 1 else f" in {ways} ways")
        if name in found:
            raise FormatError(f"{place} appears twice")
        found[name] = _mode(values, place)
    return found


def _whole_key(key: str, where: str, least: int, most: int) -> int:
    """A key that is a whole number in its range; raises FormatError."""
    if not re.fullmatch(f"-?[0-9]{{1,{len(str(most))}}}", key) or not least <= int(key) <= most:
        raise FormatError(f"{where}: {shown(key)} is no whole number of {least} to {most}")
    return int(key)


def _name(values: Mapping[str, object], identity: int, where: str) -> str:
    """The layer's name; its id where it has none."""
    found = values.get("name", identity)
    return str(found) if isinstance(found, int | float) else reading.text(found, "name", where) or str(identity)


_COSTS = {
    "timePerSample": MOST_SECONDS, "parameterSize": MOST_BYTES, "memoryUsageA": MOST_BYTES, "memoryUsageB": MOST_BYTES,
}  # fmt: skip


def _mode(values: Mapping[str, object], where: str) -> Mode:
    costs = [reading.number(reading.required(values, key, where), key, where, most) for key, most in _COSTS.items()]
    into, out = (_syncs(values.get(key, {}), key, where) for key in ("syncTimeFw", "syncTimeBw"))
    return Mode(costs[0], costs[1], costs[2], costs[3], into, out)


def _syncs(content: object, key: str, where: str) -> dict[int, float]:
    """Bytes for every other end of an edge: the files call them times."""
    ends = reading.mapping(content, f"{where}: {key}")
    return {
        _whole_key(end, f"{where}: {key}", -published.MOST_ID, published.MOST_ID): reading.number(
            value, key, where, MOST_BYTES
        )
        for end, value in ends.items()
    }


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
