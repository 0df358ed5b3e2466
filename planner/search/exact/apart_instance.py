"""A cut whose stages may run forward and backward on any devices, in whole numbers: what `apart_model` reads.

Ticks and memory units are those of `instance`: durations, demands and capacities rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...graph import OFFLOAD, RECOMPUTE, Candidate, training_bytes, update_seconds
from ...plan import Kind, Problem
from .instance import Rules, Stash, Tick, common_tick, host_links, links_of, memory_unit, message_seconds, stash_bytes

Times = tuple[int, ...]
Hops = tuple[tuple[tuple[int, int], ...], ...]
"""By source and target: ticks of occupation and of latency; (0, 0) on one device."""


@dataclass(frozen=True)
class Stage:
    """What a stage asks of any device.

    Attributes:
        ticks: of F, B, I and W, by kind and device; R is like F.
        tail: ticks of the optimizer step by device. `home`: of the new parameters' way, from owner to forward device.
        stash: memory units. `owned`, `lent`: units of parameters and more on the backward device, and on a device
            that only runs the forward; those shared with other stages apart.
        hop: the stash from device to device; `kept_hop`: what recompute keeps. `copy`: to or from the host by device.
        split: the backward is I and W.
    """

    ticks: dict[Kind, Times]
    tail: Times
    home: Hops
    stash: Stash
    owned: int
    lent: int
    hop: Hops
    kept_hop: Hops
    copy: tuple[tuple[int, int], ...]
    split: bool

    @property
    def backward(self) -> tuple[Kind, ...]:
        """The ops of a backward."""
        return (Kind.I, Kind.W) if self.split else (Kind.B,)


@dataclass(frozen=True)
class Tied:
    """Parameters that these stages share: one copy a device, in units where a backward runs and where only forwards."""

    stages: tuple[int, ...]
    owned: int
    lent: int


@dataclass(frozen=True)
class ApartInstance:
    """One pipeline through a cut, its devices open.

    Attributes:
        edges: (producer, consumer) stages, and `edge_hop` the tensors' way between devices.
        capacity: units per device. `host`: the host link of every device; `node`: its node; `host_room`: units of
            host memory by node, None: no limit. `links`: the links between two devices as resource names.
        policies: what may happen to a stash on one device. `alike`: exchanging two devices changes nothing.
    """

    micro_batches: int
    tick: Tick
    stages: tuple[Stage, ...]
    edges: tuple[tuple[int, int], ...]
    edge_hop: tuple[Hops, ...]
    capacity: tuple[int, ...]
    host: tuple[int, ...]
    node: tuple[int, ...]
    host_room: tuple[int | None, ...]
    links: dict[tuple[int, int], tuple[tuple[str, int, int], ...]]
    policies: frozenset[str]
    alike: bool
    ties: tuple[Tied, ...]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.capacity)


def build_apart(
    candidate: Candidate, limits: Sequence[int], horizon_s: float, lowered: Sequence[int], rules: Rules
) -> ApartInstance:
    """The instance of a candidate's stages; its pipelines do not matter. `lowered`: bytes taken off every limit."""
    problem, costs = candidate.problem, candidate.costs
    count = problem.workload.micro_batches
    seconds = _Seconds(candidate, rules)
    path = 5 * count + 8 * len(candidate.stages) + 2
    tick = common_tick(seconds.all(), horizon_s, path)
    split = tuple(rules.split and can for can in costs.separable)
    stash = stash_bytes(candidate, split, rules)
    owned, lent = _static(candidate)
    shared = [(tie.stages, *_kept(candidate, tie.bytes, tie.tensors, tie.trained_bytes)) for tie in costs.ties]
    free = [limit - less for limit, less in zip(limits, lowered, strict=True)]
    sizes = [*(x for one in stash for x in one.all), *owned, *lent, *(x for _, *both in shared for x in both)]
    unit = memory_unit(sizes, free)
    cluster, devices = problem.cluster, range(len(problem.cluster))

    longest = tick.down(horizon_s) + 1  # whatever takes more does not fit the horizon either

    def down(pair: tuple[float, float]) -> tuple[int, int]:
        return min(tick.down(pair[0]), longest), min(tick.down(pair[1]), longest)

    def hops(size: int) -> Hops:
        return tuple(tuple(down(seconds.hop(a, b, size)) for b in devices) for a in devices)

    nothing: Hops = (((0, 0),) * len(devices),) * len(devices)
    stages = tuple(
        Stage(
            {kind: tuple(tick.down(s) for s in seconds.compute(kind, k)) for kind in (Kind.F, *_BACK)},
            tuple(tick.down(update_seconds(problem, d, int(costs.own_trained_bytes[k]))) for d in devices),
            hops(int(costs.own_trained_bytes[k])) if costs.trained_bytes[k] else nothing,
            stash[k].in_units(unit),
            owned[k] // unit,
            lent[k] // unit,
            hops(int(costs.stash_bytes[k])),
            hops(int(costs.incoming_bytes[k])),
            tuple(map(down, seconds.copies(k))),
            split[k],
        )
        for k in range(len(candidate.stages))
    )
    room = tuple(None if g.host_memory_bytes is None else g.host_memory_bytes // unit for g in cluster.node_groups)
    return ApartInstance(
        count,
        tick,
        stages,
        tuple((edge.producer, edge.consumer) for edge in costs.edges),
        tuple(hops(edge.bytes) for edge in costs.edges),
        tuple(max(0, x) // unit for x in free),
        host_links(cluster),
        tuple(device.node for device in cluster.devices),
        room,
        {(a, b): links_of(cluster, a, b) for a in devices for b in devices},
        rules.policies,
        _alike(problem, rules, free),
        tuple(Tied(stages, owns // unit, lends // unit) for stages, owns, lends in shared),
    )


_BACK = (Kind.B, Kind.I, Kind.W)


class _Seconds:
    """Seconds of everything that takes time, by device."""

    def __init__(self, candidate: Candidate, rules: Rules) -> None:
        self.candidate, self.costs, self.rules = candidate, candidate.costs, rules
        self.cluster = candidate.problem.cluster
        self.speeds = [device.kind.speed for device in self.cluster.devices]

    def compute(self, kind: Kind, stage: int) -> list[float]:
        """Of an op on every device."""
        costs = self.costs
        table = {
            Kind.F: costs.forward_s,
            Kind.B: costs.backward_s,
            Kind.I: costs.backward_input_s,
            Kind.W: costs.backward_weight_s,
        }
        return [float(table[kind][stage]) / speed for speed in self.speeds]

    def hop(self, source: int, target: int, size: int) -> tuple[float, float]:
        """Occupation and latency of a message."""
        return message_seconds(self.candidate, source, target, size)

    def copies(self, stage: int) -> list[tuple[float, float]]:
        """Occupation and latency of a stage's stash on the host link of every device."""
        size = int(self.costs.stash_bytes[stage])
        links = [self.cluster.node_groups[device.node].host_link for device in self.cluster.devices]
        return [(link.occupation_s(size), link.latency_s) for link in links]

    def all(self) -> list[float]:
        """All of them, for the tick."""
        costs, devices, found = self.costs, range(len(self.cluster)), []
        sizes = {int(edge.bytes) for edge in costs.edges}
        for k in range(len(costs.forward_s)):
            halves = (Kind.I, Kind.W) if self.rules.split and costs.separable[k] else (Kind.B,)
            found += [s for kind in (Kind.F, *halves) for s in self.compute(kind, k)]
            own = int(costs.own_trained_bytes[k])
            found += [update_seconds(self.candidate.problem, d, own) for d in devices]
            found += [s for pair in self.copies(k) for s in pair] if OFFLOAD in self.rules.policies else []
            sizes |= {int(costs.stash_bytes[k])} | ({own} if costs.trained_bytes[k] else set())
            sizes |= {int(costs.incoming_bytes[k])} if RECOMPUTE in self.rules.policies else set()
        return found + [s for size in sizes for a in devices for b in devices for s in self.hop(a, b, size)]


def _static(candidate: Candidate) -> tuple[list[int], list[int]]:
    """Bytes of parameters and more per stage: on the device that owns them, and on one that only runs the forward.

    What a stage shares with others is left out.
    """
    costs = candidate.costs
    owned, lent = [], []
    for k in range(len(candidate.stages)):
        own, buffers = int(costs.own_bytes[k]), int(costs.buffer_bytes[k])
        trained, run = _kept(candidate, own, int(costs.parameter_tensors[k]), int(costs.own_trained_bytes[k]))
        owned.append(trained + buffers)
        lent.append(run + buffers)
    return owned, lent


def _kept(candidate: Candidate, parameters: int, tensors: int, trained: int) -> tuple[int, int]:
    """Bytes on a device that trains so much of these parameters, and on one that only uses them."""
    return sum(training_bytes(candidate.problem.workload, parameters, tensors, trained).values()), parameters


def _alike(problem: Problem, rules: Rules, free: Sequence[int]) -> bool:
    """Whether all devices are of one kind, in one node, with host links that nobody shares or uses."""
    cluster = problem.cluster
    kinds = {device.kind for device in cluster.devices}
    alone = OFFLOAD not in rules.policies or len(set(cluster.host_links)) in (1, len(cluster))
    return len(kinds) == 1 and len(cluster.node_groups) == 1 and alone and len(set(free)) == 1
