"""What ends a step: seconds of gradient reductions between replicas, and of optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cluster import Cluster

if TYPE_CHECKING:
    from .operations import StageCosts, Structured


def reduce_seconds(cluster: Cluster, devices: tuple[int, ...], count: int) -> tuple[float, float]:
    """(seconds on the links, latency) of a ring all-reduce of `count` bytes between these devices.

    2(r-1) rounds move count/r bytes over every link of the ring (Patarasuk and Yuan, 2009), at the links'
    `reduce_bandwidth`.
    """
    if count == 0 or len(devices) < 2:
        return 0.0, 0.0
    r = len(devices)
    links = [cluster.link(a, b) for a, b in ring(devices)]
    rounds = 2 * (r - 1)
    return rounds * max(x.reduce_occupation_s(count) / r for x in links), rounds * max(x.latency_s for x in links)


def ring(devices: tuple[int, ...]) -> list[tuple[int, int]]:
    """Ordered pairs of devices that talk in a ring all-reduce."""
    return [(a, devices[(k + 1) % len(devices)]) for k, a in enumerate(devices)]


def step_seconds(plan: Structured, costs: StageCosts, stage: int, device: int) -> float:
    """Seconds of the optimizer step of one stage: bytes read and written over the memory bandwidth."""
    bandwidth = plan.problem.cluster.devices[device].kind.memory_bandwidth
    if bandwidth is None:
        return 0.0
    return plan.problem.workload.step_traffic_bytes(int(costs.parameter_bytes[stage])) / bandwidth
