"""Seconds of what updates weights: gradient sums over replicas and tied stages, optimizer steps, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..problem import WEIGHT_POLICIES, Across, Cluster, StageCosts, part_bytes
from .replicas import holders
from .structured import Structured

if TYPE_CHECKING:
    from ..plan import Problem


def reduce_seconds(cluster: Cluster, devices: tuple[int, ...], count: int, turns: int = 2) -> tuple[float, float]:
    """(seconds on the links, latency) of a ring all-reduce of `count` bytes between these devices.

    2(r-1) rounds move count/r bytes over every link of the ring (Patarasuk and Yuan, 2009), at the links'
    `reduce_bandwidth`. `turns`: 1 for half of it, a reduce-scatter or an all-gather. The latency has with it what a
    collective costs beside its links.
    """
    if count == 0 or len(devices) < 2:
        return 0.0, 0.0
    r = len(devices)
    links = [cluster.link(a, b) for a, b in ring(devices)]
    rounds = turns * (r - 1)
    latency_s = cluster.around.collective_s + rounds * max(x.latency_s for x in links)
    return rounds * max(x.reduce_occupation_s(count) / r for x in links), latency_s


def _ring_seconds(problem: Problem, devices: tuple[int, ...], count: int, turns: int = 2) -> tuple[float, float]:
    """`reduce_seconds` between these devices and, of one of several equal groups, all others' replicas: then at the
    least, by the slowest link between these and the fastest between groups."""
    groups, across = problem.workload.groups, problem.workload.across
    if groups == 1 or across is None or not count:
        return reduce_seconds(problem.cluster, devices, count, turns)
    replicas, here = len(devices) * groups, [problem.cluster.link(a, b) for a, b in ring(devices) if a != b]
    rounds = turns * (replicas - 1)
    slowest_s = max(across.seconds_a_byte, *(link.reduce_occupation_s(1) for link in here), 0.0)
    latency_s = max(across.latency_s, *(link.latency_s for link in here), 0.0)
    return rounds * count * slowest_s / replicas, problem.cluster.around.collective_s + rounds * latency_s


def across(problem: Problem, groups: Sequence[tuple[int, ...]]) -> Across:
    """What a round of a ring between the replicas of a stage in these equal groups takes at the least."""
    cluster, replicas = problem.cluster, [tuple(sorted(members)) for members in zip(*groups, strict=True)]
    rings = [[cluster.link(a, b) for a, b in ring(members)] for members in replicas]
    nodes = [{cluster.devices[d].node for d in members} for members in replicas]
    return Across(
        min(max(link.reduce_occupation_s(1) for link in links) for links in rings),
        min(max(link.latency_s for link in links) for links in rings),
        frozenset(k for k, of in enumerate(nodes) if len(of) > 1),
    )


def sum_seconds(problem: Problem, devices: tuple[int, ...], trained: int) -> tuple[float, float]:
    """(seconds on the links, latency) of a REDUCE: an all-reduce of a stage's gradients, sharded a reduce-scatter."""
    workload = problem.workload
    if not workload.sharded:
        return _ring_seconds(problem, devices, workload.gradient_bytes(trained))
    parts = workload.parts(len(devices))
    return _ring_seconds(problem, devices, workload.gradient_bytes(parts * part_bytes(trained, parts)), turns=1)


def gather_seconds(problem: Problem, devices: tuple[int, ...], trained: int) -> tuple[float, float]:
    """(seconds on the links, latency) of a GATHER: an all-gather of parameters; nothing where they are not sharded."""
    if not problem.workload.sharded:
        return 0.0, 0.0
    parts = problem.workload.parts(len(devices))
    return _ring_seconds(problem, devices, parts * part_bytes(trained, parts), turns=1)


def around_step_s(problem: Problem, devices: tuple[int, ...], trained: int) -> float:
    """Seconds of adding up a stage's gradients and gathering its parameters on the devices that train it."""
    return sum((*sum_seconds(problem, devices, trained), *gather_seconds(problem, devices, trained)))


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
    latency_s = cluster.around.collective_s + rounds * max(x.latency_s for x in links)
    return 2 * max(x.occupation_s(count) for x in links) + latency_s


def step_seconds(
    plan: Structured, costs: StageCosts, stage: int, device: int, owners: Mapping[int, tuple[int, ...]] | None = None
) -> float:
    """Seconds of the optimizer step of one stage: of its own parameters all, or this device's part of them where they
    are sharded, and tied ones that no lower stage updates. `owners`: `holders` of the plan, where they are known.
    """
    around_s = beside_step_s(plan.problem, costs, stage)
    if plan.problem.cluster.devices[device].kind.memory_bandwidth is None:
        return around_s
    count, workload = int(costs.own_trained_bytes[stage]), plan.problem.workload
    if workload.sharded or costs.tied_bytes[stage]:
        owners = owners or holders(plan)
        count = part_bytes(count, workload.parts(len(owners[stage])))
        count += sum(tie.trained_bytes for tie in costs.ties if tie.copies(owners).get(device) == stage)
    return around_s + update_seconds(plan.problem, device, count)


def beside_step_s(problem: Problem, costs: StageCosts, stage: int) -> float:
    """Of the seconds of a stage's optimizer step, what it costs beside its bytes."""
    return problem.cluster.around.step_s if costs.trained_bytes[stage] else 0.0


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
