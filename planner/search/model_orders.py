"""The CP-SAT model of the order search: one interval an op, as in design: exact order search.

Micro-batches are alike, so the k-th F, k-th B and k-th stash of a stage and direction may be those of the k-th
micro-batch of that direction (sorting start times keeps every precedence and the number of live stashes); with
two directions the micro-batches that go down come first. No type of this module leaves the search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ortools.sat.python import cp_model

from ..plan import Kind, Op, Pipeline
from .instance import Instance, Way

Starts = Mapping[tuple[Kind, int, int], int]


class OrderModel:
    """Variables and constraints for one instance; `lower` <= makespan <= `upper` ticks."""

    def __init__(self, instance: Instance, lower: int, upper: int) -> None:
        self.instance, self.upper = instance, upper
        self.model = cp_model.CpModel()
        self.two = len(instance.ways) == 2
        self.makespan = self.model.new_int_var(min(lower, upper), upper, "makespan")
        self.on_device: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
        self.on_link: dict[tuple[str, int, int], list[cp_model.IntervalVar]] = defaultdict(list)
        self.demands: dict[int, list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        self.spare = self._spare()
        self.possible = self._fits_at_all()
        if self.possible:
            self._add_directions()
            self._add_ops()
            self._add_precedences()
            self._add_order_of_micro_batches()
            self._add_memory()
            self._add_resources()
            self.model.minimize(self.makespan)

    # ------------------------------------------------------------ variables

    def _add_directions(self) -> None:
        """up[k]: micro-batch k goes up. Those that go down come first; at least one each."""
        count = self.instance.micro_batches
        self.up: list[cp_model.IntVar] = []
        if not self.two:
            return
        self.up = [self.model.new_bool_var(f"up{k}") for k in range(count)]
        for a, b in zip(self.up, self.up[1:], strict=False):
            self.model.add_implication(a, b)
        self.model.add(self.up[0] == 0)
        self.model.add(self.up[-1] == 1)
        if self.instance.mirrored:
            self.model.add(sum(self.up) <= count // 2)

    def _literal(self, way: int, k: int) -> cp_model.LiteralT | None:
        if not self.two:
            return None
        return self.up[k] if way else ~self.up[k]

    def _add_ops(self) -> None:
        """A start for every F and B, and an interval on the device of each direction."""
        self.start: dict[tuple[Kind, int, int], cp_model.IntVar] = {}
        self.intervals: dict[tuple[Kind, int, int, int], cp_model.IntervalVar] = {}
        for k in range(self.instance.micro_batches):
            for s in range(self.instance.stages):
                for kind in (Kind.F, Kind.B):
                    var = self.model.new_int_var(0, self.upper, f"{s}{kind.name}{k}")
                    self.start[kind, s, k] = var
                    for w, way in enumerate(self.instance.ways):
                        interval = self._interval(var, self._size(way, kind, s), self._literal(w, k))
                        self.intervals[kind, s, k, w] = interval
                        self.on_device[way.devices[s]].append(interval)

    def _size(self, way: Way, kind: Kind, stage: int) -> int:
        return (way.forward if kind == Kind.F else way.backward)[stage]

    def _interval(
        self, start: cp_model.LinearExprT, size: int, literal: cp_model.LiteralT | None
    ) -> cp_model.IntervalVar:
        if literal is None:
            return self.model.new_fixed_size_interval_var(start, size, "")
        return self.model.new_optional_fixed_size_interval_var(start, size, literal, "")

    # ------------------------------------------------------------ constraints

    def _after(self, later: cp_model.LinearExprT, earlier: cp_model.LinearExprT, delays: list[int], k: int) -> None:
        """later >= earlier + the delay of the micro-batch's direction."""
        if len(set(delays)) == 1:
            self.model.add(later >= earlier + delays[0])
            return
        for w, delay in enumerate(delays):
            literal = self._literal(w, k)
            assert literal is not None
            self.model.add(later >= earlier + delay).only_enforce_if(literal)

    def _add_precedences(self) -> None:
        """Forward along the edges, back along the edges, B after F, and the end of the step after every tail."""
        ways = self.instance.ways
        for k in range(self.instance.micro_batches):
            for s in range(self.instance.stages):
                f, b = self.start[Kind.F, s, k], self.start[Kind.B, s, k]
                self._after(b, f, [way.forward[s] for way in ways], k)
                self._after(self.makespan, b, [way.backward[s] + way.tail[s] for way in ways], k)
            for edge, (producer, consumer) in enumerate(self.instance.edges):
                self._add_message(Kind.F, producer, consumer, edge, k)
                self._add_message(Kind.B, consumer, producer, edge, k)

    def _add_message(self, kind: Kind, source: int, target: int, edge: int, k: int) -> None:
        """A tensor from stage `source` to stage `target`: delay, and an interval on its link when it has bytes."""
        ways = self.instance.ways
        cost = [(way.activation if kind == Kind.F else way.gradient)[edge] for way in ways]
        sizes = [self._size(way, kind, source) for way in ways]
        begin, end = self.start[kind, source, k], self.start[kind, target, k]
        if not any(occupation for occupation, _ in cost):
            self._after(end, begin, [size + late for size, (_, late) in zip(sizes, cost, strict=True)], k)
            return
        sent = self.model.new_int_var(0, self.upper, "")
        self._after(sent, begin, sizes, k)
        self._after(end, sent, [occupation + late for occupation, late in cost], k)
        for w, way in enumerate(ways):
            if cost[w][0]:
                interval = self._interval(sent, cost[w][0], self._literal(w, k))
                for link in self._links(way.devices[source], way.devices[target]):
                    self.on_link[link].append(interval)

    def _links(self, source: int, target: int) -> list[tuple[str, int, int]]:
        """A link of its own inside a node; between nodes the sender's and the receiver's NIC."""
        if self.instance.nodes[source] == self.instance.nodes[target]:
            return [("link", source, target)]
        return [("out", source, -1), ("in", target, -1)]

    def _add_order_of_micro_batches(self) -> None:
        """First in, first out per stage, kind and direction."""
        for k in range(self.instance.micro_batches - 1):
            same = None
            if self.two:
                same = self.model.new_bool_var(f"same{k}")
                self.model.add(self.up[k] == self.up[k + 1]).only_enforce_if(same)
                self.model.add(self.up[k] + self.up[k + 1] == 1).only_enforce_if(~same)
            for s in range(self.instance.stages):
                for kind in (Kind.F, Kind.B):
                    size = min(self._size(way, kind, s) for way in self.instance.ways)
                    later = self.model.add(self.start[kind, s, k + 1] >= self.start[kind, s, k] + size)
                    if same is not None:
                        later.only_enforce_if(same)

    def _add_resources(self) -> None:
        for intervals in (*self.on_device.values(), *self.on_link.values()):
            self.model.add_no_overlap(intervals)

    # ------------------------------------------------------------ memory

    def _spare(self) -> dict[int, int]:
        """Units for stashes per device: whatever runs, at least the smallest of its needs is taken as well."""
        least: dict[int, int] = {}
        for way in self.instance.ways:
            for s, device in enumerate(way.devices):
                small = min(self.instance.running[s])
                least[device] = min(least.get(device, small), small)
        return {device: self.instance.capacity[device] - units for device, units in least.items()}

    def _fits_at_all(self) -> bool:
        """Whether every stage can hold one stash on its device while its ops run."""
        stash, running, capacity = self.instance.stash, self.instance.running, self.instance.capacity
        return all(
            stash[s] + max(running[s]) <= capacity[device]
            for way in self.instance.ways
            for s, device in enumerate(way.devices)
        )

    def _add_memory(self) -> None:
        if self.two:
            self._add_memory_two_ways()
            return
        # live stashes only fall by a B, which runs while all of them are there: F and B allow the same number
        for s, device in enumerate(self.instance.ways[0].devices):
            stash = self.instance.stash[s]
            if stash == 0:
                continue
            most = (self.instance.capacity[device] - max(self.instance.running[s])) // stash
            for k in range(self.instance.micro_batches - most):
                end = self.start[Kind.B, s, k] + self.instance.ways[0].backward[s]
                self.model.add(self.start[Kind.F, s, k + most] >= end)

    def _add_memory_two_ways(self) -> None:
        """Stashes live from the start of F to the end of B; extra workspace while its op runs."""
        count = self.instance.micro_batches
        for w, way in enumerate(self.instance.ways):
            for s, device in enumerate(way.devices):
                least = self.instance.capacity[device] - self.spare[device]
                for k in range(count):
                    self._hold(w, way, s, k, device)
                    for kind, units in zip((Kind.F, Kind.B), self.instance.running[s], strict=True):
                        if units > least:
                            self.demands[device].append((self.intervals[kind, s, k, w], units - least))
        for device, held in self.demands.items():
            self.model.add_cumulative(
                [interval for interval, _ in held], [units for _, units in held], self.spare[device]
            )

    def _hold(self, w: int, way: Way, s: int, k: int, device: int) -> None:
        stash = self.instance.stash[s]
        here = [t for v in self.instance.ways for t, d in enumerate(v.devices) if d == device]
        most = max(max(self.instance.running[t]) for t in here)
        most += self.instance.micro_batches * max(self.instance.stash[t] for t in here)
        if stash == 0 or most <= self.instance.capacity[device]:
            return
        life = self.model.new_int_var(0, self.upper, "")
        begin, end = self.start[Kind.F, s, k], self.start[Kind.B, s, k] + way.backward[s]
        literal = self._literal(w, k)
        assert literal is not None
        self.demands[device].append((self.model.new_optional_interval_var(begin, life, end, literal, ""), stash))

    # ------------------------------------------------------------ in and out

    def hint(self, starts: Starts, up: list[bool]) -> None:
        """Starts in ticks of a known schedule, in the same numbering of micro-batches."""
        for key, value in starts.items():
            self.model.add_hint(self.start[key], min(value, self.upper))
        for var, value in zip(self.up, up, strict=False):
            self.model.add_hint(var, value)

    def read(self, solver: cp_model.CpSolver) -> tuple[tuple[Pipeline, ...], tuple[tuple[Op, ...], ...]]:
        """Pipelines and compute orders of the solver's solution."""
        count, ways = self.instance.micro_batches, self.instance.ways
        taken = [int(self.two and solver.boolean_value(self.up[k])) for k in range(count)]
        pipelines = tuple(
            Pipeline(way.devices, way.devices, tuple(k for k in range(count) if taken[k] == w))
            for w, way in enumerate(ways)
        )
        listed: dict[int, list[tuple[int, bool, int, int, Op]]] = defaultdict(list)
        for (kind, s, k), var in self.start.items():
            way = ways[taken[k]]
            depth = s if kind == Kind.F else 2 * self.instance.stages - s
            busy = self._size(way, kind, s) > 0
            listed[way.devices[s]].append((solver.value(var), busy, depth, k, Op(kind, s, k)))
        orders = tuple(tuple(entry[-1] for entry in sorted(listed[d])) for d in range(len(self.instance.nodes)))
        return pipelines, orders
