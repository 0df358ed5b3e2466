"""A plain opponent of the search for two devices a stage: random devices, a greedy run of each, in Python.

Every stage has any forward and any backward device. A run goes from event to event: a stash that must move goes as soon
as its backward's device has room, then the oldest micro-batch runs first, backwards before forwards; only so many
micro-batches are under way. Devices change at random, and what is not much worse is kept. Whole backwards, stashes
kept, no tensors between stages in the account: the plan that comes out is simulated, and counts where it fits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph import Candidate
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.search.common.fit import fits, limits

Routes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class Greedy:
    """One run of these devices with at most `cap` micro-batches under way; `orders` once it has come to its end."""

    problem: Problem
    stages: tuple[tuple[str, ...], ...]
    routes: Routes
    cap: int
    orders: list[list[Op]] = field(default_factory=list)

    def __post_init__(self) -> None:
        cluster, route = self.problem.cluster, Pipeline(*self.routes, tuple(range(self.batches)))
        self.costs = Candidate(self.problem, self.stages, (route,)).costs
        self.room = limits(self.problem)
        train = self.problem.workload
        for s, (a, b) in enumerate(zip(*self.routes, strict=True)):
            own, trained = int(self.costs.parameter_bytes[s]), int(self.costs.trained_bytes[s])
            self.room[b] -= own + train.gradient_bytes(trained) + train.optimizer_bytes(trained)
            self.room[a] -= own if a != b else 0
        self.speed = [device.kind.speed for device in cluster.devices]
        self.orders = [[] for _ in cluster.devices]

    @property
    def batches(self) -> int:
        """Micro-batches."""
        return self.problem.workload.micro_batches

    def run(self) -> float:
        """Seconds; infinite where it gets stuck."""
        devices, stages = range(len(self.room)), range(len(self.stages))
        self.busy, self.next_f, self.next_b = [0.0] * len(self.room), [0] * len(stages), [0] * len(stages)
        self.ready_f, self.ready_b = {(0, m): 0.0 for m in range(self.batches)}, dict[tuple[int, int], float]()
        self.there, self.waiting = dict[tuple[int, int], float](), list[tuple[int, int]]()
        self.links: dict[tuple[int, int], float] = {}
        self.events: list[tuple[float, str, int, int]] = []
        now = 0.0
        while min(self.next_b) < self.batches or self.events:
            for event in [e for e in self.events if e[0] <= now + 1e-9]:
                self.events.remove(event)
                self._happens(*event)
            while self._ships(now) or any(self._starts(d, now) for d in devices if self.busy[d] <= now + 1e-9):
                pass
            coming = [t for t in [e[0] for e in self.events] if t > now + 1e-9]
            if not coming:
                return now if min(self.next_b) >= self.batches else float("inf")
            now = min(coming)
        return now

    def _happens(self, now: float, what: str, s: int, m: int) -> None:
        front, rear = self.routes[0][s], self.routes[1][s]
        size = int(self.costs.stash_bytes[s])
        if what == "F":
            if s + 1 < len(self.stages):
                self.ready_f[s + 1, m] = now + self._between(s, front, self.routes[0][s + 1])
                self.events.append((self.ready_f[s + 1, m], "here", s, m))
            else:
                self.ready_b[s, m] = now
            if front == rear:
                self.there[s, m] = now
            else:
                self.waiting.append((s, m))
        elif what == "B":
            self.room[rear] += size
            if s:
                self.ready_b[s - 1, m] = now + self._between(s - 1, rear, self.routes[1][s - 1])
                self.events.append((self.ready_b[s - 1, m], "here", s, m))
        elif what == "gone":
            self.room[front] += size
            self.orders[front].append(Op(Kind.FREE, s, m))

    def _between(self, edge: int, a: int, b: int) -> float:
        sizes = [e.bytes for e in self.costs.edges if e.producer == edge]
        link = self.problem.cluster.link(a, b)
        return 0.0 if a == b else link.latency_s + sum(map(link.occupation_s, sizes))

    def _ships(self, now: float) -> bool:
        for s, m in sorted(self.waiting, key=lambda unit: (unit[1], -unit[0])):
            pair, size = (self.routes[0][s], self.routes[1][s]), int(self.costs.stash_bytes[s])
            if size <= self.room[pair[1]] and self.links.get(pair, 0.0) <= now + 1e-9:
                link = self.problem.cluster.link(*pair)
                end = self.links[pair] = now + link.occupation_s(size)
                self.room[pair[1]] -= size
                self.waiting.remove((s, m))
                self.there[s, m] = end + link.latency_s
                self.events += [(end, "gone", s, m), (end + link.latency_s, "here", s, m)]
                self.orders[pair[0]].append(Op(Kind.SEND_S, s, m, pair[1]))
                self.orders[pair[1]].append(Op(Kind.RECV_S, s, m, pair[0]))
                return True
        return False

    def _starts(self, d: int, now: float) -> bool:
        found = []
        for s in range(len(self.stages)):
            m, k = self.next_b[s], self.next_f[s]
            late = max(self.there.get((s, m), 1e300), self.ready_b.get((s, m), 1e300))
            if self.routes[1][s] == d and m < self.batches and late <= now + 1e-9:
                found.append((m, 0, -s))
            under_way = s > 0 or k - self.next_b[0] < self.cap
            room = int(self.costs.stash_bytes[s]) <= self.room[d]
            early = self.ready_f.get((s, k), 1e300) <= now + 1e-9
            if self.routes[0][s] == d and k < self.batches and under_way and room and early:
                found.append((k, 1, -s))
        if not found:
            return False
        m, forward, s = min(found)
        s, back = -s, self.costs.backward_s
        seconds = (self.costs.forward_s if forward else back)[s] / self.speed[d]
        (self.next_f if forward else self.next_b)[s] += 1
        self.room[d] -= int(self.costs.stash_bytes[s]) if forward else 0
        self.busy[d] = now + seconds
        self.events.append((now + seconds, "F" if forward else "B", s, m))
        self.orders[d].append(Op(Kind.F if forward else Kind.B, s, m))
        return True

    def plan(self) -> Plan | None:
        """The plan of the run; None where it does not run or fit."""
        makes = {Kind.F, Kind.RECV_S}
        lists = []
        for order in self.orders:
            last = max((n for n, op in enumerate(order) if op.kind in makes), default=-1)
            lists.append([op for n, op in enumerate(order) if op.kind is not Kind.FREE or n < last])
        route = Pipeline(*self.routes, tuple(range(self.batches)))
        try:
            found = assemble(Candidate(self.problem, self.stages, (route,)), lists, "random devices")
        except PlanError:
            return None
        return found if fits(found) else None


def random_devices(problem: Problem, stages: Sequence[Sequence[str]], seconds: float, seed: int = 0) -> Plan | None:
    """The best plan found within the time."""
    rng, until = random.Random(seed), time.monotonic() + seconds
    devices, count = len(problem.cluster), len(stages)
    known, best, best_s = tuple(map(tuple, stages)), None, float("inf")
    batches = problem.workload.micro_batches
    caps = sorted({min(batches, cap) for cap in (1, 2, 3, 4, 6, 8, batches)})
    now = ([s * devices // count for s in range(count)], [s * devices // count for s in range(count)])
    now_s = float("inf")
    while time.monotonic() < until:
        tried = (now[0][:], now[1][:])
        for _ in range(rng.choice((1, 1, 2)) if now_s < float("inf") else count):
            tried[rng.random() < 0.5][rng.randrange(count)] = rng.randrange(devices)
        value = float("inf")
        for cap in caps:
            run = Greedy(problem, known, (tuple(tried[0]), tuple(tried[1])), cap)
            took = run.run() if min(run.room) >= 0 else float("inf")
            value = min(value, took)
            if took < best_s * 1.02:
                found = run.plan()
                if found is not None and found.forecast is not None and found.forecast.step_s < best_s:
                    best, best_s = found, found.forecast.step_s
        if value <= now_s + rng.expovariate(1 / 0.02) * min(now_s, 1e9) * (rng.random() < 0.2):
            now, now_s = tried, value
    return best
