"""Stages with replicas, tensor-parallel ways and modes of layers: the problem, free of any file format.

What Piper (Tarnawski et al., NeurIPS'21) and PipeDream (Narayanan et al., SOSP'19) choose for every stage beside its
layers: how many replicas share its micro-batches, in how many ways every layer is split, and in which of its modes each
layer runs. A stage that has s replicas from it on and d of its own holds ceil(s / d) micro-batches in flight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .problem import GraphProblem


@dataclass(frozen=True)
class Mode:
    """How a group runs: time of a micro-batch; of every device its weights, memory in flight and memory at rest.

    `entering` and `leaving`: time that the devices of a stage exchange tensors for where the edge from (to) that
    group leads to another stage.
    """

    work: float
    weight_bytes: float = 0.0
    in_flight_bytes: float = 0.0
    static_bytes: float = 0.0
    entering: Mapping[int, float] = field(default_factory=dict)
    leaving: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """Groups, each with the position of its mode, on `replicas` times `ways` devices."""

    groups: tuple[int, ...]
    modes: tuple[int, ...]
    replicas: int = 1
    ways: int = 1


@dataclass(frozen=True)
class WidthProblem:
    """Groups in a topological order with their modes, and the devices.

    A stage of d replicas takes a d-th of its work, of the tensors that enter or leave it, and `sync[d]` for each byte
    of weights; where the graph says `overlap`, the larger of a d-th of the tensors that cross each of its cuts and the
    rest. Its memory is that of every device.

    Attributes:
        graph: the order, the tensors (without `overlap` each with one target), how many devices there are at most,
            and the memory of each.
        modes: for every number of ways, the modes of every group; none where it cannot be split so.
        sync: for every number of replicas that a stage may have, the time for a byte of weights.
        most_replicas: of all stages together.
    """

    graph: GraphProblem
    modes: Mapping[int, Sequence[Sequence[Mode]]]
    sync: Mapping[int, float]
    most_replicas: int

    def __len__(self) -> int:
        return len(self.graph)

    @cached_property
    def area(self) -> list[float]:
        """Device time that every group takes at least: ways times work."""
        return [
            min((t * mode.work for t, modes in self.modes.items() for mode in modes[g]), default=math.inf)
            for g in range(len(self))
        ]

    @cached_property
    def least(self) -> float:
        """No partition's largest load is less: an equal share of the work, the group that is slowest at its best."""
        shared = math.fsum(self.area) / self.graph.accelerators
        return max([shared, *(self._alone(g) for g in range(len(self)))])

    def _alone(self, g: int) -> float:
        """The load of a stage with a group at least."""
        devices = self.graph.accelerators
        return min(
            (
                mode.work / d + cost * mode.weight_bytes
                for t, modes in self.modes.items()
                for mode in modes[g]
                for d, cost in self.sync.items()
                if t * d <= devices
            ),
            default=math.inf,
        )

    def objective(self, stages: Sequence[Stage]) -> float:
        """The largest load of a stage; infinite when the stages break a rule (order, devices, memory)."""
        place = {g: s for s, stage in enumerate(stages) for g in stage.groups}
        total = sum(stage.replicas for stage in stages)
        used = sum(stage.replicas * stage.ways for stage in stages)
        if len(place) < len(self) or any(place[a] > place[b] for a, b in self.graph.edges):
            return math.inf
        if used > self.graph.accelerators or total > self.most_replicas:
            return math.inf
        loads = []
        for s, stage in enumerate(stages):
            in_flight = -(-sum(later.replicas for later in stages[s:]) // stage.replicas)
            if self._memory(stage, in_flight) > self.graph.limit_bytes * (1 + 1e-12):
                return math.inf
            loads.append(self._load(stage, s, place))
        return max(loads)

    def _modes(self, stage: Stage) -> list[Mode]:
        return [self.modes[stage.ways][g][k] for g, k in zip(stage.groups, stage.modes, strict=True)]

    def _memory(self, stage: Stage, in_flight: int) -> float:
        return math.fsum(m.static_bytes + in_flight * m.in_flight_bytes for m in self._modes(stage))

    def _load(self, stage: Stage, s: int, place: Mapping[int, int]) -> float:
        modes = self._modes(stage)
        weights = self.sync[stage.replicas] * math.fsum(m.weight_bytes for m in modes)
        work = [m.work for m in modes]
        if self.graph.overlap:
            cuts = (self._cut(place, s), self._cut(place, s + 1))
            return max(math.fsum(work) / stage.replicas + weights, max(cuts) / stage.replicas)
        for t in self.graph.tensors:
            work += [t.cost for target in t.targets if (place[t.source] == s) != (place[target] == s)]
        for mode in modes:
            work += [cost for other, cost in mode.entering.items() if place[other] != s]
            work += [cost for other, cost in mode.leaving.items() if place[other] != s]
        return math.fsum(work) / stage.replicas + weights

    def _cut(self, place: Mapping[int, int], s: int) -> float:
        """Time of the tensors that cross the cut before stage s."""
        crossing = (t for t in self.graph.tensors if place[t.source] < s <= max(place[x] for x in t.targets))
        return math.fsum(t.cost for t in crossing)
