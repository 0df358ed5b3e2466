"""A candidate as the bounds see it: what every micro-batch of a pipeline asks of every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..basics import check_time
from ..graph import Candidate, StashPolicy, holders, ship_target, stash_policy, static_bytes, step_seconds
from ..plan import Kind, Pipeline
from .knapsack import Option
from .times import Lag, Times, finishes, lags, message_cache


@dataclass(frozen=True)
class Item:
    """F, R, I and W of one micro-batch of one pipeline and stage on the device that runs them.

    policy: the row of its stash's. forward, remake, inputs, weights: seconds. stash, after: bytes from F (or R) to the
    end of I, and to the end of W. left: bytes that F leaves. waiting: bytes certainly held from the start of F to the
    end of I. area: byte-seconds at least in all. running: bytes besides the stash while F, and while I, runs. finish:
    seconds after its W at the least. first_f, first_i, trip, rest: as in Times.
    """

    pipeline: int
    stage: int
    policy: StashPolicy
    forward: float
    remake: float
    inputs: float
    weights: float
    stash: int
    after: int
    left: int
    waiting: int
    area: float
    running: tuple[int, int]
    finish: float
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
        if self.policy.remade:
            return (self.waiting, self.forward), (self.stash, self.forward + self.remake)
        return ((self.waiting, self.forward),)

    @cached_property
    def behind(self) -> tuple[Option, ...]:
        """States after the last F of a device: bytes held, and the work left."""
        left = self.inputs + self.weights
        if self.policy.remade:
            return (self.waiting, self.remake + left), (self.stash, left), (self.after, self.weights)
        return (self.waiting, left), (self.after, self.weights)


_Sizes = tuple[list[tuple[Kind, Kind, list[int]]], list[int], list[int]]


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
        owners = holders(candidate)
        for stage, devices in owners.items():
            for device in devices:
                self.steps[device] += step_seconds(candidate, costs, stage, device, owners)
        self.items: list[list[Item]] = [[] for _ in self.room]
        self.separate = [False] * len(self.room)
        self.chain = all((s, s + 1) in self._edges for s in range(len(candidate.stages) - 1))
        self.round_s: list[float] = []
        self._known: dict[StashPolicy, _Sizes] = {}
        self._fill(candidate)

    @cached_property
    def _edges(self) -> set[tuple[int, int]]:
        return {(edge.producer, edge.consumer) for edge in self.candidate.costs.edges}

    @cached_property
    def _running(self) -> list[tuple[int, int]]:
        """Bytes besides the stash while F, and while B or I, of a stage runs (planner.memory)."""
        costs = self.candidate.costs
        first = costs.workspaces.forward.tolist()
        second = np.minimum(costs.workspaces.backward, costs.workspaces.inputs).tolist()
        for producer, consumer, size in costs.edges:
            first[producer] += size
            second[producer] += size
            second[consumer] += size
        return list(zip(first, second, strict=True))

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
                self._add(number, pipeline, stage, policy, finish)

    def lag(self, pipeline: int, device: int) -> Lag:
        """Delays between the stages of one pipeline on one device."""
        return lags(self.candidate, self.candidate.pipelines[pipeline], self.times[pipeline], device)

    def _add(self, number: int, pipeline: Pipeline, s: int, policy: str, finish: Callable[[int, int], float]) -> None:
        times, costs, row = self.times[number], self.candidate.costs, stash_policy(policy)
        a, b = pipeline.forward[s], pipeline.backward[s]
        f, i, w, stash = times.forward[s], times.inputs[s], times.weights[s], int(costs.stash_bytes[s])
        speed = self.candidate.problem.cluster.devices[b].kind.speed
        remake = float(row.remake_s(costs)[s]) / speed if row.remade else 0.0
        out, away, back = self._moving_seconds(row, policy, s, b)
        trip = max(times.trip[s], out + away + back + remake)
        after = min(stash, int(costs.weight_stash_bytes[s])) if w > 0 else 0
        held, all_along, _ = self._sizes(row)
        waiting = all_along[s]
        more = 0.0
        if row.ops:
            least = {Kind.F: f + out, Kind.OFFLOAD: away, Kind.SEND_S: away, Kind.FETCH: back, Kind.RECV_S: back}
            least[Kind.R] = remake
            for begin, end, size in held:
                if size[s] > waiting:
                    more += (size[s] - waiting) * (least[begin] + (i if end is Kind.B else 0.0))
        item = Item(
            pipeline=number,
            stage=s,
            policy=row,
            forward=f,
            remake=remake,
            inputs=i,
            weights=w,
            stash=stash,
            after=after,
            left=held[0][2][s],
            waiting=waiting,
            area=waiting * (f + trip + i) + more + after * w,
            running=self._running[s],
            finish=finish(s, b),
            first_f=times.first_f[s],
            first_i=max(times.first_i[s], times.first_f[s] + f + trip),
            trip=trip,
            rest=times.rest[s],
        )
        if a != b:
            self.separate[a] = self.separate[b] = True
            lone = replace(item, remake=0.0, inputs=0.0, weights=0.0, stash=0, after=0, left=0, waiting=0, area=0.0)
            self.items[a].append(replace(lone, finish=trip + i + item.rest))
            item = replace(item, forward=0.0, first_f=item.first_f + f, waiting=0)
        self.items[b].append(item)

    def _sizes(self, row: StashPolicy) -> _Sizes:
        """What the device holds from op to op, at most a stash, the least of it, and what leaves it, by stage."""
        if row not in self._known:
            costs = self.candidate.costs
            held = [(x, y, np.minimum(size, costs.stash_bytes)) for x, y, size in row.held_bytes(costs)]
            least = np.min([size for _, _, size in held], axis=0)
            moved = row.moved_bytes(costs).tolist()
            self._known[row] = [(x, y, size.tolist()) for x, y, size in held], least.tolist(), moved
        return self._known[row]

    def _moving_seconds(self, row: StashPolicy, policy: str, s: int, device: int) -> tuple[float, float, float]:
        """Seconds at the least that a stash is on its way out, gone, and on its way back; 0 where it never leaves."""
        cluster = self.candidate.problem.cluster
        if not row.leaves:
            return 0.0, 0.0, 0.0
        peer, size = ship_target(policy) if row.names_device else None, self._sizes(row)[2][s]
        host = cluster.node_groups[cluster.devices[device].node].host_link
        out, back = (host, host) if peer is None else (cluster.link(device, peer), cluster.link(peer, device))
        return out.occupation_s(size), out.latency_s, back.occupation_s(size) + back.latency_s
