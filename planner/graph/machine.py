"""A cluster as columns, for what messages and copies take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..basics import PerObject
from ..problem import Cluster
from .columns import Floats, Ints


@dataclass(frozen=True)
class Machine:
    """A cluster as columns, one entry a device; `node_*` are those of the link inside the device's node."""

    speed: Floats
    node: Ints
    node_bandwidth: Floats
    node_latency_s: Floats
    host_link: Ints
    host_link_used_by: Ints  # devices on the same host link
    host_bandwidth: Floats
    host_latency_s: Floats
    steps_take_time: bool
    cores: Floats  # of the device's node; infinite where all that it does goes on at full speed
    link_cores: Floats  # of them, that a message in the node keeps busy
    host_cores: Floats  # and a copy to the host or back

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        return _known_machines.get(cluster, None, lambda: cls._of(cluster))

    def faster(self, factors: Mapping[int, float]) -> Machine:
        """The machine with some devices so many times as fast; nothing else of them changes."""
        speed = self.speed.copy()
        for device, factor in factors.items():
            speed[device] *= factor
        return replace(self, speed=speed)

    def occupied(self, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        """What a message from each source to each target occupies: their link in a node, else the NICs of both.

        Numbers: the links of all ordered pairs, then every device's outgoing NIC, then the incoming ones; -1: no more.
        """
        devices = len(self.node)
        links, inside = devices * devices, self.node[source] == self.node[target]
        first = np.where(inside, source * devices + target, links + source)
        return first, np.where(inside, -1, links + devices + target)

    def sharing(self) -> tuple[Ints, Floats] | None:
        """Of every device the number of the node whose cores it needs, -1: none, and cores of every such node.

        None where there are cores for all that is done.
        """
        crowded = np.isfinite(self.cores)
        if not crowded.any():
            return None
        nodes, number = np.unique(self.node[crowded], return_inverse=True)
        of_device = np.full(len(self.node), -1, dtype=np.int64)
        of_device[crowded] = number
        cores = np.zeros(len(nodes))
        cores[number] = self.cores[crowded]
        return of_device, cores

    @classmethod
    def _of(cls, cluster: Cluster) -> Machine:
        groups = [cluster.node_groups[device.node] for device in cluster.devices]
        shared = np.array(cluster.host_links, dtype=np.int64)
        return cls(
            np.array([device.kind.speed for device in cluster.devices]),
            np.array([device.node for device in cluster.devices], dtype=np.int64),
            np.array([group.link.bandwidth for group in groups]),
            np.array([group.link.latency_s for group in groups]),
            shared,
            np.bincount(shared)[shared],
            np.array([group.host_link.bandwidth for group in groups]),
            np.array([group.host_link.latency_s for group in groups]),
            cluster.around.step_s > 0 or any(device.kind.memory_bandwidth is not None for device in cluster.devices),
            np.array([group.cores if group.cores is not None and group.contended else np.inf for group in groups]),
            np.array([group.link.cores for group in groups]),
            np.array([group.host_link.cores for group in groups]),
        )


_known_machines: PerObject[Machine] = PerObject(1)
