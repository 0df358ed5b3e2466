"""Cutting a layer graph into stages: the problem, free of any file format, and what a partition of it costs.

The first s stages together are always an order ideal of the graph (with a group all its predecessors), so the stages
are the differences of a chain of ideals. Costs are in one unit of time, whatever it is, and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import networkx

Bools = NDArray[np.bool_]
SLACK = 1 + 1e-12
"""Sums of bytes that are over a limit by less are rounding."""


@dataclass(frozen=True)
class Lean:
    """Another way to run a group: usually slower, with less memory."""

    work: float
    static_bytes: float
    in_flight_bytes: float


@dataclass(frozen=True)
class Group:
    """Layers that are always together.

    Attributes:
        work: time on an accelerator; infinite when it cannot run there.
        cpu_work: time on a CPU.
        static_bytes: memory it takes on an accelerator, whatever is in flight.
        in_flight_bytes: memory it takes for every micro-batch in flight: one for each accelerator from here on.
        lean: the other way to run it, if there is one.
    """

    work: float
    cpu_work: float = math.inf
    static_bytes: float = 0.0
    in_flight_bytes: float = 0.0
    lean: Lean | None = None

    @property
    def least(self) -> float:
        """The least time it takes anywhere."""
        return min(self.work, self.cpu_work, self.lean.work if self.lean is not None else math.inf)


@dataclass(frozen=True)
class Tensor:
    """What a group sends to others: `cost` is the time on a link, once for all targets in one place."""

    source: int
    targets: frozenset[int]
    cost: float


@dataclass(frozen=True)
class Block:
    """One stage: its groups, whether a CPU runs it, and which groups run lean."""

    groups: tuple[int, ...]
    cpu: bool = False
    lean: frozenset[int] = frozenset()


Partition = tuple[Block, ...]


@dataclass(frozen=True)
class GraphProblem:
    """Groups in a topological order, their order, and the devices.

    Attributes:
        edges: pairs (before, after) of positions in `groups`.
        accelerators, cpus: how many there are; every stage is on one, a device has at most one stage.
        every: exactly so many stages as accelerators, none of them empty; otherwise at most.
        limit_bytes: memory of an accelerator.
        overlap: a stage's load is the largest of its work and the tensors that cross each of its two cuts, those
            that pass by included; otherwise work plus every tensor that leaves it or enters it, which is the load
            of an accelerator, while a CPU's is its work.
    """

    groups: tuple[Group, ...]
    edges: tuple[tuple[int, int], ...]
    tensors: tuple[Tensor, ...]
    accelerators: int
    cpus: int = 0
    every: bool = False
    limit_bytes: float = math.inf
    overlap: bool = False

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def stages(self) -> int:
        """The most stages there can be."""
        return self.accelerators + self.cpus

    @cached_property
    def graph(self) -> networkx.DiGraph[int]:
        """The order without the edges that follow from others."""
        import networkx

        direct: list[set[int]] = [set() for _ in self.groups]
        for source, target in self.edges:
            direct[target].add(source)
        graph: networkx.DiGraph[int] = networkx.DiGraph()
        graph.add_nodes_from(range(len(self)))
        ancestors: list[int] = []  # of every group, itself included, as bits
        for target, sources in enumerate(direct):
            known = 0
            for source in sorted(sources, reverse=True):  # whoever comes through a later one has been seen by then
                if not known >> source & 1:
                    graph.add_edge(source, target)
                    known |= ancestors[source]
            ancestors.append(known | 1 << target)
        return graph

    @cached_property
    def before(self) -> Bools:
        """Is group b before or equal to group a? Shape (groups, groups), row a, column b."""
        table: Bools = np.eye(len(self), dtype=bool)
        for target in range(len(self)):
            for source in self.graph.predecessors(target):
                table[target] |= table[source]
        return table


def load(problem: GraphProblem, partition: Sequence[Block], stage: int) -> float:
    """Time of one stage of a partition, in the problem's unit."""
    block = partition[stage]
    inside = set(block.groups)
    if block.cpu:
        return math.fsum(problem.groups[g].cpu_work for g in block.groups)
    work = math.fsum(_way(problem.groups[g], g in block.lean).work for g in block.groups)
    if problem.overlap:
        done = {g for earlier in partition[:stage] for g in earlier.groups}
        return max(work, _cut(problem, done), _cut(problem, done | inside))
    moved = (t.cost for t in problem.tensors if any((d in inside) != (t.source in inside) for d in t.targets))
    return work + math.fsum(moved)


def objective(problem: GraphProblem, partition: Partition) -> float:
    """The largest load of a stage; infinite when the partition breaks a rule (order, devices, memory)."""
    place = {g: s for s, block in enumerate(partition) for g in block.groups}
    accelerated = [s for s, block in enumerate(partition) if not block.cpu]
    counts = (len(accelerated), len(partition) - len(accelerated))
    if len(place) < len(problem) or any(place[a] > place[b] for a, b in problem.edges):
        return math.inf
    if counts[0] > problem.accelerators or counts[1] > problem.cpus or not all(b.groups for b in partition):
        return math.inf
    if problem.every and counts != (problem.accelerators, 0):
        return math.inf
    for left, s in enumerate(reversed(accelerated), start=1):
        if memory(problem, partition[s], left) > problem.limit_bytes * (1 + 1e-12):
            return math.inf
    return max(load(problem, partition, s) for s in range(len(partition)))


def memory(problem: GraphProblem, block: Block, in_flight: int) -> float:
    """Bytes of an accelerator with this block and so many micro-batches in flight."""
    ways = [_way(problem.groups[g], g in block.lean) for g in block.groups]
    return math.fsum(way.static_bytes + in_flight * way.in_flight_bytes for way in ways)


def _way(group: Group, lean: bool) -> Group | Lean:
    return group.lean if lean and group.lean is not None else group


def _cut(problem: GraphProblem, done: set[int]) -> float:
    return math.fsum(t.cost for t in problem.tensors if t.source in done and not t.targets <= done)


# ------------------------------------------------------------------ merging groups


@dataclass(frozen=True)
class Merged:
    """A problem whose groups are sets of another problem's groups."""

    problem: GraphProblem
    members: tuple[tuple[int, ...], ...]

    def expand(self, partition: Partition) -> Partition:
        """A partition of the merged problem as one of the problem before."""
        return tuple(
            replace(block, groups=tuple(sorted(g for merged in block.groups for g in self.members[merged])))
            for block in partition
        )


def merge(problem: GraphProblem, together: Iterable[tuple[int, int]]) -> Merged:
    """The problem with the groups of every pair in one, and whatever lies between them. Not for lean groups."""
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(range(len(problem)))
    graph.add_edges_from(problem.edges)
    for a, b in together:
        graph.add_edges_from([(a, b), (b, a)])
    merged = networkx.condensation(graph)
    first = {c: min(data["members"]) for c, data in merged.nodes(data=True)}
    order = list(networkx.lexicographical_topological_sort(merged, key=lambda c: first[c]))
    members = tuple(tuple(sorted(merged.nodes[c]["members"])) for c in order)
    place = {g: position for position, inside in enumerate(members) for g in inside}
    rank = {c: position for position, c in enumerate(order)}
    edges = tuple(sorted((rank[a], rank[b]) for a, b in merged.edges))
    groups = tuple(_sum([problem.groups[g] for g in inside]) for inside in members)
    small = replace(problem, groups=groups, edges=edges, tensors=moved(problem.tensors, place))
    return Merged(small, members)


def moved(tensors: Iterable[Tensor], place: dict[int, int]) -> tuple[Tensor, ...]:
    """Tensors between groups as tensors between what the groups become; equal ones are one with their cost."""
    costs: dict[tuple[int, frozenset[int]], list[float]] = {}
    for tensor in tensors:
        source = place[tensor.source]
        targets = frozenset(place[t] for t in tensor.targets) - {source}
        if targets and tensor.cost > 0:
            costs.setdefault((source, targets), []).append(tensor.cost)
    return tuple(Tensor(source, targets, math.fsum(cost)) for (source, targets), cost in costs.items())


def _sum(groups: Sequence[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    return Group(
        math.fsum(g.work for g in groups),
        math.fsum(g.cpu_work for g in groups),
        math.fsum(g.static_bytes for g in groups),
        math.fsum(g.in_flight_bytes for g in groups),
    )


def inseparable(problem: GraphProblem, upper: float) -> list[tuple[int, int]]:
    """Pairs of groups that every partition better than `upper` keeps together: cutting them costs too much."""
    if any(group.lean is not None for group in problem.groups):
        return []
    pairs = []
    for tensor in problem.tensors:
        for target in tensor.targets:
            ends = (tensor.source, target)
            if problem.overlap:
                held = tensor.cost >= upper
            else:
                held = any(_held(problem, end, tensor.cost, upper) for end in ends)
            if held:
                pairs.append(ends)
    return pairs


def _held(problem: GraphProblem, end: int, cost: float, upper: float) -> bool:
    """Is the load of any device with this end of a cut tensor at least `upper`?"""
    group = problem.groups[end]
    return group.work + cost >= upper and (problem.cpus == 0 or group.cpu_work >= upper)
