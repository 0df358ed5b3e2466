"""Seconds of what updates weights: gradient sums over replicas and tied stages, optimizer steps, predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..problem import WEIGHT_POLICIES, Cluster, StageCosts
from .replicas import holders
from .structured import Structured

if TYPE_CHECKING:
    from ..plan import Problem


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


def tie_seconds(cluster: Cluster, members: int, count: int) -> float:
    """Seconds that reducing `count` bytes between so many of the cluster's devices takes at the most."""
    devices = range(len(cluster))
    links = [cluster.link(a, b) for a in devices for b in devices if a != b]
    rounds = 2 * (min(members, len(devices)) - 1)
    if not rounds or not count:
        return 0.0
    return 2 * max(x.occupation_s(count) for x in links) + rounds * max(x.latency_s for x in links)


def step_seconds(plan: Structured, costs: StageCosts, stage: int, device: int) -> float:
    """Seconds of the optimizer step of one stage: its own parameters, and tied ones that no lower stage updates."""
    if plan.problem.cluster.devices[device].kind.memory_bandwidth is None:
        return 0.0
    count = int(costs.own_trained_bytes[stage])
    if costs.tied_bytes[stage]:
        owners = holders(plan)
        count += sum(tie.trained_bytes for tie in costs.ties if tie.copies(owners).get(device) == stage)
    return update_seconds(plan.problem, device, count)


def predict_seconds(plan: Structured, costs: StageCosts, stage: int, device: int) -> float:
    """Seconds of predicting a stage's trained parameters: bytes read and written over the memory bandwidth."""
    bandwidth = plan.problem.cluster.devices[device].kind.memory_bandwidth
    if bandwidth is None:
        return 0.0
    first = WEIGHT_POLICIES[plan.weights].momentum_first
    return plan.problem.workload.predict_traffic_bytes(int(costs.trained_bytes[stage]), first) / bandwidth


def update_seconds(problem: Problem, device: int, count: int) -> float:
    """Seconds of an optimizer step of `count` bytes of parameters: bytes read and written over the memory bandwidth."""
    bandwidth = problem.cluster.devices[device].kind.memory_bandwidth
    return 0.0 if bandwidth is None else problem.workload.step_traffic_bytes(count) / bandwidth
