"""A random search over (forward device, backward device, stash choice) that plays against plan().

A candidate's ops are run forwards in time by a greedy rule that knows memory, links and host links, which gives the
compute orders and the places of the copies; the planner's simulator and checker then say what the plan takes. Shares no
code with the planner's own search.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mechanisms_cases import Case
from mechanisms_opponents import Best, cut, simulated, stages_of

from contraflow.planner.graph import KEEP, OFFLOAD, RECOMPUTE, Candidate, static_bytes, with_returns
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.problem import StageCosts
from contraflow.planner.search.common import priced

CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
HOTTER = 0.03
"""How much worse, as a share of the step, a neighbour may be that the search goes on from, on average."""


@dataclass(frozen=True)
class Choice:
    """One point of the space: ends of the stages, two devices and a policy for each, and the rules of the greedy."""

    ends: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    policies: tuple[str, ...]
    cap: int
    split: bool
    backward_first: bool
    spare: int
    weights: str = "flush"


@dataclass
class Run:
    """The greedy at work on one candidate."""

    candidate: Candidate
    choice: Choice
    most_s: float
    now: float = 0.0
    started: int = 0
    orders: list[list[Op]] = field(default_factory=list)

    def __post_init__(self) -> None:
        case, costs = self.candidate.problem, self.candidate.costs
        cluster, self.batches = case.cluster, case.workload.micro_batches
        self.cluster, self.count = cluster, len(self.candidate.stages)
        self.speed = [d.kind.speed for d in cluster.devices]
        self.f, self.b = costs.forward_s.tolist(), costs.backward_s.tolist()
        self.i, self.w = costs.backward_input_s.tolist(), costs.backward_weight_s.tolist()
        self.stash, self.incoming = costs.stash_bytes.tolist(), costs.incoming_bytes.tolist()
        self.later = [min(a, h) for a, h in zip(self.stash, costs.weight_stash_bytes.tolist(), strict=True)]
        self.splits = [can and self.choice.split for can in costs.separable]
        self.sent = boundaries(costs, self.count)
        self.room = rooms(self.candidate, self.choice.spare)
        self.busy = [0.0] * len(cluster.devices)
        self.links: dict[object, float] = {}
        self.orders = [[] for _ in cluster.devices]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.next_f, self.next_b, self.next_w = [0] * self.count, [0] * self.count, [0] * self.count
        self.came_f = [[s == 0] * self.batches for s in range(self.count)]
        self.came_b = [[False] * self.batches for _ in range(self.count)]
        self.ready = [[False] * self.batches for _ in range(self.count)]
        self.leaving: list[tuple[int, int]] = []
        self.hosted: list[tuple[int, int]] = []
        self.ended_i = [0] * self.count
        self.done, self.ahead = 0, [1] * self.count

    # ------------------------------------------------------------ time

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Something that happens then."""
        self.started += 1
        heapq.heappush(self.events, (when, self.started, what))

    def finished(self) -> bool:
        """Runs everything; False where it comes to a standstill or takes too long."""
        while True:
            while self._copies() or self._computes():
                pass
            if not self.events:
                return self.done == self.batches * self.count
            self.now = self.events[0][0]
            if self.now > self.most_s:
                return False
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()

    # ------------------------------------------------------------ links

    def _message(self, a: int, b: int, size: int, what: Callable[[], None]) -> None:
        """A tensor on its link, whenever that is free."""
        if a == b:
            what()
            return
        link = self.cluster.link(a, b)
        start = max(self.now, self.links.get((a, b), 0.0))
        self.links[a, b] = start + size / link.bandwidth
        self.at(start + size / link.bandwidth + link.latency_s, what)

    def _copies(self) -> bool:
        """Starts one stash on its way to its backward device, or back from the host."""
        choice = self.choice
        for s, m in sorted(self.leaving, key=lambda x: (x[1], -x[0])):
            a, b = choice.forward[s], choice.backward[s]
            size = self._left(s)
            if self.links.get((a, b), 0.0) <= self.now and self.room[b] >= size:
                self.leaving.remove((s, m))
                self.room[b] -= size
                self.orders[a].append(Op(Kind.SEND_S, s, m, b))
                self.orders[b].append(Op(Kind.RECV_S, s, m, a))
                self._message(a, b, size, lambda s=s, m=m, a=a, size=size: self._left_behind(s, m, a, size))  # type: ignore[misc]
                return True
        for s, m in sorted(self.hosted, key=lambda x: (x[1], -x[0])):
            d, key = choice.backward[s], ("in", choice.backward[s])
            if m < self.next_b[s] + 2 and self.links.get(key, 0.0) <= self.now and self.room[d] >= self.stash[s]:
                self.hosted.remove((s, m))
                self.room[d] -= self.stash[s]
                self.links[key] = self.now + self._copy_s(s, d)
                self.orders[d].append(Op(Kind.FETCH, s, m))
                self.at(self.links[key], lambda s=s, m=m: self._arrived(s, m))  # type: ignore[misc]
                return True
        return False

    def _copy_s(self, s: int, device: int) -> float:
        link = self.cluster.node_groups[self.cluster.devices[device].node].host_link
        return float(self.stash[s] / link.bandwidth + link.latency_s)

    def _left(self, s: int) -> int:
        return int(self.incoming[s] if self.choice.policies[s] == RECOMPUTE else self.stash[s])

    def _left_behind(self, s: int, m: int, device: int, size: int) -> None:
        self.room[device] += size
        self.orders[device].append(Op(Kind.FREE, s, m))
        self._arrived(s, m)

    def _copied(self, s: int, m: int) -> None:
        device = self.choice.forward[s]
        self.room[device] += self.stash[s]
        self.orders[device].append(Op(Kind.FREE, s, m))
        self.hosted.append((s, m))

    def _arrived(self, s: int, m: int) -> None:
        self.ready[s][m] = True

    # ------------------------------------------------------------ compute

    def _computes(self) -> bool:
        """Starts the most urgent op that a free device can run."""
        best: tuple[tuple[float, ...], str, int] | None = None
        for s in range(self.count):
            for kind, m in (("B", self.next_b[s]), ("F", self.next_f[s]), ("W", self.next_w[s])):
                if m < self.batches and self._can(kind, s, m):
                    rank = 2.0 if kind == "W" else float((kind == "F") == self.choice.backward_first)
                    key = (rank, m, -s) if rank == 2 or self.choice.backward_first else (m, rank, -s)
                    best = min(best, (key, kind, s)) if best is not None else (key, kind, s)
        if best is None:
            return False
        _, kind, s = best
        {"F": self._forward, "B": self._backward, "W": self._weights}[kind](s)
        return True

    def _can(self, kind: str, s: int, m: int) -> bool:
        choice = self.choice
        if kind == "F":
            d = choice.forward[s]
            return (
                self.busy[d] <= self.now and self.came_f[s][m] and self.room[d] >= self._left(s)
                and (s > 0 or m - self.next_b[0] < choice.cap)
            )  # fmt: skip
        d = choice.backward[s]
        if self.busy[d] > self.now:
            return False
        if kind == "W":
            return self.splits[s] and m < self.ended_i[s]
        grown = self.stash[s] if choice.policies[s] == RECOMPUTE else 0
        last = s == self.count - 1
        return self.ready[s][m] and (last or self.came_b[s][m]) and self.room[d] >= grown

    def _busy(self, device: int, seconds: float, then: Callable[[], None]) -> None:
        self.busy[device] = self.now + seconds / self.speed[device]
        self.at(self.busy[device], then)

    def _forward(self, s: int) -> None:
        choice, m, d = self.choice, self.next_f[s], self.choice.forward[s]
        self.next_f[s] += 1
        self.room[d] -= self._left(s)
        self.ahead[s] = max(self.ahead[s], m - self.next_b[s] + 1)
        self.orders[d].append(Op(Kind.F, s, m))

        def ended() -> None:
            if s + 1 < self.count:
                self._message(d, choice.forward[s + 1], self.sent[s], lambda: self._came(self.came_f, s + 1, m))
            if choice.policies[s] == OFFLOAD:
                key = ("out", d)
                start = max(self.now, self.links.get(key, 0.0))
                self.links[key] = start + self._copy_s(s, d)
                self.orders[d].append(Op(Kind.OFFLOAD, s, m))
                self.at(self.links[key], lambda: self._copied(s, m))
            elif choice.backward[s] != d:
                self.leaving.append((s, m))
            else:
                self._arrived(s, m)

        self._busy(d, self.f[s], ended)

    def _came(self, where: list[list[bool]], s: int, m: int) -> None:
        where[s][m] = True

    def _backward(self, s: int) -> None:
        choice, m, d = self.choice, self.next_b[s], self.choice.backward[s]
        self.next_b[s] += 1
        seconds, again = self.i[s] if self.splits[s] else self.b[s], choice.policies[s] == RECOMPUTE
        if again:
            self.room[d] -= self.stash[s]
            seconds += self.f[s]
            self.orders[d].append(Op(Kind.R, s, m))
        self.orders[d].append(Op(Kind.I if self.splits[s] else Kind.B, s, m))

        def ended() -> None:
            self.room[d] += self.stash[s] + (self.incoming[s] if again else 0)
            if self.splits[s]:
                self.room[d] -= self.later[s]
                self.ended_i[s] += 1
            else:
                self.done += 1
            if s:
                self._message(d, choice.backward[s - 1], self.sent[s - 1], lambda: self._came(self.came_b, s - 1, m))

        self._busy(d, seconds, ended)

    def _weights(self, s: int) -> None:
        m, d = self.next_w[s], self.choice.backward[s]
        self.next_w[s] += 1
        self.orders[d].append(Op(Kind.W, s, m))

        def ended() -> None:
            self.room[d] += self.later[s]
            self.done += 1

        self._busy(d, self.w[s], ended)


def boundaries(costs: StageCosts, count: int) -> list[int]:
    """Bytes that leave every stage for the next."""
    sent = [0] * count
    for edge in costs.edges:
        sent[edge.producer] = max(sent[edge.producer], int(edge.bytes))
    return sent


def rooms(candidate: Candidate, spare: int) -> list[int]:
    """Bytes of every device for stashes, `spare` messages at each boundary left free."""
    problem, costs = candidate.problem, candidate.costs
    static, sent = static_bytes(candidate, costs), boundaries(costs, len(candidate.stages))
    work = costs.workspace_bytes.tolist()
    found = []
    for d, (device, parts) in enumerate(zip(problem.cluster.devices, static, strict=True)):
        here = [s for p in candidate.pipelines for s in range(len(sent)) if d in (p.forward[s], p.backward[s])]
        messages = max((sent[s] + (sent[s - 1] if s else 0) for s in here), default=0)
        rest = spare * messages + max((work[s] for s in here), default=0)
        found.append(problem.workload.memory_limit(device.kind.memory_bytes) - sum(parts.values()) - rest)
    return found


# ------------------------------------------------------------------ the search


def searched(case: Case, seconds: float, seed: int) -> Best:
    """The best plan of so many seconds of random search."""
    best, rng, until = Best(), random.Random(seed), time.monotonic() + seconds
    problem = Problem(case.model, case.cluster, case.workload)
    while time.monotonic() < until:
        here = start(case, rng)
        now = tried(problem, here, best)
        for _ in range(rng.choice((30, 100, 300))):
            if time.monotonic() >= until:
                break
            there = neighbour(case, here, rng)
            then = tried(problem, there, best)
            if then <= now * (1 + (rng.expovariate(1 / HOTTER) if rng.random() < 0.2 else 0.0)):
                here, now = there, then
    return best


def tried(problem: Problem, choice: Choice, best: Best) -> float:
    """The greedy's seconds for a choice, a micro-batch's share where there is no flush; offers what may be better."""
    stages = stages_of(problem.model, choice.ends)
    n = problem.workload.micro_batches
    pipeline = Pipeline(choice.forward, choice.backward, tuple(range(n)))
    candidate = Candidate(problem, stages, (pipeline,), (choice.policies,), choice.weights)
    flush = choice.weights == "flush"
    run = Run(candidate, choice, math.inf)
    if not run.finished():
        return math.inf
    seconds = run.now if flush else run.now / n
    # a run from empty to empty takes longer than its micro-batches' periods
    if seconds < best.seconds * (1.02 if flush else 2):
        orders = [without_last_frees(order) for order in run.orders]
        if not flush:
            orders = with_returns(candidate, orders, [n + 1 for n in run.ahead])
        simulated(candidate, orders, "random search", best)
    return seconds


def without_last_frees(order: list[Op]) -> list[Op]:
    """An order without the FREEs that nothing waits for."""
    last = max((k for k, op in enumerate(order) if op.kind in (Kind.F, Kind.RECV_S, Kind.FETCH, Kind.R)), default=-1)
    return [op for k, op in enumerate(order) if op.kind is not Kind.FREE or k < last]


def start(case: Case, rng: random.Random) -> Choice:
    """Stages of least load on one device each, or on two of them each, back and forth or round and round."""
    layers, devices = len(case.model.layers), len(case.cluster)
    used = min(devices, layers)
    count = rng.choice([used, used, used, *(2 * used for _ in range(2) if 2 * used <= layers), max(1, used // 2)])
    lap = list(range(min(count, used)))
    route = (lap + (lap[::-1] if rng.random() < 0.5 else lap))[:count]
    back = route[:]
    if case.space.separate_backward and rng.random() < 0.4:
        shift = rng.randrange(devices)
        back = [(d + shift) % devices for d in route] if rng.random() < 0.5 else [devices - 1 - d for d in route]
    ordered = [case.model.layers[k] for k in case.model.topological]
    ends = cut([x.forward_s + x.backward_s for x in ordered], [1.0] * count)
    policy = rng.choice(allowed(case))
    upto = rng.randint(0, count)
    weights = rng.choice(case.space.asynchronous) if case.space.asynchronous else "flush"
    found = Choice(
        tuple(ends), tuple(route), tuple(back), tuple(policy if s < upto else KEEP for s in range(count)),
        rng.choice(CAPS), case.space.split_backward and rng.random() < 0.5, rng.random() < 0.7, rng.choice((0, 1, 2)),
        weights,
    )  # fmt: skip
    return repaired(case, found)


def allowed(case: Case) -> list[str]:
    """Policies that the greedy knows; shipping there and back is what `by_hand` does."""
    return [KEEP, *priced(Problem(case.model, case.cluster, case.workload), case.space)]


def repaired(case: Case, choice: Choice) -> Choice:
    """The same without what the planner's plans do not have: a stash offloaded on a stage of two nodes."""
    same = case.cluster.same_node
    policies = tuple(
        KEEP if p == OFFLOAD and a != b and not same(a, b) else p
        for p, a, b in zip(choice.policies, choice.forward, choice.backward, strict=True)
    )
    return replace(choice, policies=policies)


def neighbour(case: Case, choice: Choice, rng: random.Random) -> Choice:
    """One or two things changed."""
    forward, backward, policies = list(choice.forward), list(choice.backward), list(choice.policies)
    ends, other = list(choice.ends), choice
    devices, count = len(case.cluster), len(forward)
    for _ in range(rng.choice((1, 1, 2))):
        s, what = rng.randrange(count), rng.random()
        if what < 0.45:
            d = rng.randrange(devices)
            sides = (forward, backward)
            if not case.space.separate_backward or rng.random() < 0.25:
                forward[s] = backward[s] = d
            else:
                rng.choice(sides)[s] = d
        elif what < 0.65:
            policies[s] = rng.choice(allowed(case))
        elif what < 0.8 and count > 1:
            k = rng.randrange(1, count)
            ends[k] = min(ends[k + 1] - 1, max(ends[k - 1] + 1, ends[k] + rng.choice((-1, 1))))
        elif what < 0.95:
            other = replace(other, cap=rng.choice(CAPS), spare=rng.choice((0, 1, 2)))
        else:
            split = case.space.split_backward and rng.random() < 0.5
            other = replace(other, backward_first=rng.random() < 0.7, split=split)
    return repaired(
        case,
        replace(
            other, ends=tuple(ends), forward=tuple(forward), backward=tuple(backward), policies=tuple(policies)
        ),
    )  # fmt: skip
