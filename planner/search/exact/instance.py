"""One candidate in whole numbers: what the CP-SAT model reads, without any solver type.

Durations are ticks. Where all durations share a tick it is used and the ticks are exact. Otherwise the tick is
small against the step and every duration is rounded down: rounding the start times of a real schedule down gives
a schedule of the rounded durations (floor(a + b) >= floor(a) + floor(b)), so its optimum is a valid bound. For
memory, demands and capacities divided by the same unit and rounded down allow everything the bytes allow. Plans
are therefore always checked again by the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from ...basics import PlanError
from ...bounds import finish_seconds
from ...graph import KEEP, OFFLOAD, RECOMPUTE, SHIP, Candidate, static_bytes
from ...plan import Kind
from ...problem import Cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


_RATIO = 64
_MOST_TICKS = 200_000
_FINE = 2_000_000
_MOST_UNITS = 1 << 20
_CLOSE = 1e-9


@dataclass(frozen=True)
class Tick:
    """The unit of time of a model: `seconds` long; `exact`: every duration is a whole number of them."""

    seconds: float
    exact: bool

    def down(self, seconds: float) -> int:
        """Whole ticks in a duration, rounded down (but not below a whole number it equals up to round-off)."""
        ticks = seconds / self.seconds
        nearest = round(ticks)
        return nearest if abs(ticks - nearest) <= _CLOSE * max(1.0, ticks) else math.floor(ticks)


def common_tick(durations: Iterable[float], horizon_s: float, path: int) -> Tick:
    """The common divisor of all durations, or 1/_FINE of the horizon's share of each op on a path of `path` ops.

    With the latter, rounding down loses at most `path` ticks, less than 1e-6 of the horizon.
    """
    positive = sorted({value for value in durations if value > 0})
    if not positive:
        return Tick(1.0, True)
    base, divisor = positive[0], 1
    for value in positive:
        ratio = Fraction(value / base).limit_denominator(_RATIO)
        if abs(float(ratio) * base - value) > _CLOSE * value:
            break
        divisor = math.lcm(divisor, ratio.denominator)
    else:
        tick = base / divisor
        if horizon_s / tick <= _MOST_TICKS:
            return Tick(tick, True)
    return Tick(horizon_s / (_FINE * max(1, path)), False)


@dataclass(frozen=True)
class Send:
    """A message of every micro-batch: ticks on its links and of latency, and the links as resource names."""

    occupation: int
    latency: int
    links: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Way:
    """One direction: the device of every stage, and ticks of its ops, messages and tail.

    `forward`, `whole`, `input`, `weight`: ticks of F (and R), B, I and W per stage. `activation` and `gradient`: for
    every edge of Instance.edges. `tail`: ticks of the reduction and optimizer step after a stage's last op. `copy`:
    (occupation, latency) of a stage's stash on the host link of its device.
    """

    devices: tuple[int, ...]
    forward: tuple[int, ...]
    whole: tuple[int, ...]
    input: tuple[int, ...]
    weight: tuple[int, ...]
    activation: tuple[Send, ...]
    gradient: tuple[Send, ...]
    tail: tuple[int, ...]
    copy: tuple[tuple[int, int], ...]

    def ticks(self, kind: Kind, stage: int) -> int:
        """Ticks of a compute op."""
        if kind in (Kind.F, Kind.R):
            return self.forward[stage]
        return {Kind.B: self.whole, Kind.I: self.input, Kind.W: self.weight}[kind][stage]


@dataclass(frozen=True)
class Stash:
    """Memory units of a stage's stash, and of what runs beside it.

    `bytes`: made by F (or R); `held`: of the weight's half from I to W (all of it where the backward is whole);
    `kept`: what recompute keeps instead, until R. `forward`, `backward`: units that every F (or R) and every B (or
    I) certainly holds besides: workspace, the tensor it makes, the gradient it takes; `weight`: every W.
    """

    bytes: int
    held: int
    kept: int
    forward: int
    backward: int
    weight: int

    @property
    def all(self) -> tuple[int, ...]:
        """All of these."""
        found: tuple[int, ...] = astuple(self)
        return found

    def in_units(self, unit: int) -> Stash:
        """The same in units of so many."""
        return Stash(*(size // unit for size in self.all))

    def running(self, kind: Kind) -> int:
        """Units beside the stashes while an op of this kind runs."""
        if kind in (Kind.F, Kind.R):
            return self.forward
        if kind in (Kind.B, Kind.I):
            return self.backward
        if kind == Kind.W:
            return self.weight
        raise KeyError(f"{kind.name} is no compute op")


@dataclass(frozen=True)
class Instance:
    """The whole numbers of a candidate.

    Attributes:
        ways: one direction, or down and up. `edges`: (producer, consumer) stages.
        split: per stage, whether its backward is I and W. `stash`: memory per stage. `capacity`: units per device,
            static bytes taken off. `host`: the host link of every device; `node`: its node; `host_room`: units of
            host memory by node, None: no limit.
        policies: what may happen to a stash. `mirrored`: swapping the directions changes nothing.
    """

    micro_batches: int
    tick: Tick
    ways: tuple[Way, ...]
    edges: tuple[tuple[int, int], ...]
    split: tuple[bool, ...]
    stash: tuple[Stash, ...]
    capacity: tuple[int, ...]
    host: tuple[int, ...]
    node: tuple[int, ...]
    host_room: tuple[int | None, ...]
    policies: frozenset[str]
    mirrored: bool

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.stash)

    def kinds(self, stage: int) -> tuple[Kind, ...]:
        """The compute ops every micro-batch has on a stage (R comes with recompute)."""
        return (Kind.F, Kind.I, Kind.W) if self.split[stage] else (Kind.F, Kind.B)

    def backward(self, stage: int) -> Kind:
        """The op that takes and sends gradients: B, or I."""
        return Kind.I if self.split[stage] else Kind.B

    @cached_property
    def tight(self) -> frozenset[int]:
        """Devices that cannot hold every stash of their stages at once (each micro-batch takes one way)."""
        found = set()
        for device in {d for way in self.ways for d in way.devices}:
            here = [[s for s, d in enumerate(way.devices) if d == device] for way in self.ways]
            most = max(sum(max(self.stash[s].bytes, self.stash[s].held) for s in stages) for stages in here)
            beside = max(self.stash[s].running(k) for stages in here for s in stages for k in self.kinds(s))
            if self.micro_batches * most + beside > self.capacity[device]:
                found.add(device)
        return frozenset(found)

    def choices(self, way: Way, stage: int) -> tuple[str, ...]:
        """Policies worth choosing from: where memory does not bind, a stash is kept if it may be."""
        if way.devices[stage] not in self.tight and KEEP in self.policies:
            return (KEEP,)
        return tuple(policy for policy in (KEEP, RECOMPUTE, OFFLOAD) if policy in self.policies)


@dataclass(frozen=True)
class Rules:
    """What a search may decide besides the order: split backwards, and what happens to stashes."""

    split: bool = False
    policies: frozenset[str] = frozenset({KEEP})

    def __post_init__(self) -> None:
        for policy in self.policies - {KEEP, RECOMPUTE, OFFLOAD, SHIP}:
            raise PlanError(f"the exact search knows no stash policy {policy!r}")


def build_instance(
    candidate: Candidate,
    limits: Sequence[int],
    horizon_s: float,
    lowered: Sequence[int] = (),
    rules: Rules = Rules(),
    host_lowered: Sequence[int] = (),
) -> Instance:
    """The instance of a candidate with one or two routes.

    `lowered`, `host_lowered`: bytes taken off the limit of every device, and of every node's host memory.
    """
    costs, problem = candidate.costs, candidate.problem
    routes = distinct_routes(candidate)
    split = tuple(rules.split and whole for whole in costs.separable)
    durations = [seconds for devices in routes for seconds in _durations(candidate, devices, split, rules)]
    path = 4 * problem.workload.micro_batches + 6 * len(candidate.stages) + 2
    tick = common_tick(durations, horizon_s, path)
    static = [sum(parts.values()) for parts in static_bytes(candidate, costs)]
    free = [limit - fixed for limit, fixed in zip(limits, static, strict=True)]
    if lowered:
        free = [room - off for room, off in zip(free, lowered, strict=True)]
    stash = stash_bytes(candidate, split, rules)
    unit = memory_unit([size for one in stash for size in one.all], free)
    less = host_lowered or [0] * len(problem.cluster.node_groups)
    hosts = [(group.host_memory_bytes, off) for group, off in zip(problem.cluster.node_groups, less, strict=True)]
    return Instance(
        problem.workload.micro_batches,
        tick,
        tuple(_way(candidate, devices, tick) for devices in routes),
        tuple((edge.producer, edge.consumer) for edge in costs.edges),
        split,
        tuple(one.in_units(unit) for one in stash),
        tuple(room // unit for room in free),
        host_links(problem.cluster),
        tuple(device.node for device in problem.cluster.devices),
        tuple(None if room is None else max(0, room - off) // unit for room, off in hosts),
        rules.policies,
        len(routes) == 2 and _mirrored(candidate, *routes),
    )


def distinct_routes(candidate: Candidate) -> list[tuple[int, ...]]:
    """The routes of a candidate's pipelines, each once."""
    return list(dict.fromkeys(pipeline.forward for pipeline in candidate.pipelines))


def host_links(cluster: Cluster) -> tuple[int, ...]:
    """Number of the host link of every device: `host_link_shared_by` consecutive devices of a node share one."""
    found: list[int] = []
    count, place, node = -1, 0, -1
    for device in cluster.devices:
        place = place + 1 if device.node == node else 0
        node = device.node
        if place % cluster.node_groups[node].host_link_shared_by == 0:
            count += 1
        found.append(count)
    return tuple(found)


def stash_bytes(candidate: Candidate, split: Sequence[bool], rules: Rules) -> list[Stash]:
    """Bytes of every stage (see planner.memory)."""
    costs = candidate.costs
    forward, backward = costs.workspace_bytes.tolist(), costs.workspace_bytes.tolist()
    kept = costs.incoming_bytes.tolist()
    for producer, consumer, size in costs.edges:
        forward[producer] += size
        backward[producer] += size
        backward[consumer] += size
    whole, half = costs.stash_bytes.tolist(), costs.weight_stash_bytes.tolist()
    return [
        Stash(
            whole[s],
            half[s] if split[s] else whole[s],
            kept[s] if RECOMPUTE in rules.policies else 0,
            forward[s],
            backward[s],
            weight,
        )
        for s, weight in enumerate(costs.workspace_bytes.tolist())
    ]


def memory_unit(demands: Sequence[int], free: Sequence[int]) -> int:
    """Bytes of a memory unit: the common divisor of all demands, or so that capacities stay below a million."""
    exact = math.gcd(*demands) or 1
    largest = max([*demands, 1])
    rooms = max([min(room, 4096 * largest) for room in free if room > 0], default=1)
    return exact if rooms // exact <= _MOST_UNITS else max(1, rooms // _MOST_UNITS)


def message_seconds(candidate: Candidate, source: int, target: int, size: int) -> tuple[float, float]:
    """Seconds on the link, and its latency, of a message; (0, 0) on one device."""
    if source == target:
        return 0.0, 0.0
    link = candidate.problem.cluster.link(source, target)
    return link.occupation_s(size), link.latency_s


def _copy(candidate: Candidate, stage: int, device: int) -> tuple[float, float]:
    """Seconds on the host link, and its latency, of a stage's stash."""
    cluster = candidate.problem.cluster
    link = cluster.node_groups[cluster.devices[device].node].host_link
    return link.occupation_s(int(candidate.costs.stash_bytes[stage])), link.latency_s


def _durations(candidate: Candidate, devices: Sequence[int], split: Sequence[bool], rules: Rules) -> list[float]:
    """Seconds of everything that takes time in the model."""
    found: list[float] = []
    costs = candidate.costs
    for stage, device in enumerate(devices):
        speed = candidate.problem.cluster.devices[device].kind.speed
        halves = (costs.backward_input_s, costs.backward_weight_s) if split[stage] else (costs.backward_s,)
        found += [float(table[stage]) / speed for table in (costs.forward_s, *halves)]
        found.append(finish_seconds(candidate, stage, device))
        found += _copy(candidate, stage, device) if OFFLOAD in rules.policies else ()
    for producer, consumer, size in costs.edges:
        a, b = devices[producer], devices[consumer]
        found += [*message_seconds(candidate, a, b, size), *message_seconds(candidate, b, a, size)]
    return found


def _way(candidate: Candidate, devices: tuple[int, ...], tick: Tick) -> Way:
    costs, cluster = candidate.costs, candidate.problem.cluster
    speed = [cluster.devices[d].kind.speed for d in devices]

    def send(source: int, target: int, size: int) -> Send:
        occupation, latency = message_seconds(candidate, source, target, size)
        return Send(tick.down(occupation), tick.down(latency), links_of(cluster, source, target))

    def ticks(seconds: Floats) -> tuple[int, ...]:
        return tuple(tick.down(float(s) / v) for s, v in zip(seconds, speed, strict=True))

    return Way(
        devices,
        ticks(costs.forward_s),
        ticks(costs.backward_s),
        ticks(costs.backward_input_s),
        ticks(costs.backward_weight_s),
        tuple(send(devices[e.producer], devices[e.consumer], e.bytes) for e in costs.edges),
        tuple(send(devices[e.consumer], devices[e.producer], e.bytes) for e in costs.edges),
        tuple(tick.down(finish_seconds(candidate, s, d)) for s, d in enumerate(devices)),
        tuple((tick.down(a), tick.down(b)) for a, b in (_copy(candidate, s, d) for s, d in enumerate(devices))),
    )


def links_of(cluster: Cluster, source: int, target: int) -> tuple[tuple[str, int, int], ...]:
    """A link of its own inside a node; between nodes the sender's and the receiver's NIC."""
    if source == target:
        return ()
    if cluster.same_node(source, target):
        return (("link", source, target),)
    return ("out", source, -1), ("in", target, -1)


def _mirrored(candidate: Candidate, down: tuple[int, ...], up: tuple[int, ...]) -> bool:
    """Whether the devices look the same when each stage's two devices are swapped."""
    cluster, twin = candidate.problem.cluster, dict(zip(down, up, strict=True))
    if any(twin[d] != u or twin.get(u) != d for d, u in zip(down, up, strict=True)):
        return False
    return all(
        cluster.devices[a].kind == cluster.devices[b].kind
        and all(cluster.link(a, c) == cluster.link(b, d) for c, d in twin.items())
        and all(cluster.same_node(a, c) == cluster.same_node(b, d) for c, d in twin.items())
        for a, b in twin.items()
    )
