"""Cluster: nodes, devices, links and host links, and their file format (cluster.toml)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..basics import (
    LEAST_CORES,
    LEAST_RATE,
    MOST_DEVICES,
    MOST_MEMORY_BYTES,
    MOST_RATE,
    MOST_SECONDS,
    MOST_SPEED,
    ClusterError,
    listed,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
    reading,
    refusing,
    shown,
)
from .link import FREE, Link
from .overhead import NO_OVERHEAD, OVERHEADS, Overhead
from .presets import PRESETS, DeviceType


@dataclass(frozen=True)
class NodeGroup:
    """`count` equal nodes of `devices` devices each.

    `cores`: so many of a node's devices compute at full speed at a time; where more do, they share that speed evenly.
    None: all of them.
    """

    count: int
    devices: int
    device: DeviceType
    link: Link = FREE
    host_memory_bytes: int | None = None
    host_link: Link = FREE
    host_link_shared_by: int = 1
    cores: float | None = None

    @property
    def at_once(self) -> float:
        """How many devices of a node compute at full speed at a time."""
        return self.devices if self.cores is None else min(self.cores, self.devices)

    @property
    def contended(self) -> bool:
        """Whether its devices, their messages and copies may ask for more cores than there are."""
        if self.cores is None:
            return False
        ways = 2 * self.devices  # out and in
        return self.cores < self.devices + ways * max(self.link.cores * (self.devices > 1), self.host_link.cores)


@dataclass(frozen=True)
class Device:
    """One device of the cluster: its kind and the node it sits in."""

    index: int
    node: int
    kind: DeviceType


@dataclass(frozen=True)
class Cluster:
    """Devices 0..n-1, node after node. Immutable, validated, picklable. Raises ClusterError.

    With a `team` of t, a device is t neighbouring ranks of one node that compute every stage together: device d is
    ranks d*t .. d*t+t-1. All figures are then those of one of its ranks (see `teams`). `overhead`: of its ranks' own
    threads; None: nobody said, and nothing is counted. `told_apart`: forecasts of two plans that differ by a smaller
    share say nothing about which is faster; 0: all do.
    """

    nodes: tuple[NodeGroup, ...]
    network: Link = FREE
    team: int = 1
    overhead: Overhead | None = None
    told_apart: float = 0.0

    def __post_init__(self) -> None:
        with refusing(ClusterError):
            reading.whole(self.team, "team", "the cluster", 1, MOST_DEVICES)
            reading.number(self.told_apart, "told_apart", "the cluster", 1.0)
        count = sum(group.count * group.devices for group in self.nodes) * self.team
        if count < 1:
            raise ClusterError("the cluster has no devices")
        if count > MOST_DEVICES:
            raise ClusterError(f"the cluster has {count} devices, at most {MOST_DEVICES} are planned for")

    @classmethod
    def uniform(
        cls,
        devices: int,
        memory_bytes: int = PRESETS["cpu"].memory_bytes,
        link: Link = FREE,
        speed: float = 1.0,
    ) -> Cluster:
        """One node of equal devices."""
        return cls((NodeGroup(1, devices, DeviceType("custom", memory_bytes, speed), link),))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """All devices in order."""
        found: list[Device] = []
        node = 0
        for group in self.nodes:
            for _ in range(group.count):
                found += [Device(len(found) + k, node, group.device) for k in range(group.devices)]
                node += 1
        return tuple(found)

    @cached_property
    def node_groups(self) -> tuple[NodeGroup, ...]:
        """The group of every node, by node index."""
        return tuple(group for group in self.nodes for _ in range(group.count))

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def crowded(self) -> bool:
        """Whether some node has fewer cores than devices."""
        return any(group.at_once < group.devices for group in self.nodes)

    @cached_property
    def whole_speed(self) -> float:
        """The most that all devices together work off in a second: seconds at speed 1."""
        if not self.crowded:
            return float(sum(device.kind.speed for device in self.devices))
        return float(sum(group.count * group.at_once * group.device.speed for group in self.nodes))

    @property
    def around(self) -> Overhead:
        """What ops cost beside their kernels; nothing where nobody said."""
        return self.overhead or NO_OVERHEAD

    def link(self, source: int, target: int) -> Link:
        """The link a message from device `source` to device `target` takes."""
        a, b = self.devices[source], self.devices[target]
        return self.node_groups[a.node].link if a.node == b.node else self.network

    @cached_property
    def host_links(self) -> tuple[int, ...]:
        """Number of every device's host link; devices of a node with equal numbers share one."""
        found: list[int] = []
        for group in self.node_groups:
            first = found[-1] + 1 if found else 0
            found += [first + k // group.host_link_shared_by for k in range(group.devices)]
        return tuple(found)

    @cached_property
    def home_nodes(self) -> tuple[int, ...]:
        """Number of every device's node."""
        return tuple(device.node for device in self.devices)

    def same_node(self, source: int, target: int) -> bool:
        """Whether two devices share a node."""
        return self.devices[source].node == self.devices[target].node

    def part(self, devices: Sequence[int]) -> Cluster:
        """The cluster of these devices alone, ascending; they take their shares of host memory, host links and cores.

        A host link that they share with devices left out is taken to be divided evenly.
        """
        groups: list[NodeGroup] = []
        for node in sorted({self.devices[d].node for d in devices}):
            mine = [d for d in devices if self.devices[d].node == node]
            whole = self.node_groups[node]
            host = whole.host_memory_bytes
            shared = max(1, sum(self.host_links[d] == self.host_links[mine[0]] for d in mine))
            groups.append(
                replace(
                    whole,
                    count=1,
                    devices=len(mine),
                    host_memory_bytes=None if host is None else host * len(mine) // whole.devices,
                    host_link=replace(
                        whole.host_link, bandwidth=whole.host_link.bandwidth * shared / whole.host_link_shared_by
                    ),
                    host_link_shared_by=shared,
                    cores=None if whole.cores is None else whole.cores * len(mine) / whole.devices,
                )
            )
        return replace(self, nodes=tuple(groups))

    def teams(self, ways: int) -> Cluster:
        """The cluster whose devices are teams of `ways` neighbouring devices of a node; rank i sends to rank i.

        Memory stays that of a rank, and so do links: every rank has its own to its like in another team, and its own
        NIC, as every device has. A team's ranks share what they share of host links, and copy at once; host memory is a
        rank's part. Raises ClusterError naming the node whose devices do not form such teams.
        """
        if self.team != 1:
            raise ClusterError(f"the cluster's devices are teams of {self.team} already")
        for node, group in enumerate(self.node_groups):
            if ways < 1 or group.devices % ways:
                raise ClusterError(f"node {node} has {group.devices} devices, which do not form teams of {ways}")
        return self if ways == 1 else replace(self, nodes=tuple(_of_teams(x, ways) for x in self.nodes), team=ways)

    # ---------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """The content of cluster.toml with plain numbers; infinite bandwidth is left out."""
        kinds = {group.device for group in self.nodes if PRESETS.get(group.device.name) != group.device}
        content: dict[str, Any] = {} if self.team == 1 else {"team": self.team}
        content["nodes"] = [_group_to_dict(group) for group in self.nodes]
        if self.network != Link():
            content["network"] = _link_to_dict(self.network)
        if self.overhead is not None:
            content["overhead"] = self.overhead.to_dict()
        if self.told_apart:
            content["told_apart"] = self.told_apart
        if kinds:
            content["devices"] = {kind.name: _kind_to_dict(kind) for kind in sorted(kinds, key=lambda k: k.name)}
        return content

    @classmethod
    def from_dict(cls, content: object) -> Cluster:
        """The cluster of a parsed cluster.toml; raises ClusterError naming the table and key."""
        with refusing(ClusterError):
            return _cluster_from(content)

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """Reads cluster.toml; raises ClusterError (one line) when it is not one."""
        with refusing(ClusterError):
            return cls.from_dict(reading.read_toml(path))


def _of_teams(group: NodeGroup, ways: int) -> NodeGroup:
    """A node group with teams as devices; where teams lie across host links, all that touch are taken to share one."""
    shared = min(group.host_link_shared_by, group.devices)
    host, at_once = group.host_memory_bytes, min(shared, ways)
    return replace(
        group,
        devices=group.devices // ways,
        host_memory_bytes=None if host is None else host // ways,
        host_link=replace(group.host_link, bandwidth=group.host_link.bandwidth / at_once),
        host_link_shared_by=math.lcm(shared, ways) // ways,
        cores=None if group.cores is None else group.cores / ways,
    )


def _link_to_dict(link: Link) -> dict[str, float]:
    content = {} if math.isinf(link.bandwidth) else {"bandwidth": link.bandwidth}
    content["latency"] = link.latency_s
    if link.reduce_bandwidth is not None:
        content["reduce_bandwidth"] = link.reduce_bandwidth
    return content | {"cores": link.cores} if link.cores else content


def _kind_to_dict(kind: DeviceType) -> dict[str, Any]:
    content: dict[str, Any] = {"memory": kind.memory_bytes, "speed": kind.speed}
    for key in ("memory_bandwidth", "flops"):
        if getattr(kind, key) is not None:
            content[key] = getattr(kind, key)
    return content


def _group_to_dict(group: NodeGroup) -> dict[str, Any]:
    content: dict[str, Any] = {"count": group.count, "devices": group.devices, "device": group.device.name}
    if group.cores is not None:
        content["cores"] = group.cores
    if group.link != Link():
        content["link"] = _link_to_dict(group.link)
    if group.host_memory_bytes is not None:
        content["host_memory"] = group.host_memory_bytes
    if group.host_link != Link() or group.host_link_shared_by != 1:
        content["host_link"] = _link_to_dict(group.host_link) | {"shared_by": group.host_link_shared_by}
    return content


def _table(content: object, where: str, known: set[str]) -> Mapping[str, Any]:
    return reading.mapping(content, where, known, "a table")


def _link_from(content: object, where: str, *extra: str) -> Link:
    """A link's table, which may have the keys `extra` besides bandwidth and latency."""
    table = _table(content, where, {"bandwidth", "latency", *extra})

    def bandwidth(key: str) -> float | None:
        return _rate(table[key], key, where) if key in table else None

    latency_s = parse_seconds(table.get("latency", 0), f"{where}.latency")
    reading.number(latency_s, "latency", where, MOST_SECONDS)
    cores = reading.number(table.get("cores", 0.0), "cores", where, MOST_DEVICES)
    return Link(bandwidth("bandwidth") or math.inf, latency_s, bandwidth("reduce_bandwidth"), cores)


def _overhead_from(content: object) -> Overhead:
    table = _table(content, "overhead", set(OVERHEADS))

    def seconds(key: str) -> float:
        return reading.number(parse_seconds(table.get(key, 0), f"overhead.{key}"), key, "overhead", MOST_SECONDS)

    return Overhead(*map(seconds, OVERHEADS))


def _rate(value: object, key: str, where: str) -> float:
    rate = parse_bandwidth(value, f"{where}.{key}")
    return reading.positive(rate, key, where, LEAST_RATE, MOST_RATE)


def _memory(value: object, key: str, where: str) -> int:
    return reading.whole(parse_bytes(value, f"{where}.{key}"), key, where, most=MOST_MEMORY_BYTES)


def _kind_from(name: str, content: object) -> DeviceType:
    where = f"devices.{reading.name_in(name)}"
    table = _table(content, where, {"memory", "speed", "memory_bandwidth", "flops"})
    kind = PRESETS.get(name, DeviceType(reading.text(name, "the name", "a device"), 0))
    if "memory" in table:
        kind = replace(kind, memory_bytes=_memory(table["memory"], "memory", where))
    if kind.memory_bytes <= 0:
        raise ClusterError(f"{where}: memory must be more than 0, got {shown(table.get('memory', 'nothing'))}")
    if "speed" in table:
        kind = replace(kind, speed=reading.positive(table["speed"], "speed", where, 1 / MOST_SPEED, MOST_SPEED))
    if "memory_bandwidth" in table:
        kind = replace(kind, memory_bandwidth=_rate(table["memory_bandwidth"], "memory_bandwidth", where))
    if "flops" in table:
        kind = replace(kind, flops=reading.positive(table["flops"], "flops", where, LEAST_RATE, MOST_RATE))
    return kind


def _count(table: Mapping[str, Any], key: str, where: str) -> int:
    return reading.whole(table.get(key, 1), key, where, 1, MOST_DEVICES)


_GROUP_KEYS = {"count", "devices", "device", "link", "host_memory", "host_link", "cores"}


def _group_from(content: object, where: str, kinds: Mapping[str, DeviceType]) -> NodeGroup:
    table = _table(content, where, _GROUP_KEYS)
    name = table.get("device")
    if not isinstance(name, str) or name not in kinds:
        raise ClusterError(f"{where}: unknown device {shown(name)}; known: {listed(sorted(kinds))}")
    host = table.get("host_link", {})
    host_memory = table.get("host_memory")
    return NodeGroup(
        _count(table, "count", where),
        _count(table, "devices", where),
        kinds[name],
        _link_from(table.get("link", {}), f"{where}.link", "reduce_bandwidth", "cores"),
        None if host_memory is None else _memory(host_memory, "host_memory", where),
        _link_from(host, f"{where}.host_link", "shared_by", "cores"),
        _count(host, "shared_by", f"{where}.host_link"),
        reading.positive(table["cores"], "cores", where, LEAST_CORES, MOST_DEVICES) if "cores" in table else None,
    )


def _cluster_from(content: object) -> Cluster:
    table = _table(content, "cluster", {"team", "nodes", "network", "devices", "overhead", "told_apart"})
    custom = reading.mapping(table.get("devices", {}), "devices", what="a table of tables")
    reading.at_most(len(custom), MOST_DEVICES, "devices")
    kinds = PRESETS | {name: _kind_from(name, entry) for name, entry in custom.items()}
    groups = table.get("nodes")
    if not isinstance(groups, list) or not groups:
        raise ClusterError("the cluster has no [[nodes]]")
    reading.at_most(len(groups), MOST_DEVICES, "nodes")
    nodes = tuple(_group_from(entry, f"nodes[{k}]", kinds) for k, entry in enumerate(groups))
    network = _link_from(table.get("network", {}), "network", "reduce_bandwidth")
    overhead = _overhead_from(table["overhead"]) if "overhead" in table else None
    told_apart = reading.number(table.get("told_apart", 0.0), "told_apart", "the cluster", 1.0)
    return Cluster(nodes, network, _count(table, "team", "the cluster"), overhead, told_apart)
