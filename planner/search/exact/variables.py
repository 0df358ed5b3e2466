"""The variables of the model, made in one place: starts, what is chosen, and the intervals that families add.

Micro-batches are alike, so the k-th F, k-th I, k-th W and k-th stash of a stage and direction may be those of the
k-th micro-batch of that direction (sorting start times keeps every precedence and the number of live stashes); with
two directions the micro-batches that go down come first. Where the policy of a stash is chosen per micro-batch, first
in first out is an assumption, not a symmetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ortools.sat.python import cp_model

from ...basics import check_time
from ...graph import KEEP, POLICIES, StashPolicy
from ...plan import Kind
from .instance import Instance
from .timetable import Literal, Time, Timetable, negated

Key = tuple[Kind, int, int]
"""Kind, stage, micro-batch."""
Unit = tuple[int, int]
"""Stage, micro-batch."""
Sites = list[tuple[int, Literal]]
"""Sites, and when each is meant."""

_WAYS: tuple[Callable[[StashPolicy], bool], ...] = (
    lambda row: not row.remade and not row.leaves,
    lambda row: row.remade,
    lambda row: row.hosted,
    lambda row: row.shipped,
)
"""What a row of the table may say of a stash: it stays, is made again, goes to the host, or to another device."""


@dataclass(frozen=True)
class Choice:
    """What a stage does with a micro-batch: sites, and a policy for its stash.

    Attributes:
        front, rear: by site, that its F, its backward runs there. `pair`: by both. `same`: one device for both.
        policy: by policy; by what its row in the table says, `kept` (nothing else), `remade`, `hosted`, `shipped`.
        away: by site, that the stash is shipped there and back.
        moved: the stash, or what recompute keeps, goes straight from device to device. `arrives`: by message: moved,
            or shipped back. `carried`: the stash itself leaves the device of its F, to be used elsewhere or later.
        stays: it does not, nor is it made again.
    """

    front: tuple[Literal, ...]
    rear: tuple[Literal, ...]
    pair: Mapping[tuple[int, int], Literal]
    same: Literal
    policy: Mapping[str, Literal]
    kept: Literal
    remade: Literal
    hosted: Literal
    shipped: Literal
    away: tuple[Literal, ...]
    moved: Literal
    arrives: Literal
    carried: Literal
    stays: Literal


@dataclass(frozen=True)
class Moves:
    """When a stash that does not stay leaves the device of its F and comes to that of its backward.

    `out`: starts to leave, `gone`: has left; `back`: starts to arrive, `posted`: takes memory there; `visited`: takes
    memory on the device it is shipped to, `left`: has left that (or the host). `own`: those that are variables.
    """

    out: Time
    back: Time
    posted: Time
    visited: Time
    gone: Time
    left: Time
    own: tuple[cp_model.IntVar, ...]


@dataclass(frozen=True)
class Solution:
    """Ticks of every compute op; of every stage and micro-batch the sites, and the policy where it is not "keep".

    `times`: by the names in Moves and (stage, micro-batch), where they mean something.
    """

    starts: Mapping[Key, int]
    sites: Mapping[Unit, tuple[int, int]]
    policies: Mapping[Unit, str]
    times: Mapping[str, Mapping[Unit, int]]

    def policy(self, s: int, k: int) -> str:
        """What happens to a stash."""
        return self.policies.get((s, k), KEEP)


class Variables(Timetable):
    """The variables of one instance; `lower` <= makespan <= `upper` ticks. Families of constraints add to them.

    `runs`: intervals of compute ops by (kind, stage, micro-batch, site).
    """

    def __init__(self, instance: Instance, lower: int, upper: int) -> None:
        super().__init__(lower, upper)
        self.instance = instance
        self.rooms = {("host", node): room for node, room in enumerate(instance.host_room) if room is not None}
        for device, (capacity, beside) in enumerate(zip(instance.capacity, instance.beside, strict=True)):
            self.rooms["device", device] = capacity - beside
        self.runs: dict[tuple[Kind, int, int, int], cp_model.IntervalVar] = {}
        self.start: dict[Key, cp_model.IntVar] = {}
        self.moves: dict[Unit, Moves] = {}
        self._ends: dict[Key, Time] = {}
        batches = range(instance.micro_batches)
        self.up = [self.model.new_bool_var(f"up{k}") for k in batches] if instance.directions == 2 else []
        self.choices: dict[Unit, Choice] = {}
        for s, stage in enumerate(instance.stages):
            shared = self._open_choice(s) if instance.open else None
            for k in batches:
                check_time()
                choice = self.choices[s, k] = shared or self._choice_of_direction(s, k)
                for kind in (*stage.kinds, *([Kind.R] if choice.remade is not False else [])):
                    self.start[kind, s, k] = self.ticks()
                if choice.carried is not False or choice.moved is not False:
                    self.moves[s, k] = self._moves(s, choice)

    def _one_of(self, names: Iterable[str]) -> dict[str, Literal]:
        """A literal for each of these, of which exactly one holds."""
        first, *rest = names
        if not rest:
            return {first: True}
        found: dict[str, Literal] = {first: self.model.new_bool_var(first)}
        if len(rest) == 1:
            return found | {rest[0]: negated(found[first])}
        found |= {name: self.model.new_bool_var(name) for name in rest}
        self.model.add_exactly_one(found.values())
        return found

    def _with(self, policy: Mapping[str, Literal], what: Callable[[StashPolicy], bool]) -> Literal:
        """When the policy's row says so."""
        some = [literal for name, literal in policy.items() if what(POLICIES[name])]
        if len(some) <= 1:
            return some[0] if some else False
        return self.none(*(literal for name, literal in policy.items() if not what(POLICIES[name])))

    # ------------------------------------------------------------ what is chosen

    def direction(self, way: int, k: int) -> Literal:
        """When micro-batch k takes a direction."""
        if not self.up:
            return True
        return self.up[k] if way else ~self.up[k]

    def _choice_of_direction(self, s: int, k: int) -> Choice:
        """Forward and backward at the site of the direction; the micro-batch's own policy."""
        here = tuple(self.direction(way, k) for way in range(self.instance.directions))
        options = [self.instance.choices(s, way) for way in range(len(here))]
        policy = self._one_of(dict.fromkeys(name for names in options for name in names))
        for names, literal in zip(options, here, strict=True):
            for name in policy:
                if name not in names:
                    self.model.add_bool_or(negated(policy[name]), negated(literal))
        never = (False,) * len(here)
        pair = {(way, way): literal for way, literal in enumerate(here)}
        kept, remade, hosted, shipped = (self._with(policy, what) for what in _WAYS)
        return Choice(
            front=here, rear=here, pair=pair, same=True, policy=policy, kept=kept, remade=remade, hosted=hosted,
            shipped=shipped, away=never, moved=False, arrives=False, carried=hosted, stays=kept,
        )  # fmt: skip

    def _open_choice(self, s: int) -> Choice:
        """Any forward and any backward site, and a policy for all micro-batches."""
        model, stage, node = self.model, self.instance.stages[s], self.instance.node
        sites = range(len(stage.sites))
        pair = {ab: model.new_bool_var("") for ab in stage.finish}
        front, rear = ([model.new_bool_var("") for _ in sites] for _ in range(2))
        model.add_exactly_one(pair.values())
        for d in sites:
            model.add(sum(x for (a, _), x in pair.items() if a == d) == front[d])
            model.add(sum(x for (_, b), x in pair.items() if b == d) == rear[d])
        same = model.new_bool_var("")
        model.add(sum(pair[d, d] for d in sites) == same)
        policy = self._one_of(self.instance.choices(s, 0))
        kept, remade, hosted, shipped = (self._with(policy, what) for what in _WAYS)
        away: list[Literal] = [False for _ in sites]
        if shipped is not False:
            away = [model.new_bool_var("") for _ in sites]
            model.add(sum(away) == shipped)
            for d in sites:
                model.add_implication(away[d], ~front[d])
            model.add_bool_or(negated(shipped), same)
        for (a, b), literal in pair.items():
            if hosted is not False and node[stage.sites[a].device] != node[stage.sites[b].device]:
                model.add_bool_or(negated(hosted), ~literal)
        stays, again = self.every(kept, same), self.every(remade, same)
        return Choice(
            front=tuple(front), rear=tuple(rear), pair=pair, same=same, policy=policy, kept=kept, remade=remade,
            hosted=hosted, shipped=shipped, away=tuple(away), moved=self.none(stays, again, hosted, shipped),
            arrives=self.none(stays, again, hosted), carried=self.none(stays, remade), stays=stays,
        )  # fmt: skip

    def _moves(self, s: int, choice: Choice) -> Moves:
        """Times of a stash on its way; where it only goes to the host and back, two of them say all."""
        copies = {site.copy.occupation for site in self.instance.stages[s].sites}
        out, back = self.ticks(), self.ticks()
        if choice.same is True and choice.shipped is False and len(copies) == 1:
            occupied = copies.pop()
            return Moves(out, back, back, out, out + occupied, back + occupied, (out, back))
        posted, visited, gone, left = (self.ticks() for _ in range(4))
        return Moves(out, back, posted, visited, gone, left, (out, back, posted, visited, gone, left))

    # ------------------------------------------------------------ times

    def places(self, kind: Kind, s: int, k: int) -> tuple[Literal, ...]:
        """When an op of a stage runs at each site."""
        choice = self.choices[s, k]
        return choice.front if kind is Kind.F else choice.rear

    def sizes(self, kind: Kind, s: int) -> list[int]:
        """Ticks of an op by site."""
        return [site.ticks[kind] for site in self.instance.stages[s].sites]

    def after(self, time: Time, kind: Kind, s: int, k: int, literal: Literal = True) -> None:
        """A time is not before the end of an op, when the literal holds."""
        start, sizes = self.start[kind, s, k], self.sizes(kind, s)
        self.when(literal, time >= start + min(sizes))
        for place, size in zip(self.places(kind, s, k), sizes, strict=True):
            if size > min(sizes):
                self.when(self.every(place, literal), time >= start + size)

    def end(self, kind: Kind, s: int, k: int) -> Time:
        """The end of an op (or any time after it)."""
        key, sizes = (kind, s, k), self.sizes(kind, s)
        if len(set(sizes)) == 1:
            return self.start[key] + sizes[0]
        if key not in self._ends:
            self._ends[key] = self.ticks()
            self.after(self._ends[key], kind, s, k)
        return self._ends[key]
