"""The CP-SAT model of the order search: one interval an op, as in design: exact order search.

Micro-batches are alike, so the k-th F, k-th I, k-th W and k-th stash of a stage and direction may be those of the
k-th micro-batch of that direction (sorting start times keeps every precedence and the number of live stashes); with
two directions the micro-batches that go down come first. Where the fate of a stash is chosen per micro-batch, first
in first out is an assumption, not a symmetry. No type of this module leaves the search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from ...basics import check_time
from ...graph import KEEP, OFFLOAD, RECOMPUTE
from ...plan import Kind
from .instance import Instance, Send, Way
from .model_stash import Memory

Key = tuple[Kind, int, int]
Literal = cp_model.LiteralT


class Mode(NamedTuple):
    """One way a micro-batch may take through a stage: direction, fate of its stash, and when (None: always)."""

    way: int
    policy: str
    literal: Literal | None


@dataclass(frozen=True)
class Solution:
    """Start ticks of every op (kind, stage, micro-batch), the way of every micro-batch, and the fate of its stashes.

    `policies`: by (stage, micro-batch), where it is not "keep".
    """

    starts: Mapping[Key, int]
    ways: Sequence[int]
    policies: Mapping[tuple[int, int], str]


class OrderModel:
    """Variables and constraints for one instance; `lower` <= makespan <= `upper` ticks."""

    def __init__(self, instance: Instance, lower: int, upper: int) -> None:
        self.instance, self.upper = instance, upper
        self.model = cp_model.CpModel()
        self.two = len(instance.ways) == 2
        self.makespan = self.model.new_int_var(min(lower, upper), upper, "makespan")
        self.resources: dict[tuple[str, int, int], list[cp_model.IntervalVar]] = defaultdict(list)
        self.start: dict[Key, cp_model.IntVar] = {}
        self.intervals: dict[tuple[Kind, int, int, int], cp_model.IntervalVar] = {}
        self.modes: dict[tuple[int, int], list[Mode]] = {}
        memory = Memory(self)
        self.possible = memory.possible
        if self.possible:
            self._add_directions()
            self._add_ops()
            self._add_remakes()
            self._add_precedences()
            self._add_order_of_micro_batches()
            memory.add()
            for intervals in self.resources.values():
                self.model.add_no_overlap(intervals)
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

    def literal(self, way: int, k: int) -> Literal | None:
        """When micro-batch k takes a way; None: always."""
        if not self.two:
            return None
        return self.up[k] if way else ~self.up[k]

    def ticks(self) -> cp_model.IntVar:
        """A new variable of time."""
        return self.model.new_int_var(0, self.upper, "")

    def _add_ops(self) -> None:
        """A start for every compute op, an interval on the device of each direction, and the modes."""
        for k in range(self.instance.micro_batches):
            check_time()
            for s in range(self.instance.stages):
                self.modes[s, k] = self._modes(s, k)
                for kind in self.instance.kinds(s):
                    var = self.start[kind, s, k] = self.ticks()
                    for w, way in enumerate(self.instance.ways):
                        interval = self.interval(var, way.ticks(kind, s), self.literal(w, k))
                        self.intervals[kind, s, k, w] = interval
                        self.resources["device", way.devices[s], -1].append(interval)

    def _modes(self, s: int, k: int) -> list[Mode]:
        found: list[Mode] = []
        for w, way in enumerate(self.instance.ways):
            here, policies = self.literal(w, k), self.instance.choices(way, s)
            if len(policies) == 1:
                found.append(Mode(w, policies[0], here))
                continue
            literals: list[Literal] = [self.model.new_bool_var("") for _ in policies]
            if here is None and len(policies) == 2:
                literals[1] = ~literals[0]
            else:
                self.model.add_exactly_one(literals if here is None else [*literals, ~here])
            found += [Mode(w, policy, literal) for policy, literal in zip(policies, literals, strict=True)]
        return found

    def interval(self, start: cp_model.LinearExprT, size: int, literal: Literal | None) -> cp_model.IntervalVar:
        """An interval of fixed size, there when the literal holds."""
        if literal is None:
            return self.model.new_fixed_size_interval_var(start, size, "")
        return self.model.new_optional_fixed_size_interval_var(start, size, literal, "")

    def lifetime(
        self, start: cp_model.LinearExprT, end: cp_model.LinearExprT, literal: Literal | None
    ) -> cp_model.IntervalVar:
        """An interval of free size, there when the literal holds."""
        if literal is None:
            return self.model.new_interval_var(start, self.ticks(), end, "")
        return self.model.new_optional_interval_var(start, self.ticks(), end, literal, "")

    def _add_remakes(self) -> None:
        """R on the device, OFFLOAD and FETCH on the host links, for every mode that has them."""
        for (s, k), modes in self.modes.items():
            f, back = self.start[Kind.F, s, k], self.start[self.instance.backward(s), s, k]
            for w, policy, literal in modes:
                way = self.instance.ways[w]
                if policy == RECOMPUTE:
                    self._add_recompute(way, s, k, literal)
                elif policy == OFFLOAD:
                    out, home = self._optional(Kind.OFFLOAD, s, k), self._optional(Kind.FETCH, s, k)
                    occupied, late = way.copy[s]
                    link = self.instance.host[way.devices[s]]
                    for var, direction in ((out, "to host"), (home, "from host")):
                        if occupied:
                            self.resources[direction, link, -1].append(self.interval(var, occupied, literal))
                    self.when(literal, out >= f + way.forward[s])
                    self.when(literal, home >= out + occupied + late)
                    self.when(literal, back >= home + occupied + late)

    def _add_recompute(self, way: Way, s: int, k: int, literal: Literal | None) -> None:
        remake, size = self._optional(Kind.R, s, k), way.forward[s]
        interval = self.interval(remake, size, literal)
        self.intervals[Kind.R, s, k, self.instance.ways.index(way)] = interval
        self.resources["device", way.devices[s], -1].append(interval)
        self.when(literal, remake >= self.start[Kind.F, s, k] + size)
        self.when(literal, self.start[self.instance.backward(s), s, k] >= remake + size)

    def _optional(self, kind: Kind, s: int, k: int) -> cp_model.IntVar:
        """The start of an op that not every mode has; of those of one stage the later micro-batch's is no earlier."""
        key = (kind, s, k)
        if key not in self.start:
            self.start[key] = self.ticks()
        return self.start[key]

    # ------------------------------------------------------------ constraints

    def when(self, literal: Literal | None, expression: Any) -> None:
        """The constraint (a comparison of CP-SAT expressions), enforced when the literal holds."""
        found = self.model.add(expression)
        if literal is not None:
            found.only_enforce_if(literal)

    def _after(self, later: cp_model.LinearExprT, earlier: cp_model.LinearExprT, delays: list[int], k: int) -> None:
        """later >= earlier + the delay of the micro-batch's direction."""
        if len(set(delays)) == 1:
            self.model.add(later >= earlier + delays[0])
            return
        for w, delay in enumerate(delays):
            self.when(self.literal(w, k), later >= earlier + delay)

    def _add_precedences(self) -> None:
        """Forward along the edges, back along the edges, B after F, and the end of the step after every tail."""
        ways = self.instance.ways
        for k in range(self.instance.micro_batches):
            check_time()
            for s in range(self.instance.stages):
                kinds = self.instance.kinds(s)
                for earlier, later in zip(kinds, kinds[1:], strict=False):
                    delays = [way.ticks(earlier, s) for way in ways]
                    self._after(self.start[later, s, k], self.start[earlier, s, k], delays, k)
                last = [way.ticks(kinds[-1], s) + way.tail[s] for way in ways]
                self._after(self.makespan, self.start[kinds[-1], s, k], last, k)
            for edge, (producer, consumer) in enumerate(self.instance.edges):
                down, up = [way.activation[edge] for way in ways], [way.gradient[edge] for way in ways]
                self._add_message(Kind.F, Kind.F, producer, consumer, down, k)
                source, target = self.instance.backward(consumer), self.instance.backward(producer)
                self._add_message(source, target, consumer, producer, up, k)

    def _add_message(self, source: Kind, target: Kind, a: int, b: int, sends: list[Send], k: int) -> None:
        """A tensor from stage a to stage b: delay, and an interval on its links when it has bytes."""
        ways = self.instance.ways
        sizes = [way.ticks(source, a) for way in ways]
        begin, end = self.start[source, a, k], self.start[target, b, k]
        if not any(send.occupation for send in sends):
            self._after(end, begin, [size + send.latency for size, send in zip(sizes, sends, strict=True)], k)
            return
        sent = self.ticks()
        self._after(sent, begin, sizes, k)
        self._after(end, sent, [send.occupation + send.latency for send in sends], k)
        for w, send in enumerate(sends):
            if send.occupation:
                interval = self.interval(sent, send.occupation, self.literal(w, k))
                for link in send.links:
                    self.resources[link].append(interval)

    def _add_order_of_micro_batches(self) -> None:
        """First in, first out per stage, kind and direction."""
        for k in range(self.instance.micro_batches - 1):
            same = None
            if self.two:
                same = self.model.new_bool_var(f"same{k}")
                self.model.add(self.up[k] == self.up[k + 1]).only_enforce_if(same)
                self.model.add(self.up[k] + self.up[k + 1] == 1).only_enforce_if(~same)
            for s in range(self.instance.stages):
                for kind in self.instance.kinds(s):
                    size = min(way.ticks(kind, s) for way in self.instance.ways)
                    self.when(same, self.start[kind, s, k + 1] >= self.start[kind, s, k] + size)
                for kind in (Kind.R, Kind.OFFLOAD, Kind.FETCH):
                    if (kind, s, k) in self.start and (kind, s, k + 1) in self.start:
                        self.when(same, self.start[kind, s, k + 1] >= self.start[kind, s, k])

    # ------------------------------------------------------------ in and out

    def hint(self, known: Solution) -> None:
        """A known solution in the same numbering of micro-batches."""
        for key, value in known.starts.items():
            if key in self.start:
                self.model.add_hint(self.start[key], min(value, self.upper))
        for var, way in zip(self.up, known.ways, strict=False):
            self.model.add_hint(var, way == 1)
        for (s, k), modes in self.modes.items():
            policy = known.policies.get((s, k), KEEP)
            for mode in modes:
                if isinstance(mode.literal, cp_model.IntVar) and len({m.policy for m in modes}) > 1:
                    self.model.add_hint(mode.literal, mode.policy == policy and mode.way == known.ways[k])

    def read(self, solver: cp_model.CpSolver) -> Solution:
        """The solver's solution."""
        ways = [int(self.two and solver.boolean_value(self.up[k])) for k in range(self.instance.micro_batches)]
        policies: dict[tuple[int, int], str] = {}
        for place, modes in self.modes.items():
            for mode in modes:
                taken = mode.literal is None or solver.boolean_value(mode.literal)
                if taken and mode.way == ways[place[1]] and mode.policy != KEEP:
                    policies[place] = mode.policy
        needed = {Kind.R: RECOMPUTE, Kind.OFFLOAD: OFFLOAD, Kind.FETCH: OFFLOAD}
        starts = {
            key: solver.value(var)
            for key, var in self.start.items()
            if key[0] not in needed or policies.get((key[1], key[2])) == needed[key[0]]
        }
        return Solution(starts, ways, policies)
