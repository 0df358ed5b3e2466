"""A candidate as the bounds see it: what every micro-batch of a pipeline asks of every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..basics import check_time
from ..graph import KEEP as KEPT
from ..graph import RECOMPUTE as RECOMPUTED
from ..graph import Candidate, holders, ship_target, stash_policy, static_bytes, step_seconds
from ..plan import Pipeline
from ..problem import Link
from .knapsack import Option
from .times import Lag, Times, finishes, lags, message_cache

KEEP, RECOMPUTE, AWAY = 0, 1, 2


@dataclass(frozen=True)
class Item:
    """F, R, I and W of one micro-batch of one pipeline and stage on the device that runs them.

    forward, remake, inputs, weights: seconds. stash, after: bytes from F (or R) to the end of I, and to the end
    of W. waiting: bytes certainly held from the start of F to the end of I. area: byte-seconds at least in all.
    running: bytes besides the stash while F, and while I, runs. closing: seconds after its W at the least.
    first_f, first_i, trip, rest: as in Times.
    """

    pipeline: int
    stage: int
    policy: int
    forward: float
    remake: float
    inputs: float
    weights: float
    stash: int
    after: int
    waiting: int
    area: float
    running: tuple[int, int]
    closing: float
    first_f: float
    first_i: float
    trip: float
    rest: float

    @property
    def work(self) -> float:
        """Seconds of all ops."""
        return self.forward + self.remake + self.inputs + self.weights

    @cached_property
    def ahead(self) -> tuple[Option, ...]:
        """States before the first I of a device: work done, and the bytes it holds."""
        if self.policy == RECOMPUTE:
            return (self.waiting, self.forward), (self.stash, self.forward + self.remake)
        return ((self.waiting, self.forward),)

    @cached_property
    def behind(self) -> tuple[Option, ...]:
        """States after the last F of a device: bytes held, and the work left."""
        left = self.inputs + self.weights
        if self.policy == RECOMPUTE:
            return (self.waiting, self.remake + left), (self.stash, left), (self.after, self.weights)
        return (self.waiting, left), (self.after, self.weights)


class Asked:
    """The items of every device, its free bytes, and seconds of its optimizer steps.

    `split`: whether backwards may be split. `limits`: bytes a device; None: those of the problem.
    """

    def __init__(self, candidate: Candidate, split: bool, limits: Sequence[int] | None) -> None:
        self.candidate, self.split = candidate, split
        problem, costs = candidate.problem, candidate.costs
        if limits is None:
            limits = [problem.workload.memory_limit(d.kind.memory_bytes) for d in problem.cluster.devices]
        fixed = [sum(parts.values()) for parts in static_bytes(candidate, costs)]
        self.room = [limit - taken for limit, taken in zip(limits, fixed, strict=True)]
        self.steps = [0.0] * len(problem.cluster)
        for stage, devices in holders(candidate).items():
            for device in devices:
                self.steps[device] += step_seconds(candidate, costs, stage, device)
        self.items: list[list[Item]] = [[] for _ in self.room]
        self.apart = [False] * len(self.room)
        self.chain = all((s, s + 1) in self._edges for s in range(len(candidate.stages) - 1))
        self.round_s: list[float] = []
        self._fill(candidate)

    @cached_property
    def _edges(self) -> set[tuple[int, int]]:
        return {(edge.producer, edge.consumer) for edge in self.candidate.costs.edges}

    @cached_property
    def _running(self) -> list[tuple[int, int]]:
        """Bytes besides the stash while F, and while B or I, of a stage runs (planner.memory)."""
        costs = self.candidate.costs
        first, second = costs.workspace_bytes.tolist(), costs.workspace_bytes.tolist()
        for producer, consumer, size in costs.edges:
            first[producer] += size
            second[producer] += size
            second[consumer] += size
        return list(zip(first, second, strict=True))

    @cached_property
    def _incoming(self) -> list[int]:
        """Bytes of the tensors that a stage takes, which recompute keeps."""
        total: list[int] = self.candidate.costs.input_bytes.tolist()
        for _, consumer, size in self.candidate.costs.edges:
            total[consumer] += size
        return total

    def _fill(self, candidate: Candidate) -> None:
        seconds, finish = message_cache(candidate), finishes(candidate)
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], Times] = {}
        self.times: list[Times] = []
        for number, pipeline in enumerate(candidate.pipelines):
            check_time()
            key = (pipeline.forward, pipeline.backward)
            if key not in found:
                found[key] = Times.of(candidate, pipeline, self.split, seconds, finish)
            times = found[key]
            self.times.append(times)
            ends = zip(times.first_i, times.inputs, times.rest, strict=True)
            self.round_s.append(max(first + own + rest for first, own, rest in ends))
            for stage, policy in enumerate(candidate.stash[number]):
                self._add(number, pipeline, stage, policy, times, finish)

    def lag(self, pipeline: int, device: int) -> Lag:
        """Delays between the stages of one pipeline on one device."""
        return lags(self.candidate, self.candidate.pipelines[pipeline], self.times[pipeline], device)

    def _add(
        self,
        number: int,
        pipeline: Pipeline,
        s: int,
        policy: str,
        times: Times,
        finish: Callable[[int, int], float],
    ) -> None:
        a, b = pipeline.forward[s], pipeline.backward[s]
        f, i, w, costs = times.forward[s], times.inputs[s], times.weights[s], self.candidate.costs
        stash = int(costs.stash_bytes[s])
        after = min(stash, int(costs.weight_stash_bytes[s])) if w > 0 else 0
        kind, remake, waiting, trip = KEEP, 0.0, stash, times.trip[s]
        area = stash * (f + trip + i)
        fate = stash_policy(policy).name
        if fate == RECOMPUTED:
            speed = self.candidate.problem.cluster.devices[b].kind.speed
            remake = float(costs.forward_s[s]) / speed
            kind, waiting, trip = RECOMPUTE, min(stash, self._incoming[s]), max(trip, remake)
            area = waiting * (f + trip + i) + (stash - waiting) * (remake + i)
        elif fate != KEPT:  # to the host, or to another device
            out, back = self._copy_links(policy, b)
            kind, waiting = AWAY, 0
            copied = out.occupation_s(stash) + back.occupation_s(stash) + back.latency_s
            trip = max(trip, copied + out.latency_s)
            area = stash * (f + i + copied)
        area += after * w
        first_f, first_i = times.first_f[s], max(times.first_i[s], times.first_f[s] + f + trip)
        closing, running, rest = finish(s, b), self._running[s], times.rest[s]
        if a != b:
            self.apart[a] = self.apart[b] = True
            after_f = trip + i + rest
            lone = Item(number, s, kind, f, 0.0, 0.0, 0.0, 0, 0, 0, 0.0, running, after_f, first_f, first_i, trip, rest)
            self.items[a].append(lone)
            f, first_f, waiting = 0.0, first_f + f, 0
        item = Item(
            number,
            s,
            kind,
            f,
            remake,
            i,
            w,
            stash,
            after,
            waiting,
            area,
            running,
            closing,
            first_f,
            first_i,
            trip,
            rest,
        )
        self.items[b].append(item)

    def _copy_links(self, policy: str, device: int) -> tuple[Link, Link]:
        """The links on which a stash leaves the device and comes back."""
        cluster = self.candidate.problem.cluster
        peer = ship_target(policy)
        if peer is not None:
            return cluster.link(device, peer), cluster.link(peer, device)
        link = cluster.node_groups[cluster.devices[device].node].host_link
        return link, link
