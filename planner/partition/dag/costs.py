"""What a partition costs, counted from the nodes and edges of the file alone: no groups, no ticks, no solver."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import assert_never

from ...basics import InputError
from ...formats import PipeDreamProfile, PiperInstance, PlacementInstance
from .instance import Devices, Instance, LayerInstance, NodeBlock
from .problem import SLACK


def count(instance: Instance, blocks: Sequence[NodeBlock], devices: Devices | None = None) -> float:
    """The objective of a partition: the largest of its `loads`, with their unit, and raising what they raise."""
    return max(loads(instance, blocks, devices))


def loads(instance: Instance, blocks: Sequence[NodeBlock], devices: Devices | None = None) -> list[float]:
    """What every stage of a partition takes, from the file's nodes and edges alone, in the unit of its objective.

    Raises InputError when the partition breaks a rule of the format; `instance` as `configure` returns it.
    """
    place: dict[Hashable, int] = {i: s for s, block in enumerate(blocks) for i in block.nodes}
    if sorted(map(str, place)) != sorted(map(str, _nodes(instance))):
        raise InputError("a partition must have every node once")
    given = devices or Devices()
    if isinstance(instance, PlacementInstance):
        return _placement_loads(instance, blocks, place)
    if isinstance(instance, PiperInstance):
        return _piper_loads(instance, blocks, place)
    if isinstance(instance, PipeDreamProfile):
        return _pipedream_loads(instance, blocks, place, given)
    if isinstance(instance, LayerInstance):
        return _layers_loads(instance, blocks, place, given)
    assert_never(instance)


def _nodes(instance: Instance) -> Sequence[Hashable]:
    if isinstance(instance, LayerInstance):
        return [layer.name for layer in instance.model.layers]
    return [node.id for node in instance.nodes]


def _placement_loads(
    instance: PlacementInstance, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int]
) -> list[float]:
    found = []
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
            found.append(math.fsum(n.cpu_ms for n in nodes))
            continue
        crossing = {e.source for e in instance.edges if (place[e.source] == s) != (place[e.target] == s)}
        found.append(math.fsum([*(n.accelerator_ms for n in nodes), *(instance.cost_ms[i] for i in crossing)]))
        if math.fsum(n.size_bytes for n in nodes) > instance.limit_bytes * SLACK:
            raise InputError(f"stage {s} does not fit")
    if sum(b.cpu for b in blocks) > instance.cpus or sum(not b.cpu for b in blocks) > instance.accelerators:
        raise InputError("there are more stages than devices")
    return found


def _pipedream_loads(
    profile: PipeDreamProfile, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int], devices: Devices
) -> list[float]:
    if len(blocks) != devices.count or not all(block.nodes for block in blocks):
        raise InputError(f"there must be {devices.count} stages")
    bandwidth = devices.link_bandwidth
    last: dict[str, int] = {}
    for source, target in profile.edges:
        if place[source] > place[target]:
            raise InputError(f"edge {source} -- {target} leads back")
        last[source] = max(last.get(source, 0), place[target])
    times, before = [], 0.0
    for s in range(len(blocks)):
        inside = [n for n in profile.nodes if place[n.id] == s]
        work = math.fsum(t for n in inside for t in (n.forward_ms, n.backward_ms)) / 1000
        beyond = [n for n in profile.nodes if place[n.id] <= s < last.get(n.id, 0)]
        behind = 2 * math.fsum(n.activation_bytes for n in beyond) / bandwidth
        times.append(max(before, work, behind))
        before = behind
        held = (len(blocks) - s) * math.fsum(n.parameter_bytes + n.activation_bytes for n in inside)
        if devices.limit_bytes is not None and held > devices.limit_bytes * SLACK:
            raise InputError(f"stage {s} does not fit")
    return times


def _piper_loads(instance: PiperInstance, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int]) -> list[float]:
    if len(blocks) > instance.devices:
        raise InputError("there are more stages than devices")
    nodes = {n.id: n for n in instance.nodes}
    found = []
    for s, block in enumerate(blocks):
        modes = []
        for i in block.nodes:
            node = nodes[i]  # type: ignore[index]
            mode = node.recompute if i in block.recompute else node.vanilla
            if mode is None:
                raise InputError(f"node {i} has no such mode")
            modes.append(mode)
        crossing = [c for a, b, c in instance.edges if (place[a] == s) != (place[b] == s)]
        found.append(math.fsum([*(m.time_s for m in modes), *(2 * c / instance.bandwidth for c in crossing)]))
        flying = len(blocks) - s
        held = math.fsum(m.static_bytes + flying * m.in_flight_bytes for m in modes)
        if held > instance.limit_bytes * SLACK:
            raise InputError(f"stage {s} does not fit")
    if any(place[a] > place[b] for a, b, _ in instance.edges):
        raise InputError("an edge leads back")
    return found


def _layers_loads(
    instance: LayerInstance, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int], devices: Devices
) -> list[float]:
    overlap = instance.objective == "overlap"
    if overlap and (len(blocks) != devices.count or not all(block.nodes for block in blocks)):
        raise InputError(f"there must be {devices.count} stages")
    if devices.count is not None and len(blocks) > devices.count:
        raise InputError("there are more stages than devices")
    reach: dict[str, set[int]] = {layer.name: {place[layer.name]} for layer in instance.model.layers}
    for source, target in instance.model.edges:
        if place[source] > place[target]:
            raise InputError(f"edge {source} -> {target} leads back")
        reach[source].add(place[target])
    times, before = [], 0.0
    for s in range(len(blocks)):
        inside = [layer for layer in instance.model.layers if place[layer.name] == s]
        work = math.fsum(layer.forward_s + layer.backward_s for layer in inside)
        if overlap:
            moved = [x for x in instance.model.layers if place[x.name] <= s < max(reach[x.name])]
        else:
            moved = [x for x in instance.model.layers if s in reach[x.name] and len(reach[x.name]) > 1]
        transfer = 2 * sum(layer.output_bytes for layer in moved) / devices.link_bandwidth
        times.append(max(before, work, transfer) if overlap else work + transfer)
        before = transfer
        held = sum(layer.parameter_bytes + layer.trained_bytes + layer.buffer_bytes for layer in inside)
        held += (len(blocks) - s) * sum(layer.stash_bytes for layer in inside)
        if devices.limit_bytes is not None and held > devices.limit_bytes * SLACK:
            raise InputError(f"stage {s} does not fit")
    return times
