"""The ideals that stages within a load can end at, where a graph has too many to list: those with a small border.

Whatever lies on both sides of an ideal, its devices can take so much only. Which ideals that leaves is enumerated group
by group, inside or outside; a minimum cut says whether what is decided so far leads to any (Picard 1976, "Maximal
closure of a graph and applications to combinatorial problems": ideals are closures). So every branch ends in an ideal.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, isinf

import numpy as np
from numpy.typing import NDArray

from .problem import Bools
from .widths import WidthProblem

_UNITS = 1 << 40
"""Of the flow, in all costs together: they are rounded down, so nothing is left out that may be within the load."""
_CLOSE = 1e-9


def narrow_ideals(problem: WidthProblem, load: float, most: int, check: Callable[[], None]) -> list[int] | None:
    """All ideals, as bit masks, the smaller first, that stages within a load may end at; None: more than `most`.

    `check` is called between two minimum cuts, to raise an exception when it is time to end.
    """
    borders = _Borders(problem, load)
    found: list[int] = []
    size = len(problem)
    nothing: Bools = np.zeros(size, dtype=bool)
    left = [(nothing, nothing, nothing)]
    while left:
        check()
        inside, outside, known = left.pop()
        open_ = np.flatnonzero(~(inside | outside))
        if not len(open_):
            if borders.cost(inside) <= borders.most(inside, outside) * (1 + _CLOSE):
                found.append(int.from_bytes(np.packbits(inside, bitorder="little").tobytes(), "little"))
                if len(found) > most:
                    return None
            continue
        g = int(open_[0])
        for more in (inside | borders.before[g], inside):
            less = outside if more is not inside else outside | borders.after[g]
            if more is not inside and (more & outside).any():
                continue
            one = borders.smallest(more, less, known)
            if one is not None:
                left.append((more, less, one))
    return sorted(found, key=int.bit_count)


class _Borders:
    """What crosses the border of an ideal, and what may."""

    def __init__(self, problem: WidthProblem, load: float) -> None:
        from ortools.graph.python import max_flow  # loaded when needed

        graph, size = problem.graph, len(problem)
        self.load, self.devices, self.overlap = load, graph.accelerators, graph.overlap
        self.edges, self.area = graph.edges, np.array(problem.area)
        self.before, self.after = graph.before, np.ascontiguousarray(graph.before.T)
        self.costs = np.array([t.cost for t in graph.tensors], dtype=float)
        self.source = np.array([t.source for t in graph.tensors], dtype=np.int64)
        self.reads = np.zeros((len(graph.tensors), size), dtype=bool)
        for number, tensor in enumerate(graph.tensors):
            self.reads[number, sorted(tensor.targets)] = True
        self.unit = max(float(self.costs.sum()), 1e-300) / _UNITS
        tails, heads, capacities = self._arcs()
        self.flow = max_flow.SimpleMaxFlow()
        self.flow.add_arcs_with_capacity(tails, heads, capacities)
        self.ends = np.arange(len(tails) - 2 * size, len(tails))
        """The arcs from the source to every group, which is inside then, and from every group, outside, to the sink."""

    def _arcs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Of a group to what it needs, of its tensor to the readers: never cut; of a group to its tensor: its cost."""
        size, tensors = len(self.area), np.arange(len(self.costs)) + len(self.area)
        needs = np.array(self.edges, dtype=np.int64).reshape(-1, 2)[:, ::-1]
        number, target = np.nonzero(self.reads)
        groups, ends = np.arange(size), (size + len(tensors), size + len(tensors) + 1)
        tails = [needs[:, 0], self.source, tensors[number], np.full(size, ends[0]), groups]
        heads = [needs[:, 1], tensors, target, groups, np.full(size, ends[1])]
        caps = [
            np.full(len(needs), 4 * _UNITS), np.floor(self.costs / self.unit), np.full(len(number), 4 * _UNITS),
            np.zeros(2 * size),
        ]  # fmt: skip
        return tuple(np.concatenate(part).astype(np.int64) for part in (tails, heads, caps))  # type: ignore[return-value]

    def cost(self, inside: Bools) -> float:
        """Time of the tensors that cross the border of an ideal, each once."""
        crossing = inside[self.source] & (self.reads & ~inside).any(axis=1)
        return float(self.costs[crossing].sum())

    def most(self, inside: Bools, outside: Bools) -> float:
        """No ideal with these groups inside and those outside has a border above this, if stages keep the load there.

        With k devices before it and the others behind. Where transfers overlap work, what crosses takes a d-th of its
        time of a stage with d replicas on either side; elsewhere it is work of both sides. Below 0: there is no such k.
        """
        load, devices = self.load, self.devices
        one, other = float(self.area[inside].sum()), float(self.area[outside].sum())
        if load <= 0 or isinf(load):
            return load
        least = -floor(-one / load * (1 - _CLOSE) + 1e-9)
        last = devices + floor(-other / load * (1 - _CLOSE) + 1e-9)
        if not (inside.any() and outside.any()):
            least, last = max(0, least), min(devices, last)
        k = np.arange(max(0, least), min(devices, last) + 1)
        room = load * np.minimum(k, devices - k)
        if not self.overlap:
            room = np.minimum(k * load - one, (devices - k) * load - other)
        return float(room.max(initial=-1.0))

    def smallest(self, inside: Bools, outside: Bools, known: Bools) -> Bools | None:
        """An ideal of the smallest border between these; None where it is too large. `known`: perhaps good enough."""
        most = self.most(inside, outside)
        if most < 0:
            return None
        if not (inside & ~known).any() and not (outside & known).any() and self.cost(known) <= most:
            return known
        capacities = 4 * _UNITS * np.concatenate([inside, outside]).astype(np.int64)
        self.flow.set_arcs_capacity(self.ends, capacities)
        size = len(self.area)
        self.flow.solve(size + len(self.costs), size + len(self.costs) + 1)
        if self.flow.optimal_flow() * self.unit > most * (1 + _CLOSE):
            return None
        found: Bools = np.zeros(size + len(self.costs) + 2, dtype=bool)
        found[self.flow.get_source_side_min_cut()] = True
        return found[:size]
