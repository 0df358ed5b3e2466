"""Cutting a chain of layers into contiguous stages by dynamic programming.

Layers are taken in topological order; a cut before layer i separates layers 0..i-1 from the rest. The cost of
a stage that holds layers i..j-1 is a matrix entry [i, j], so that one step of the programme is one numpy
minimum (Bellman's recursion for partitioning a sequence; memory as in PipeDream, arXiv:1806.03377).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from ..basics import PerCall, check_time
from ..graph import Candidate, StageCosts, holders, static_bytes, step_seconds, training_bytes
from ..plan import Pipeline, Problem
from ..problem import Cluster, DeviceType, part_bytes
from .stash_sums import StashSums

Floats = NDArray[np.float64]
Cuts = tuple[int, ...]
Stages = tuple[tuple[str, ...], ...]
_TABLES = 4
"""So many tables of stages are held at once: one has the square of the layers."""


@dataclass(frozen=True)
class Chain:
    """The layers of a problem in topological order, and the costs of every interval of them.

    Attributes:
        names: layer names in topological order, L of them.
        costs: costs of every layer on its own (stage = layer), without what ops cost beside their layers.
        static_bytes: bytes of every layer that stay all step, alone and with a replica elsewhere: shape (2, L).
        optimizer_bytes: of these alone, what its replicas share out among them.
        shared_bytes: at most so many of these are counted twice when tied layers meet on one device.
        found: cuts by what they were asked for, so that nobody looks for the same one twice.
        steps_s: `step_s` by kind of device.
    """

    problem: Problem
    names: tuple[str, ...]
    costs: StageCosts
    static_bytes: Floats
    optimizer_bytes: Floats
    shared_bytes: float
    found: dict[object, Cuts | None] = field(default_factory=dict, compare=False, repr=False)
    steps_s: dict[DeviceType, Floats] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, problem: Problem) -> Chain:
        """The chain of a problem's layers; static bytes are those of `graph.static_bytes`. One a call and problem."""
        return _chains.get(problem, "", lambda: cls._of(problem))

    @classmethod
    def _of(cls, problem: Problem) -> Chain:
        model = problem.model
        names = tuple(model.layers[position].name for position in model.topological)
        single = _on_devices(problem, tuple((name,) for name in names), replicas=1)
        double = _on_devices(problem, single.stages, replicas=2)
        whole = _on_devices(problem, (names,), replicas=1)
        static = np.array([_totals(single), _totals(double)[: len(names)]], dtype=float)
        return cls(
            problem, names, single.costs, static, _shared_out(single), float(static[0].sum() - _totals(whole)[0])
        )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def load_s(self) -> Floats:
        """Seconds at speed 1 of F and B of all layers before each cut: length L + 1."""
        return _prefix(self.costs.forward_s + self.costs.backward_s)

    @cached_property
    def boundary_bytes(self) -> Floats:
        """Bytes of activations that cross each cut, every producer once: length L + 1."""
        last = np.arange(len(self), dtype=np.int64)
        sizes = np.zeros(len(self))
        for producer, consumer, size in self.costs.edges:
            last[producer] = max(last[producer], consumer)
            sizes[producer] = max(sizes[producer], size)
        change = np.zeros(len(self) + 1)
        for producer, end in enumerate(last):
            change[producer + 1] += sizes[producer] if end > producer else 0
            if end > producer:
                change[end + 1 if end < len(self) else end] -= sizes[producer] if end < len(self) else 0
        return np.cumsum(change)

    @cached_property
    def stash(self) -> StashSums:
        """Stashes of the layers as stages have them."""
        return StashSums.of(self.costs.stash_bytes, self._twice("bytes"))

    def weight_stash(self, halves: NDArray[np.bool_]) -> StashSums:
        """What stages hold from I to W of those layers whose backwards are halves."""
        return StashSums.of(np.where(halves, self.costs.weight_stash_bytes, 0), self._twice("weight_bytes", halves))

    def _twice(self, key: str, of: NDArray[np.bool_] | None = None) -> list[tuple[int, int, int]]:
        """Positions of two layers, and bytes that both keep."""
        rank = {name: number for number, name in enumerate(self.names)}
        ends = [(rank[x.first], rank[x.second], getattr(x, key)) for x in self.problem.model.kept_twice]
        return [(a, b, size) for a, b, size in ends if of is None or (of[a] and of[b])]

    @cached_property
    def workspace_bytes(self) -> Floats:
        """Workspace of every interval [i, j) of layers: the maximum of its layers; shape (L + 1, L + 1)."""
        count = len(self)
        table = np.zeros((count + 1, count + 1))
        rows = np.broadcast_to(self.costs.workspace_bytes.astype(float), (count, count))
        table[:count, 1:] = np.maximum.accumulate(np.triu(rows), axis=1)
        return table

    @cached_property
    def around_s(self) -> Floats:
        """Seconds at speed 1 of an F, or a B, of every interval [i, j) as a stage beside its layers; (L + 1, L + 1).

        With a message where tensors cross its begin and one where they cross its end: of a chain's cuts exact, of any
        other graph's at the most that is sure.
        """
        overhead, count = self.problem.cluster.around, len(self)
        table = np.full((count + 1, count + 1), overhead.op_s)
        if overhead.message_s:
            enters, leaves = np.zeros_like(table), np.zeros_like(table)
            for a, b, _ in self.costs.edges:
                enters[a + 1 : b + 1, b + 1 :] = leaves[: a + 1, a + 1 : b + 1] = overhead.message_s
            table = table + enters + leaves
        return np.where(np.tri(count + 1, dtype=bool), 0.0, table)

    @cached_property
    def seconds(self) -> Floats:
        """F and B of every interval at speed 1, infinite where it is empty; shape (L + 1, L + 1)."""
        table = self.load_s[None, :] - self.load_s[:, None] + 2 * self.around_s
        return np.where(np.tri(len(self) + 1, dtype=bool), np.inf, table)

    @cached_property
    def copies(self) -> tuple[tuple[int, NDArray[np.int64]], ...]:
        """Of every group of tied layers: bytes of one trained copy, and the members in every interval [i, j)."""
        found = []
        for tie in self.costs.ties:
            before = np.searchsorted(tie.stages, np.arange(len(self) + 1))
            size = sum(training_bytes(self.problem.workload, tie.bytes, tie.tensors, tie.trained_bytes).values())
            found.append((size, np.maximum(before[None, :] - before[:, None], 0)))
        return tuple(found)

    def held_bytes(self, replicas: int) -> Floats:
        """Bytes of every layer that stay all step where its stage has so many trained replicas."""
        more = 0.5 - 1 / replicas if replicas > 1 else 0.0
        return np.asarray(self.static_bytes[1 if replicas > 1 else 0] - more * self.optimizer_bytes)

    def bytes(self, in_flight: int, buffers: int = 2, replicas: int = 1) -> Floats:
        """Memory of every interval as a stage with so many stashes and tensors at each boundary."""
        static = _prefix(self.held_bytes(replicas))
        table = static[None, :] - static[:, None] + in_flight * self.stash.table + self.workspace_bytes
        if buffers:
            table += buffers * (self.boundary_bytes[None, :] + self.boundary_bytes[:, None])
        for size, members in self.copies:
            table -= size * np.maximum(members - 1, 0)
        return table

    def limit(self, device: int) -> int:
        """Bytes that a device may fill."""
        memory = self.problem.cluster.devices[device].kind.memory_bytes
        return self.problem.workload.memory_limit(memory)

    def speed(self, device: int) -> float:
        """Speed of a device: layer times are divided by it."""
        return self.problem.cluster.devices[device].kind.speed

    def step_s(self, device: int) -> Floats:
        """Seconds of the optimizer step on a device of all layers before each cut."""
        kind = self.problem.cluster.devices[device].kind
        if kind not in self.steps_s:
            bare = replace(self.problem, cluster=replace(self.problem.cluster, overhead=None))  # which is a stage's
            one = Candidate(bare, tuple((name,) for name in self.names), ())
            owners = holders(one)
            steps = [step_seconds(one, self.costs, k, device, owners) for k in range(len(self))]
            self.steps_s[kind] = _prefix(np.array(steps))
        return self.steps_s[kind]

    def stages(self, cuts: Cuts) -> Stages:
        """Layer names of the stages between the cuts (those inside the chain, ascending)."""
        ends = (0, *cuts, len(self))
        return tuple(self.names[a:b] for a, b in pairwise(ends))

    def cuts_into(self, stages: Stages) -> bool:
        """Whether these stages, whatever the order of the layers in each, are some cut of this chain."""
        ends = (0, *accumulate(map(len, stages)))
        return ends[-1] == len(self) and all(
            set(self.names[a:b]) == set(stage) for (a, b), stage in zip(pairwise(ends), stages, strict=True)
        )


_chains: PerCall[Chain] = PerCall()


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _on_devices(problem: Problem, stages: Stages, replicas: int) -> Candidate:
    """Every stage on a device of its own, so that static_bytes tells what each costs."""
    count = len(stages)
    lanes = [tuple(range(r * count, (r + 1) * count)) for r in range(replicas)]
    spread = replace(problem, cluster=replace(Cluster.uniform(count * replicas), team=problem.cluster.team))
    return Candidate(spread, stages, tuple(Pipeline(lane, lane, (r,)) for r, lane in enumerate(lanes)))


def _shared_out(candidate: Candidate) -> Floats:
    """Bytes of optimizer state of every stage, its counters left out, where replicas share it; else nothing."""
    workload, trained = candidate.problem.workload, candidate.costs.own_trained_bytes
    parts = workload.parts(1)
    found = [workload.optimizer_bytes(part_bytes(int(size), parts)) * workload.sharded for size in trained]
    return np.array(found, dtype=float)


def _totals(candidate: Candidate) -> list[int]:
    return [sum(parts.values()) for parts in static_bytes(candidate, candidate.costs)]


# ------------------------------------------------------------------ the dynamic programmes


def bottleneck(tables: Iterable[Floats], size: int) -> tuple[float, list[NDArray[np.intp]]]:
    """min over partitions of the maximum of tables[s][i, j] over the stages, and the choices that reach it.

    Every table has shape (size, size), infinite where the interval is not allowed. The least of a column is found eight
    times as fast where columns lie together.
    """
    best, reached = np.full(size, np.inf), np.empty((size, size), order="F")
    best[0] = 0.0
    choices = []
    for table in tables:
        check_time()
        np.maximum(best[:, None], table, out=reached)
        choice = reached.argmin(axis=0)
        choices.append(choice)
        best = reached[choice, np.arange(size)]
    return float(best[-1]), choices


def _cheapest(tables: Iterable[Floats], size: int) -> tuple[float, list[NDArray[np.intp]]]:
    """As `bottleneck`, for the sum over the stages."""
    best, reached = np.full(size, np.inf), np.empty((size, size), order="F")
    best[0] = 0.0
    choices = []
    for table in tables:
        check_time()
        np.add(best[:, None], table, out=reached)
        choice = reached.argmin(axis=0)
        choices.append(choice)
        best = reached[choice, np.arange(size)]
    return float(best[-1]), choices


def trace(choices: Sequence[NDArray[np.intp]], last: int) -> Cuts:
    """The cuts behind a programme's choices, the last stage ending at layer `last`."""
    cuts = []
    for choice in reversed(choices[1:]):
        last = int(choice[last])
        cuts.append(last)
    return tuple(reversed(cuts))


def link_seconds(chain: Chain, devices: Sequence[int], stage: int) -> tuple[Floats, float]:
    """Occupation of the slower direction by the tensors entering a stage, per cut, and both latencies."""
    slow, latency_s = _link(chain, devices, stage)
    return chain.boundary_bytes / slow, latency_s


def _link(chain: Chain, devices: Sequence[int], stage: int) -> tuple[float, float]:
    """Bytes a second of the slower direction into a stage, infinite where it needs no link, and both latencies."""
    here, before = devices[stage], devices[stage - 1]
    if stage == 0 or here == before:
        return math.inf, 0.0
    there, back = chain.problem.cluster.link(before, here), chain.problem.cluster.link(here, before)
    return min(there.bandwidth, back.bandwidth), there.latency_s + back.latency_s


def cut(
    chain: Chain,
    devices_of_stage: Sequence[int],
    in_flight: Sequence[int],
    *,
    buffers: int = 2,
    share: float = 1.0,
    replicas: int = 1,
) -> Cuts | None:
    """The contiguous cut with the smallest bottleneck that fits the memory; None where none fits.

    Minimises first max over stages of max(compute of F and B on its device, occupation of the link into it),
    then the sum of communication seconds. Memory of stage s: static bytes + in_flight[s] stashes + workspace +
    `buffers` tensors at each boundary <= `share` of its device's limit.
    """
    key = "cut", tuple(devices_of_stage), tuple(in_flight), buffers, share, replicas
    if key not in chain.found:
        chain.found[key] = _cut(chain, devices_of_stage, in_flight, buffers, share, replicas)
    return chain.found[key]


def _cut(
    chain: Chain, devices_of_stage: Sequence[int], in_flight: Sequence[int], buffers: int, share: float, replicas: int
) -> Cuts | None:
    size = len(chain) + 1
    if len(devices_of_stage) >= size:
        return None

    def tables() -> Iterator[Floats]:
        return _loads(chain, devices_of_stage, in_flight, buffers, share, replicas)

    worst, choices = bottleneck(tables(), size)
    if math.isinf(worst):
        return None
    if not chain.boundary_bytes[1:-1].any():
        return trace(choices, size - 1)
    allowed = worst * (1 + 1e-12)

    def communication() -> Iterator[Floats]:
        for s, table in enumerate(tables()):
            slow, latency_s = _link(chain, devices_of_stage, s)
            yield np.where(table <= allowed, 2 * chain.boundary_bytes[:, None] / slow + latency_s, np.inf)

    return trace(_cheapest(communication(), size)[1], size - 1)


def _loads(
    chain: Chain,
    devices_of_stage: Sequence[int],
    in_flight: Sequence[int],
    buffers: int = 2,
    share: float = 1.0,
    replicas: int = 1,
) -> Iterator[Floats]:
    """Seconds a micro-batch of every interval as stage s, or of the link into it; infinite where it does not fit.

    Made once for stages that are alike, where few others come in between.
    """

    @lru_cache(maxsize=_TABLES)
    def made(slow: float, speed: float, room: float, stashes: int) -> Floats:
        table = np.maximum(chain.seconds / speed, (chain.boundary_bytes / slow)[:, None])
        table[chain.bytes(stashes, buffers, replicas) > room] = np.inf
        return np.asfortranarray(table)

    for s, device in enumerate(devices_of_stage):
        slow, _ = _link(chain, devices_of_stage, s)
        yield made(slow, chain.speed(device), share * chain.limit(device), in_flight[s])


def least_load(chain: Chain, devices_of_stage: Sequence[int], in_flight: Sequence[int], buffers: int = 2) -> float:
    """Seconds a micro-batch takes of the busiest device, or link, on `cut`'s cut; infinite where none fits."""
    size = len(chain) + 1
    if len(devices_of_stage) >= size:
        return math.inf
    return bottleneck(_loads(chain, devices_of_stage, in_flight, buffers), size)[0]


def lightest(
    chain: Chain, devices_of_stage: Sequence[int], in_flight: Sequence[int], *, buffers: int = 0
) -> tuple[Cuts, float] | None:
    """The cut with the smallest maximum over stages of memory / limit, and that ratio.

    With one stash in flight and no buffers a ratio above 1 proves that no plan with one stage a device fits:
    every stage holds its static bytes and at some instant one stash and its workspace. None when there are too few
    layers.
    """
    size = len(chain) + 1
    if len(devices_of_stage) >= size:
        return None
    empty = np.isinf(chain.seconds)

    def tables() -> Iterator[Floats]:
        for s, device in enumerate(devices_of_stage):
            table = np.maximum(chain.bytes(in_flight[s], buffers), 0.0) / max(chain.limit(device), 1e-9)
            table[empty] = np.inf
            yield table

    ratio, choices = bottleneck(tables(), size)
    return trace(choices, size - 1), ratio


def compositions(layers: int, stages: int, cap: int) -> list[Cuts] | None:
    """Every way to cut `layers` layers into non-empty stages; None when there are more than `cap`."""
    if stages > layers or math.comb(layers - 1, stages - 1) > cap:
        return None
    return list(combinations(range(1, layers), stages - 1))
