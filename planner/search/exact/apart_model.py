"""The CP-SAT model of one pipeline whose stages choose a forward and a backward device each, and a policy.

A stage's stash is kept (and moves where the devices differ), recomputed, offloaded, or shipped to a third device and
back. All micro-batches of a stage share its choice, so first in first out loses nothing, as in `model_orders`.
What is received takes memory from where its RECV stands in the list: at an instant when no op of the device runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ortools.sat.python import cp_model

from ...basics import check_time
from ...graph import KEEP, OFFLOAD, RECOMPUTE, SHIP
from ...plan import Kind
from .apart_choice import Choice, Literal
from .apart_instance import ApartInstance, Hops

Key = tuple[Kind, int, int]
Place = tuple[int, int]
Time = cp_model.LinearExprT
_MOVES = ("out", "back", "posted", "visited", "gone", "left")


@dataclass(frozen=True)
class ApartSolution:
    """Devices and policy per stage, and ticks of every op by (kind, stage, micro-batch).

    `times`: by name and (stage, micro-batch), where they mean something: "out", a stash starts to leave the device of
    its F, and "gone", it has left; "back", it starts to arrive on that of its backward, and "posted", takes memory
    there; "visited", it takes memory on the device it is shipped to, and "left", it has left that (or the host).
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    policies: tuple[str, ...]
    starts: Mapping[Key, int]
    times: Mapping[str, Mapping[Place, int]]


class ApartModel:
    """Variables and constraints for one instance; `lower` <= makespan <= `upper` ticks."""

    def __init__(self, instance: ApartInstance, lower: int, upper: int) -> None:
        self.instance, self.upper = instance, upper
        self.model = cp_model.CpModel()
        self.makespan = self.model.new_int_var(min(lower, upper), upper, "makespan")
        self.resources: dict[tuple[str, int, int], list[cp_model.IntervalVar]] = defaultdict(list)
        self.demands: dict[tuple[str, int], list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        self.start: dict[Key, cp_model.IntVar] = {}
        self.moves: dict[str, dict[Place, cp_model.IntVar]] = {name: {} for name in _MOVES}
        self._all: dict[tuple[int, ...], Literal] = {}
        self.choices = [Choice.of(self, s) for s in range(len(instance.stages))]
        if instance.alike:
            self._number_devices()
        for s in range(len(instance.stages)):
            for k in range(instance.micro_batches):
                check_time()
                self._add_ops(s, k)
                self._add_moves(s, k)
                self._add_memory(s, k)
                self._add_turn(s, k)
        self._add_edges()
        self._add_ends()
        self._add_loads()
        self._add_limits()
        self.model.minimize(self.makespan)

    # ------------------------------------------------------------ literals and times

    def every(self, *literals: Literal) -> Literal:
        """A literal that holds when all of these do."""
        key = tuple(sorted(cast(cp_model.IntVar, x).index for x in literals))
        if key not in self._all:
            found = self._all[key] = self.model.new_bool_var("")
            self.model.add_bool_or([found, *(~x for x in literals)])
            for x in literals:
                self.model.add_implication(found, x)
        return self._all[key]

    def when(self, literal: Literal | None, expression: Any) -> None:
        """The constraint (a comparison of CP-SAT expressions), enforced when the literal holds."""
        found = self.model.add(expression)
        if literal is not None:
            found.only_enforce_if(literal)

    def ticks(self) -> cp_model.IntVar:
        """A new variable of time."""
        return self.model.new_int_var(0, self.upper, "")

    def places(self, kind: Kind, s: int) -> list[Literal]:
        """Where an op of a stage may run, by device."""
        return self.choices[s].front if kind == Kind.F else self.choices[s].rear

    def after(self, time: Time, kind: Kind, s: int, k: int, literal: Literal | None = None) -> None:
        """A time is not before the end of an op, when the literal holds."""
        table, start = self.instance.stages[s].ticks[Kind.F if kind == Kind.R else kind], self.start[kind, s, k]
        self.when(literal, time >= start + min(table))
        for place, size in zip(self.places(kind, s), table, strict=True):
            if size > min(table):
                self.when(place if literal is None else self.every(place, literal), time >= start + size)

    def end(self, kind: Kind, s: int, k: int) -> Time:
        """The end of an op."""
        table = self.instance.stages[s].ticks[kind]
        if len(set(table)) == 1:
            return self.start[kind, s, k] + table[0]
        found = self.ticks()
        self.after(found, kind, s, k)
        return found

    def _number_devices(self) -> None:
        """Devices are alike: those of backwards are numbered as they come."""
        for s, choice in enumerate(self.choices):
            for d, here in enumerate(choice.rear):
                if d:
                    self.model.add_bool_or([~here, *(earlier.rear[d - 1] for earlier in self.choices[:s])])

    # ------------------------------------------------------------ one micro-batch on one stage

    def _add_ops(self, s: int, k: int) -> None:
        """F, the backward, and R where the stash is made again, one after the other, on their devices."""
        kinds, again = (Kind.F, *self.instance.stages[s].backward), self.choices[s].fate[RECOMPUTE]
        for kind in kinds:
            self.start[kind, s, k] = self.ticks()
            self._run(kind, s, k, self.places(kind, s))
        for earlier, later in zip(kinds, kinds[1:], strict=False):
            self.after(self.start[later, s, k], earlier, s, k)
        if RECOMPUTE in self.instance.policies:
            self.start[Kind.R, s, k] = self.ticks()
            self._run(Kind.R, s, k, [self.every(place, again) for place in self.choices[s].rear])
            self.after(self.start[Kind.R, s, k], Kind.F, s, k, again)
            self.after(self.start[kinds[1], s, k], Kind.R, s, k, again)

    def _run(self, kind: Kind, s: int, k: int, places: list[Literal]) -> None:
        """Intervals of an op on the devices where it may run, and what it certainly takes beside stashes."""
        stage = self.instance.stages[s]
        units, table = stage.stash.running(kind), stage.ticks[Kind.F if kind == Kind.R else kind]
        for d, place in enumerate(places):
            interval = self.model.new_optional_fixed_size_interval_var(self.start[kind, s, k], table[d], place, "")
            self.resources["device", d, -1].append(interval)
            if units:
                self.demands["device", d].append((interval, units))

    def _add_moves(self, s: int, k: int) -> None:
        """When a stash leaves, after its F, and arrives, before what uses it; one at a time on each link."""
        choice, stage, policies = self.choices[s], self.instance.stages[s], self.instance.policies
        for name in _MOVES:
            self.moves[name][s, k] = self.ticks()
        out, back, posted, visited, gone, left = (self.moves[name][s, k] for name in _MOVES)
        begin, again = self.start[stage.backward[0], s, k], self.start.get((Kind.R, s, k))
        self.after(out, Kind.F, s, k)
        self._tie(s, k)
        for a in range(self.instance.devices):
            for b in range(self.instance.devices):
                if a == b:
                    continue
                self._travel(self.every(choice.pair[a][b], choice.fate[KEEP]), a, b, stage.hop, (out, gone, begin))
                if again is not None:
                    moved = self.every(choice.pair[a][b], choice.fate[RECOMPUTE])
                    self._travel(moved, a, b, stage.kept_hop, (out, gone, again))
                if SHIP in policies:
                    shipped = self.every(choice.front[a], choice.away[b])
                    self._travel(shipped, a, b, stage.hop, (out, gone, back))
                    self._travel(shipped, b, a, stage.hop, (back, left, begin))
            self._instant(posted, a, self.every(choice.rear[a], choice.arrives))
            if SHIP in policies:
                self._instant(visited, a, choice.away[a])
            if OFFLOAD in policies:
                self._copy(s, k, a)
        if again is not None:
            self.when(self.every(choice.same, choice.fate[RECOMPUTE]), gone >= again)

    def _tie(self, s: int, k: int) -> None:
        """The order of these times; those that mean nothing for a fate are what another is."""
        choice, policies = self.choices[s], self.instance.policies
        out, back, posted, visited, gone, left = (self.moves[name][s, k] for name in _MOVES)
        for order in (gone >= out, left >= back, posted <= back, visited <= out):
            self.model.add(order)
        self.when(choice.moved, back == out)
        for fact in (gone == out, back == out, posted == out):
            self.when(choice.stays, fact)
        self.when(~choice.fate[SHIP] if SHIP in policies else None, visited == out)
        if not policies & {SHIP, OFFLOAD}:
            self.model.add(left == back)
        table = self.instance.stages[s].ticks[Kind.F]
        if len(set(table)) == 1:
            self.when(choice.stays, out == self.start[Kind.F, s, k] + table[0])

    def _travel(self, literal: Literal, a: int, b: int, hops: Hops, times: tuple[Time, Time, Time]) -> None:
        """A message while a literal holds; `times`: when it starts, when it has left, and what waits for it."""
        begin, left, user = times
        occupied, late = hops[a][b]
        self.when(literal, left >= begin + occupied)
        self.when(literal, user >= begin + occupied + late)
        if occupied:
            interval = self.model.new_optional_fixed_size_interval_var(begin, occupied, literal, "")
            for link in self.instance.links[a, b]:
                self.resources[link].append(interval)

    def _instant(self, time: Time, d: int, literal: Literal) -> None:
        """At this time no op runs on the device, while the literal holds."""
        interval = self.model.new_optional_fixed_size_interval_var(time, 0, literal, "")
        self.resources["device", d, -1].append(interval)

    def _copy(self, s: int, k: int, d: int) -> None:
        """From this device to the host, and from the host to this device."""
        stage, instance, choice = self.instance.stages[s], self.instance, self.choices[s]
        out, back, gone, left = (self.moves[name][s, k] for name in ("out", "back", "gone", "left"))
        occupied, late = stage.copy[d]
        sends, fetches = (self.every(row[d], choice.fate[OFFLOAD]) for row in (choice.front, choice.rear))
        self.when(sends, gone >= out + occupied)
        self.when(sends, back >= out + occupied + late)
        self.when(fetches, left >= back + occupied)
        self.when(fetches, self.start[stage.backward[0], s, k] >= back + occupied + late)
        for begin, literal, way in ((out, sends, "to host"), (back, fetches, "from host")):
            interval = self.model.new_optional_fixed_size_interval_var(begin, occupied, literal, "")
            self.resources[way, instance.host[d], -1].append(interval)
        room = instance.host_room[instance.node[d]]
        if room is not None:
            life = self.model.new_optional_interval_var(out, self.ticks(), left, fetches, "")
            self.demands["host", instance.node[d]].append((life, stage.stash.bytes))

    # ------------------------------------------------------------ memory

    def _add_memory(self, s: int, k: int) -> None:
        """Lifetimes of a stash on every device, as planner.memory has them."""
        stage, choice = self.instance.stages[s], self.choices[s]
        stash, (begin, *_) = stage.stash, stage.backward
        _, _, posted, visited, gone, left = (self.moves[name][s, k] for name in _MOVES)
        first, again = self.start[Kind.F, s, k], self.start.get((Kind.R, s, k))
        used, final = self.end(begin, s, k), self.end(stage.backward[-1], s, k)
        both = min(stash.bytes, stash.held)

        def hold(d: int, start: Time, end: Time, units: int, literal: Literal) -> None:
            if units > 0:
                life = self.model.new_optional_interval_var(start, self.ticks(), end, literal, "")
                self.demands["device", d].append((life, units))

        def until_used(d: int, start: Time, literal: Literal) -> None:
            hold(d, start, used, stash.bytes - both, literal)
            hold(d, start, final, both, literal)

        for d in range(self.instance.devices):
            until_used(d, first, self.every(choice.pair[d][d], choice.fate[KEEP]))
            hold(d, first, gone, stash.bytes, self.every(choice.front[d], choice.carried))
            until_used(d, posted, self.every(choice.rear[d], choice.carried))
            hold(d, self.start[begin, s, k], final, stash.held - both, choice.rear[d])
            hold(d, visited, left, stash.bytes, choice.away[d])
            if again is not None:
                hold(d, first, gone, stash.kept, self.every(choice.front[d], choice.fate[RECOMPUTE]))
                until_used(d, again, self.every(choice.rear[d], choice.fate[RECOMPUTE]))
                arrived = self.every(choice.rear[d], choice.fate[RECOMPUTE], choice.moved)
                hold(d, posted, again, stash.kept, arrived)

    def _add_limits(self) -> None:
        """Parameters and more of the stages that a device has, and what it can hold; one op, one message at a time."""
        for stage, choice in zip(self.instance.stages, self.choices, strict=True):
            for d in range(self.instance.devices):
                lent = self.every(choice.front[d], ~choice.same)
                for units, literal in ((stage.owned, choice.rear[d]), (stage.lent, lent)):
                    self._keep(d, units, literal)
        for tie in self.instance.ties:
            members = [self.choices[s] for s in tie.stages]
            for d in range(self.instance.devices):
                untrained = self.every(*(~choice.rear[d] for choice in members))
                unused = self.every(*(~choice.front[d] for choice in members))
                self._keep(d, tie.owned, ~untrained)
                self._keep(d, tie.lent, self.every(untrained, ~unused))
        for (kind, number), held in self.demands.items():
            room = self.instance.capacity[number] if kind == "device" else self.instance.host_room[number]
            assert room is not None
            intervals, units_of = zip(*held, strict=True)
            self.model.add_cumulative(intervals, units_of, room)
        for intervals_of in self.resources.values():
            self.model.add_no_overlap(intervals_of)

    def _keep(self, d: int, units: int, literal: Literal) -> None:
        """Takes memory of a device for the whole step, while the literal holds."""
        if units:
            life = self.model.new_optional_fixed_size_interval_var(0, self.upper + 1, literal, "")
            self.demands["device", d].append((life, units))

    # ------------------------------------------------------------ between stages and micro-batches

    def _add_turn(self, s: int, k: int) -> None:
        """First in, first out."""
        if not k:
            return
        for kind in (Kind.F, *self.instance.stages[s].backward, Kind.R):
            if (kind, s, k) in self.start:
                self.after(self.start[kind, s, k], kind, s, k - 1)
        for times in self.moves.values():
            self.model.add(times[s, k] >= times[s, k - 1])

    def _add_edges(self) -> None:
        """Activations from F to F, gradients from backward to backward."""
        instance = self.instance
        for (a, b), hops in zip(instance.edges, instance.edge_hop, strict=True):
            for k in range(instance.micro_batches):
                self._add_tensor((Kind.F, a), (Kind.F, b), hops, k)
                first, second = instance.stages[b].backward[0], instance.stages[a].backward[0]
                self._add_tensor((first, b), (second, a), hops, k)

    def _add_tensor(self, source: tuple[Kind, int], target: tuple[Kind, int], hops: Hops, k: int) -> None:
        begin, user = self.ticks(), self.start[*target, k]
        self.after(begin, *source, k)
        self.model.add(user >= begin)
        for a, here in enumerate(self.places(*source)):
            for b, there in enumerate(self.places(*target)):
                if any(hops[a][b]):
                    self._travel(self.every(here, there), a, b, hops, (begin, self.upper, user))

    def _add_ends(self) -> None:
        """The step ends after every optimizer step, when its new parameters are where the forward runs."""
        last = self.instance.micro_batches - 1
        for s, (stage, choice) in enumerate(zip(self.instance.stages, self.choices, strict=True)):
            end = self.end(stage.backward[-1], s, last)
            self.model.add(self.makespan >= end)
            for b, tail in enumerate(stage.tail):
                for f, row in enumerate(choice.pair):
                    more = tail + sum(stage.home[b][f])
                    if more:
                        self.when(row[b], self.makespan >= end + more)

    def _add_loads(self) -> None:
        """The step is no shorter than what any device has to do."""
        count = self.instance.micro_batches
        for d in range(self.instance.devices):
            work = []
            for stage, choice in zip(self.instance.stages, self.choices, strict=True):
                work.append(count * stage.ticks[Kind.F][d] * choice.front[d])
                work.append(count * sum(stage.ticks[kind][d] for kind in stage.backward) * choice.rear[d])
                if RECOMPUTE in self.instance.policies:
                    again = self.every(choice.rear[d], choice.fate[RECOMPUTE])
                    work.append(count * stage.ticks[Kind.F][d] * again)
            self.model.add(self.makespan >= sum(work))

    def read(self, solver: cp_model.CpSolver) -> ApartSolution:
        """The solver's solution."""

        def chosen(literals: Iterable[Literal]) -> int:
            return next((n for n, x in enumerate(literals) if solver.boolean_value(x)), -1)

        policies = []
        for choice in self.choices:
            fate = next(policy for policy, x in choice.fate.items() if solver.boolean_value(x))
            policies.append(f"ship>{chosen(choice.away)}" if fate == SHIP else fate)
        starts = {
            key: solver.value(var)
            for key, var in self.start.items()
            if key[0] != Kind.R or policies[key[1]] == RECOMPUTE
        }
        front, rear = (tuple(chosen(rows) for rows in table) for table in zip(*map(_rows, self.choices), strict=True))
        times = {name: {place: solver.value(var) for place, var in table.items()} for name, table in self.moves.items()}
        return ApartSolution(front, rear, tuple(policies), starts, times)


def _rows(choice: Choice) -> tuple[list[Literal], list[Literal]]:
    return choice.front, choice.rear
