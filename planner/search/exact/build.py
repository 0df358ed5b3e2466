"""From a candidate to an instance: its routes, or its stages on any devices, in ticks and memory units."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import Candidate, static_bytes, training_bytes
from ...problem import Cluster
from .durations import Durations, distinct_routes
from .instance import Edge, Hops, Instance, Send, Site, Stage, Stash, Tied, common_tick, memory_unit


def build_instance(
    seconds: Durations,
    limits: Sequence[int],
    horizon_s: float,
    lowered: Sequence[int] = (),
    host_lowered: Sequence[int] = (),
    coarse: bool = False,
) -> Instance:
    """The instance of a candidate with one or two routes, or of its stages alone where the rules open the devices.

    `limits`, `lowered`, `host_lowered`: bytes of every device, bytes taken off, and those off a node's host memory.
    `coarse`: in few ticks, which lose short ops where these are not exact.
    """
    return _Builder(seconds, horizon_s, coarse).build(limits, lowered, host_lowered)


class _Builder:
    """Turns seconds and bytes into whole numbers."""

    def __init__(self, seconds: Durations, horizon_s: float, coarse: bool) -> None:
        self.seconds, self.candidate, self.costs, self.rules = seconds, seconds.candidate, seconds.costs, seconds.rules
        self.problem, self.cluster, self.sites, self.pairs = (
            seconds.problem,
            seconds.cluster,
            seconds.sites,
            seconds.pairs,
        )
        self.split, self.stages = seconds.split, range(len(seconds.sites))
        one, some = (5, 8) if self.rules.open else (4, 6)
        path = one * self.problem.workload.micro_batches + some * len(self.stages) + 2
        self.tick = common_tick(seconds.all(), horizon_s, path, coarse)
        self.longest = self.tick.down(horizon_s) + 1
        """Messages that take more do not fit the horizon either."""

    def build(self, limits: Sequence[int], lowered: Sequence[int], host_lowered: Sequence[int]) -> Instance:
        """The whole numbers."""
        costs, cluster, open_ = self.costs, self.cluster, self.rules.open
        fixed = [0 if open_ else sum(parts.values()) for parts in static_bytes(self.candidate, costs)]
        free = [a - b - c for a, b, c in zip(limits, fixed, lowered or [0] * len(cluster), strict=True)]
        stash = stash_bytes(self.candidate, self.split)
        held = [self._parameters(s) if open_ else (0, 0) for s in self.stages]
        tied = [(tie.stages, *self._kept(tie.bytes, tie.tensors, tie.trained_bytes)) for tie in costs.ties if open_]
        sizes = [x for some in (*(one.all for one in stash), *held, *self.seconds.kept.values()) for x in some]
        unit = memory_unit([*sizes, *(x for _, *both in tied for x in both)], free)
        hosts = [group.host_memory_bytes for group in cluster.node_groups]
        less = host_lowered or [0] * len(hosts)
        return Instance(
            micro_batches=self.problem.workload.micro_batches,
            tick=self.tick,
            stages=tuple(self._stage(s, stash[s], held[s], unit) for s in self.stages),
            edges=tuple(self._edge(*edge) for edge in costs.edges),
            capacity=tuple((max(0, room) if open_ else room) // unit for room in free),
            host=cluster.host_links,
            node=tuple(device.node for device in cluster.devices),
            host_room=tuple(None if x is None else max(0, x - off) // unit for x, off in zip(hosts, less, strict=True)),
            policies=self.rules.policies,
            open=open_,
            alike=self._devices_alike(free) if open_ else self._directions_alike(),
            ties=tuple(Tied(stages, owned // unit, lent // unit) for stages, owned, lent in tied),
        )

    # ------------------------------------------------------------ ticks and units

    def _stage(self, s: int, stash: Stash, held: tuple[int, int], unit: int) -> Stage:
        down, here, kept = self.tick.down, self.sites[s], self.seconds.kept
        sites = tuple(
            Site(
                d,
                {kind: down(x) for kind, x in self.seconds.compute(s, d).items()},
                self._send(self.seconds.copy(s, d)),
            )
            for d in here
        )
        finish = {(a, b): sum(map(down, self.seconds.finish(s, here[a], here[b]))) for a, b in self.pairs}
        return Stage(
            sites=sites,
            split=self.split[s],
            finish=finish,
            stash=stash.in_units(unit),
            kept={name: size[s] // unit for name, size in kept.items()},
            hop=self._hops(here, here, int(self.costs.stash_bytes[s])),
            kept_hop={name: self._hops(here, here, size[s]) for name, size in kept.items()},
            owned=held[0] // unit,
            lent=held[1] // unit,
        )

    def _edge(self, producer: int, consumer: int, size: int) -> Edge:
        a, b = self.sites[producer], self.sites[consumer]
        return Edge(producer, consumer, self._hops(a, b, size), self._hops(b, a, size))

    def _hops(self, sources: Sequence[int], targets: Sequence[int], size: int) -> Hops:
        found = {}
        for a, b in self.pairs:
            source, target = sources[a], targets[b]
            links = links_of(self.cluster, source, target)
            found[a, b] = self._send(self.seconds.message(source, target, size), links)
        return found

    def _send(self, parts: tuple[float, float], links: tuple[tuple[str, int, int], ...] = ()) -> Send:
        occupation, latency = (min(self.tick.down(x), self.longest) for x in parts)
        return Send(occupation, latency, links)

    # ------------------------------------------------------------ bytes

    def _parameters(self, s: int) -> tuple[int, int]:
        """Bytes of parameters and more on the device that owns them, and on one that only runs the forward.

        What a stage shares with others is left out.
        """
        costs, buffers = self.costs, int(self.costs.buffer_bytes[s])
        own = int(costs.own_bytes[s]), int(costs.parameter_tensors[s]), int(costs.own_trained_bytes[s])
        kept = self._kept(*own, self.problem.workload.parts(1))
        return kept[0] + buffers, kept[1] + buffers

    def _kept(self, parameters: int, tensors: int, trained: int, parts: int = 1) -> tuple[int, int]:
        """Bytes on a device that trains so much of these parameters, and on one that only uses them."""
        return sum(training_bytes(self.problem.workload, parameters, tensors, trained, parts).values()), parameters

    def _directions_alike(self) -> bool:
        routes = distinct_routes(self.candidate)
        return len(routes) == 2 and _mirrored(self.candidate, *routes)

    def _devices_alike(self, free: Sequence[int]) -> bool:
        """Whether all devices are of one kind, in one node, with host links that nobody shares or uses."""
        cluster = self.cluster
        kinds = {device.kind for device in cluster.devices}
        alone = not self.seconds.hosted or len(set(cluster.host_links)) in (1, len(cluster))
        return len(kinds) == 1 and len(cluster.node_groups) == 1 and alone and len(set(free)) == 1


def stash_bytes(candidate: Candidate, split: Sequence[bool]) -> list[Stash]:
    """Bytes of every stage (see planner.forecast)."""
    costs = candidate.costs
    work = costs.workspaces
    forward = work.forward.tolist()
    backward = [int((work.inputs if halves else work.backward)[s]) for s, halves in enumerate(split)]
    for producer, consumer, size in costs.edges:
        forward[producer] += size
        backward[producer] += size
        backward[consumer] += size
    whole, half = costs.stash_bytes.tolist(), costs.weight_stash_bytes.tolist()
    return [
        Stash(
            bytes=whole[s],
            held=half[s] if split[s] else whole[s],
            forward=forward[s],
            backward=backward[s],
            weight=int(work.weights[s]),
        )
        for s in range(len(whole))
    ]


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
