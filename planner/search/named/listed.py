"""Compute orders by list scheduling: every device runs what is ready, backwards first, up to a number in flight.

With one stage a device and as many in flight as keep later stages busy this is 1F1B; where stages have different
numbers of replicas it is what 1F1B becomes (PipeDream's 1F1B-RR).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...graph import Candidate, route
from ...plan import Kind, Op


@dataclass
class _Device:
    """One device's stage and list in the making: the micro-batches that are next, and what is ready when."""

    stage: int
    most: int
    micro_batches: list[int]
    order: list[Op] = field(default_factory=list)
    later: deque[int] = field(default_factory=deque)
    started: int = 0
    returned: int = 0
    free_s: float = 0.0


class _Lists:
    """The state of all devices, and the messages between them."""

    def __init__(self, candidate: Candidate, most: Sequence[int], split: Sequence[bool]) -> None:
        self.candidate, self.split = candidate, split
        costs, line = candidate.costs, route(candidate)
        self.routes = [candidate.pipelines[line[m]].forward for m in range(len(line))]
        stages = range(len(candidate.stages))
        self.after = [[(e.consumer, e.bytes) for e in costs.edges if e.producer == s] for s in stages]
        self.before = [[(e.producer, e.bytes) for e in costs.edges if e.consumer == s] for s in stages]
        self.devices: dict[int, _Device] = {}
        self.missing: dict[tuple[bool, int, int], int] = {}
        self.ready_s: dict[tuple[bool, int, int], float] = {}
        self.events: list[tuple[float, int]] = []
        for m, devices in enumerate(self.routes):
            for s, d in enumerate(devices):
                self.devices.setdefault(d, _Device(s, most[s], [])).micro_batches.append(m)
                for back, others in ((False, self.before[s]), (True, self.after[s])):
                    self.missing[back, s, m] = len(others) + back
                    self.ready_s[back, s, m] = 0.0
        self.events = [(0.0, d) for d in self.devices]
        self.links: dict[tuple[int, int, int], float] = {}

    def run(self) -> list[list[Op]]:
        """Until nothing is left."""
        while self.events:
            now, d = heapq.heappop(self.events)
            if self.devices[d].free_s <= now:
                self._start(d, now)
        return [self.devices[d].order if d in self.devices else [] for d in range(len(self.candidate.problem.cluster))]

    def _ready(self, back: bool, device: _Device, number: int, now: float) -> bool:
        if number >= len(device.micro_batches):
            return False
        key = back, device.stage, device.micro_batches[number]
        return not self.missing[key] and self.ready_s[key] <= now

    def _start(self, d: int, now: float) -> None:
        device, costs = self.devices[d], self.candidate.costs
        s, speed = device.stage, self.candidate.problem.cluster.devices[d].kind.speed
        held = device.started - device.returned + len(device.later)
        if self._ready(True, device, device.returned, now):
            m = device.micro_batches[device.returned]
            device.returned += 1
            half = self.split[s]
            device.order.append(Op(Kind.I if half else Kind.B, s, m))
            seconds = float(costs.backward_input_s[s] if half else costs.backward_s[s])
            if half:
                device.later.append(m)
            self._end(d, now + seconds / speed, True, m)
        elif held < device.most and self._ready(False, device, device.started, now):
            m = device.micro_batches[device.started]
            device.started += 1
            device.order.append(Op(Kind.F, s, m))
            self._end(d, now + float(costs.forward_s[s]) / speed, False, m)
        elif device.later:
            device.order.append(Op(Kind.W, s, device.later.popleft()))
            device.free_s = now + float(costs.backward_weight_s[s]) / speed
            heapq.heappush(self.events, (device.free_s, d))

    def _end(self, d: int, end_s: float, back: bool, m: int) -> None:
        """A forward or a backward ends then: what it sends arrives later."""
        device = self.devices[d]
        device.free_s = end_s
        heapq.heappush(self.events, (end_s, d))
        if not back:
            self._arrive(True, device.stage, m, end_s)
        for other, size in self.before[device.stage] if back else self.after[device.stage]:
            self._arrive(back, other, m, end_s + self._link_s(d, self.routes[m][other], size))

    def _arrive(self, back: bool, stage: int, m: int, at_s: float) -> None:
        key = back, stage, m
        self.missing[key] -= 1
        self.ready_s[key] = max(self.ready_s[key], at_s)
        heapq.heappush(self.events, (self.ready_s[key], self.routes[m][stage]))

    def _link_s(self, a: int, b: int, size: int) -> float:
        key = a, b, size
        if key not in self.links:
            link = self.candidate.problem.cluster.link(a, b)
            self.links[key] = 0.0 if a == b else link.occupation_s(size) + link.latency_s
        return self.links[key]


def listed(candidate: Candidate, most: Sequence[int], split: Sequence[bool]) -> list[list[Op]]:
    """Compute orders of a candidate whose devices have one stage each, on every device's own times.

    most: by stage, micro-batches that a device may have between F and I (or B), and between I and W, together. split:
    by stage, whether backwards are halves, the second of which fills what would be idle.
    """
    return _Lists(candidate, most, split).run()
