"""Dynamic programme over a family of order ideals: exact when the family has every ideal, else an upper bound.

A partition is a chain of ideals; a block is the difference of two (Tarnawski et al., NeurIPS'20). With all ideals of
the graph the best chain is the best partition. With the prefixes of a few topological orders it is a good one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...basics import check_time, end_asked
from .problem import SLACK, Block, GraphProblem, Partition

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_CHUNK = 512
"""Rows of tensors counted at once: keeps the working set in the cache."""


def ideals(problem: GraphProblem, most: int) -> list[int] | None:
    """Every ideal as a bit mask of groups, the smaller first; None when there are more than `most`."""
    need = [sum(1 << p for p in problem.graph.predecessors(g)) for g in range(len(problem))]
    after = [list(problem.graph.successors(g)) for g in range(len(problem))]
    layer = {0: sum(1 << g for g, mask in enumerate(need) if not mask)}
    found = [0]
    while layer:
        following: dict[int, int] = {}
        for ideal, ready in layer.items():
            for g in _bits(ready):
                larger = ideal | 1 << g
                if larger in following:
                    continue
                more = sum(1 << h for h in after[g] if not need[h] & ~larger)
                following[larger] = (ready & ~(1 << g)) | more
            if len(found) + len(following) > most:
                return None
        found.extend(following)
        layer = following
    return found


def prefixes(orders: Iterable[Sequence[int]]) -> list[int]:
    """The ideals that topological orders run through, the smaller first."""
    found = {0}
    for order in orders:
        ideal = 0
        for g in order:
            ideal |= 1 << g
            found.add(ideal)
    return sorted(found, key=int.bit_count)


def orders(problem: GraphProblem, count: int, seed: int) -> Iterator[list[int]]:
    """Topological orders: the given one, one that goes deep first, then narrow and random ones by turns."""
    everything = range(len(problem))
    yield list(everything)
    generator = random.Random(seed)
    for number in range(count - 1):
        if number % 2:
            yield narrow_order(problem, everything, generator, noise=0.0 if number == 1 else 0.5)
        else:
            yield random_order(problem, everything, generator, depth=1.0 if number == 0 else generator.random())


def order_within(problem: GraphProblem, groups: Sequence[int], generator: random.Random) -> list[int]:
    """A topological order of some groups, narrow or random."""
    if generator.random() < 0.5:
        return narrow_order(problem, groups, generator, noise=generator.random())
    return random_order(problem, groups, generator, depth=generator.random())


def random_order(problem: GraphProblem, groups: Sequence[int], generator: random.Random, depth: float) -> list[int]:
    """A topological order that with probability `depth` goes on where it is."""

    def pick(ready: list[int]) -> int:
        return len(ready) - 1 if generator.random() < depth else generator.randrange(len(ready))

    return _order(problem, groups, pick, generator)


def narrow_order(problem: GraphProblem, groups: Sequence[int], generator: random.Random, noise: float) -> list[int]:
    """A topological order that adds what makes the cut behind it grow least, up to noise."""
    sent: dict[int, float] = {}
    read: dict[int, list[int]] = {}
    inside = set(groups)
    missing = []
    for t, tensor in enumerate(problem.tensors):
        sent[tensor.source] = sent.get(tensor.source, 0.0) + tensor.cost
        missing.append(len(tensor.targets & inside))
        for target in tensor.targets:
            read.setdefault(target, []).append(t)

    def growth(g: int) -> float:
        freed = math.fsum(problem.tensors[t].cost for t in read.get(g, ()) if missing[t] == 1)
        change = sent.get(g, 0.0) - freed
        return change + abs(change) * noise * generator.random()

    def pick(ready: list[int]) -> int:
        best = min(range(len(ready) - 1, -1, -1), key=lambda i: growth(ready[i]))
        for t in read.get(ready[best], ()):
            missing[t] -= 1
        return best

    return _order(problem, groups, pick, generator)


def _order(
    problem: GraphProblem, groups: Sequence[int], pick: Callable[[list[int]], int], generator: random.Random
) -> list[int]:
    """A topological order of some groups; `pick` chooses by position among those that are ready."""
    inside = set(groups)
    missing = {g: sum(p in inside for p in problem.graph.predecessors(g)) for g in groups}
    ready = [g for g, count in missing.items() if not count]
    order = []
    while ready:
        g = ready.pop(pick(ready))
        order.append(g)
        following = [h for h in problem.graph.successors(g) if h in inside]
        generator.shuffle(following)
        for h in following:
            missing[h] -= 1
            if not missing[h]:
                ready.append(h)
    return order


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class _Family:
    """The ideals of a problem as rows, and sums over each of them."""

    problem: GraphProblem
    rows: NDArray[np.uint64]
    work: Floats
    barred: Ints
    cpu_work: Floats
    lean_work: Floats
    least_work: Floats
    static: Floats
    in_flight: Floats
    lean_static: Floats
    lean_in_flight: Floats
    cut: Floats
    counts: NDArray[np.uint16]
    sizes: NDArray[np.uint16]
    costs: Floats

    @classmethod
    def of(cls, problem: GraphProblem, masks: Sequence[int]) -> _Family:
        member = unpack(masks, len(problem))
        groups = problem.groups
        lean = [g.lean if g.lean is not None else g for g in groups]

        def total(values: Iterable[float]) -> Floats:
            array = np.fromiter(values, dtype=float)
            return np.asarray(member @ np.where(np.isfinite(array), array, 0.0), dtype=float)

        touched = np.zeros((len(problem), len(problem.tensors)), dtype=np.float32)
        for t, tensor in enumerate(problem.tensors):
            touched[[tensor.source, *tensor.targets], t] = 1
        counts = (member.astype(np.float32) @ touched).astype(np.uint16)
        sizes = touched.sum(axis=0).astype(np.uint16)
        costs = np.array([t.cost for t in problem.tensors], dtype=float)
        started = member[:, [t.source for t in problem.tensors]] > 0
        padded = np.zeros((len(masks), -(-len(problem) // 64) * 8), dtype=np.uint8)
        packed = np.packbits(member.astype(bool), axis=1)
        padded[:, : packed.shape[1]] = packed
        return cls(
            problem,
            padded.view(np.uint64),
            total(g.work for g in groups),
            np.rint(total(float(math.isinf(g.work)) for g in groups)).astype(np.int64),
            total(g.cpu_work for g in groups),
            total(way.work for way in lean),
            total(min(g.work, way.work) for g, way in zip(groups, lean, strict=True)),
            total(g.static_bytes for g in groups),
            total(g.in_flight_bytes for g in groups),
            total(way.static_bytes for way in lean),
            total(way.in_flight_bytes for way in lean),
            (started & (counts < sizes)) @ costs,
            counts,
            sizes,
            costs,
        )

    def larger(self, i: int, upper: float) -> Ints:
        """Later ideals that contain ideal i, and whose difference to it some device may do in less than `upper`."""
        later = np.arange(i + 1, len(self.work))
        fast = self.least_work[i + 1 :] - self.least_work[i]
        if self.problem.cpus:
            fast = np.minimum(fast, self.cpu_work[i + 1 :] - self.cpu_work[i])
        later = later[fast < upper]
        nested = ~(self.rows[i] & ~self.rows[later]).any(axis=1)
        return np.asarray(later[nested])

    def moved(self, i: int, later: Ints) -> Floats:
        """Time of the tensors that leave or enter the difference to ideal i, of all those ideals."""
        result = np.empty(len(later))
        for start in range(0, len(later), _CHUNK):
            some = later[start : start + _CHUNK]
            inside = self.counts[some] - self.counts[i]
            result[start : start + _CHUNK] = ((inside > 0) & (inside < self.sizes)) @ self.costs
        return result

    def loads(self, i: int, later: Ints, relaxed: bool) -> tuple[Floats, Floats]:
        """Load of an accelerator with the difference to ideal i, plain and all lean; relaxed: each as it is faster."""
        total = self.least_work if relaxed else self.work
        work = total[later] - total[i]
        lean = self.lean_work[later] - self.lean_work[i]
        if self.problem.overlap:
            cuts = np.maximum(self.cut[i], self.cut[later])
            work, lean = np.maximum(work, cuts), np.maximum(lean, cuts)
        else:
            tensors = self.moved(i, later)
            work, lean = work + tensors, lean + tensors
        barred = self.barred[later] > self.barred[i]
        return np.where(barred, np.inf, work), np.where(barred, np.inf, lean)

    def accelerated(self, i: int, later: Ints, relaxed: bool) -> Floats:
        """Load of an accelerator, infinite where it does not fit: a row for each number of micro-batches in flight,
        from 1 up, or one for all."""
        plain, lean = self.loads(i, later, relaxed)
        if relaxed or math.isinf(self.problem.limit_bytes):
            return plain[None, :]
        most = self.problem.accelerators if self.in_flight[-1] or self.lean_in_flight[-1] else 1
        rows = []
        for flying in range(1, most + 1):
            fits, thin = self.fits(i, later, flying)
            rows.append(np.where(fits, plain, np.where(thin, lean, np.inf)))
        return np.array(rows)

    def fits(self, i: int, later: Ints, in_flight: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Does the difference to ideal i fit an accelerator, plain and lean?"""
        limit = self.problem.limit_bytes * SLACK
        plain = self.static[later] - self.static[i] + in_flight * (self.in_flight[later] - self.in_flight[i])
        held = self.lean_in_flight[later] - self.lean_in_flight[i]
        lean = self.lean_static[later] - self.lean_static[i] + in_flight * held
        return plain <= limit, lean <= limit


def unpack(masks: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Bit masks as rows of 0 and 1, shape (ideals, groups)."""
    width = -(-count // 8)
    raw = b"".join(mask.to_bytes(width, "little") for mask in masks)
    table = np.frombuffer(raw, dtype=np.uint8).reshape(len(masks), width)
    return np.unpackbits(table, axis=1, bitorder="little")[:, :count]


def best_chain(
    problem: GraphProblem, masks: Sequence[int], upper: float = math.inf, *, relaxed: bool = False
) -> tuple[float, Partition | None]:
    """The best partition whose ideals are all in the family and better than `upper`; (inf, None) without one.

    A block runs plain where that fits the memory, otherwise with all its groups lean, which is exact only for
    problems without lean groups. `relaxed`: memory without limit, for a lower bound. Raises KeyboardInterrupt once
    Ctrl-C has asked for the end, and OutOfTime at a deadline: what it has by then says nothing.
    """
    family = _Family.of(problem, masks)
    table = _Table(problem, len(masks))
    for i in range(len(masks) - 2, -1, -1):
        if end_asked():
            raise KeyboardInterrupt
        check_time()
        later = family.larger(i, upper)
        if not len(later):
            continue
        cost = family.accelerated(i, later, relaxed)
        cost[cost >= upper] = np.inf
        for c in range(problem.cpus + 1):
            table.offer(c, i, later, cost, cpu=False)
        if problem.cpus:
            slow = (family.cpu_work[later] - family.cpu_work[i])[None, :]
            for c in range(1, problem.cpus + 1):
                table.offer(c, i, later, slow, cpu=True)
        table.settle(i)
    value = float(table.value[problem.cpus, problem.accelerators, 0])
    if not value < upper or math.isinf(value):
        return math.inf, None
    return value, table.partition(family, masks, relaxed)


class _Table:
    """Values and choices: the best way from ideal i to the end with so many CPUs and accelerators left."""

    def __init__(self, problem: GraphProblem, count: int) -> None:
        shape = (problem.cpus + 1, problem.accelerators + 1, count)
        self.problem = problem
        self.value: Floats = np.full(shape, np.inf)
        self.target: Ints = np.zeros(shape, dtype=np.int64)
        self.rest = np.zeros((*shape, 2), dtype=np.int64)
        last = (0, 0, -1) if problem.every else (slice(None), slice(None), -1)
        self.value[last] = 0.0

    def offer(self, c: int, i: int, later: Ints, cost: Floats, *, cpu: bool) -> None:
        """Takes the best of the blocks from ideal i to the later ones, for every number of accelerators.

        `cost` has a row for each of them, or one for all; a block leaves one device less, of its kind.
        """
        rest = self.value[c - 1] if cpu else self.value[c, :-1]
        reached = np.maximum(cost, rest[:, later])
        best = reached.argmin(axis=1)
        first = 0 if cpu else 1
        values = reached[np.arange(len(best)), best]
        better = first + np.flatnonzero(values < self.value[c, first:, i])
        self.value[c, better, i] = values[better - first]
        self.target[c, better, i] = later[best[better - first]]
        self.rest[c, better, i, 0] = c - 1 if cpu else c
        self.rest[c, better, i, 1] = better if cpu else better - 1

    def settle(self, i: int) -> None:
        """A device more does no harm, unless every accelerator must have a stage."""
        if self.problem.every:
            return
        for c, f in np.ndindex(self.value.shape[:2]):
            for rest in ((c - 1, f), (c, f - 1)):
                if min(rest) >= 0 and self.value[rest][i] < self.value[c, f, i]:
                    self.value[c, f, i] = self.value[rest][i]
                    self.target[c, f, i] = i
                    self.rest[c, f, i] = rest

    def partition(self, family: _Family, masks: Sequence[int], relaxed: bool) -> Partition:
        """The blocks that the choices lead through."""
        blocks = []
        c, f, i = self.problem.cpus, self.problem.accelerators, 0
        while i < len(masks) - 1:
            j = int(self.target[c, f, i])
            rest = (int(self.rest[c, f, i, 0]), int(self.rest[c, f, i, 1]))
            if j > i:
                groups = tuple(_bits(masks[j] & ~masks[i]))
                cpu = rest[0] < c
                plain = cpu or relaxed or bool(family.fits(i, np.array([j]), f)[0][0])
                lean = () if plain else (g for g in groups if self.problem.groups[g].lean is not None)
                blocks.append(Block(groups, cpu, frozenset(lean)))
            c, f, i = *rest, j
        return tuple(blocks)
