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
        return _piper_loads(instance, blocks, place, given)
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
    straight = devices.replicas is None
    if straight and (len(blocks) != devices.count or any(block.replicas > 1 for block in blocks)):
        raise InputError(f"there must be {devices.count} stages, each once")
    if not all(block.nodes for block in blocks):
        raise InputError("a stage must have nodes")
    _widths(blocks, devices.count or 0, devices.replicas)
    bandwidth = devices.link_bandwidth
    last: dict[str, int] = {}
    for source, target in profile.edges:
        if place[source] > place[target]:
            raise InputError(f"edge {source} -- {target} leads back")
        last[source] = max(last.get(source, 0), place[target])
    times, before = [], 0.0
    for s, block in enumerate(blocks):
        inside, r = [n for n in profile.nodes if place[n.id] == s], block.replicas
        work = math.fsum(t for n in inside for t in (n.forward_ms, n.backward_ms)) / 1000
        summing = 4 * (r - 1) * math.fsum(n.parameter_bytes for n in inside) / (r * bandwidth)
        beyond = [n for n in profile.nodes if place[n.id] <= s < last.get(n.id, 0)]
        behind = 2 * math.fsum(n.activation_bytes for n in beyond) / bandwidth
        times.append(max(before, work + summing, behind) / r)
        before = behind
        held = _in_flight(blocks, s) * math.fsum(n.parameter_bytes + n.activation_bytes for n in inside)
        if devices.limit_bytes is not None and held > devices.limit_bytes * SLACK:
            raise InputError(f"stage {s} does not fit")
    return times


def _in_flight(blocks: Sequence[NodeBlock], s: int) -> int:
    """Micro-batches that a device of stage s holds: replicas from it on, for each of its own, rounded up."""
    return math.ceil(sum(block.replicas for block in blocks[s:]) / blocks[s].replicas)


def _widths(blocks: Sequence[NodeBlock], devices: int, replicas: int | None, ways: int | None = None) -> None:
    """Raises InputError for more devices, replicas of a stage or ways than there may be."""
    used = sum(block.replicas * block.ways for block in blocks)
    if used > devices:
        raise InputError(f"the stages need {used} devices, there are {devices}")
    for s, block in enumerate(blocks):
        for what, had, most in (("replicas", block.replicas, replicas), ("ways", block.ways, ways)):
            if had < 1 or (most is not None and had > most):
                raise InputError(f"stage {s} has {had} {what}")


def _piper_loads(
    instance: PiperInstance, blocks: Sequence[NodeBlock], place: Mapping[Hashable, int], devices: Devices
) -> list[float]:
    _widths(blocks, instance.devices, devices.replicas, devices.ways)
    if sum(block.replicas for block in blocks) > instance.micro_batches:
        raise InputError(f"there are more replicas than {instance.micro_batches} micro-batches")
    nodes = {n.id: n for n in instance.nodes}
    found = []
    for s, block in enumerate(blocks):
        d = block.replicas
        if instance.micro_batches % d:
            raise InputError(f"{d} replicas do not divide {instance.micro_batches} micro-batches")
        modes = {}
        for i, name in zip(block.nodes, block.modes, strict=True):
            mode = nodes[i].modes.get(block.ways, {}).get(name)  # type: ignore[index]
            if mode is None:
                raise InputError(f"node {i} has no mode {name!r} in {block.ways} ways")
            modes[i] = mode
        moved = [c for a, b, c in instance.edges if (place[a] == s) != (place[b] == s)]
        for a, b, _ in instance.edges:
            if place[b] == s and place[a] != s:
                moved.append(modes[b].sync_in.get(a, 0.0))
            if place[a] == s and place[b] != s:
                moved.append(modes[a].sync_out.get(b, 0.0))
        weights = math.fsum(m.parameter_bytes for m in modes.values())
        summing = 4 * (d - 1) * weights / (d * instance.micro_batches)
        work = math.fsum(m.time_s for m in modes.values())
        found.append(work / d + (2 * math.fsum(moved) / d + summing) / instance.bandwidth)
        flying = _in_flight(blocks, s)
        if (
            math.fsum(m.static_bytes + flying * m.in_flight_bytes for m in modes.values())
            > instance.limit_bytes * SLACK
        ):
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
