"""Memory in the order model: stashes live from F to the last backward op, less what recompute or a copy frees.

An op allocates at its start and releases at its end. Messages in transit are left out (a relaxation); what an op
certainly holds while it runs is in.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

from ...graph import KEEP, OFFLOAD, RECOMPUTE
from ...plan import Kind
from .instance import Instance

if TYPE_CHECKING:
    from .model_orders import OrderModel

Expression = cp_model.LinearExprT


class Memory:
    """Adds the memory of an order model; `possible`: every stage can hold one stash while its ops run."""

    def __init__(self, model: OrderModel) -> None:
        self.owner, self.instance = model, model.instance
        self.demands: dict[int, list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        self.host: dict[int, list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        self.spare = _spare(self.instance)
        self.possible = _fits_at_all(self.instance)

    def add(self) -> None:
        """Cumulative memory of every device where it may bind, and the precedences it implies."""
        for w, way in enumerate(self.instance.ways):
            for s, device in enumerate(way.devices):
                if device not in self.instance.tight:
                    continue
                exact = self._add_precedences(w, s, device)
                if not exact:
                    self._add_stage(w, s, device)
        for device, held in self.demands.items():
            self._cumulative(held, self.spare[device])
        for node, held in self.host.items():
            room = self.instance.host_room[node]
            if room is not None:
                self._cumulative(held, room)

    def _cumulative(self, held: list[tuple[cp_model.IntervalVar, int]], capacity: int) -> None:
        intervals, units = zip(*held, strict=True)
        self.owner.model.add_cumulative(intervals, units, capacity)

    def _add_precedences(self, w: int, s: int, device: int) -> bool:
        """F number k + most waits for a release number k; whether that is all that memory asks of the device.

        Live stashes only fall by a B (or I), which runs while all of them are there: F and B allow the same number.
        Halves held for the weights only fall by a W.
        """
        owner, instance = self.owner, self.instance
        way, stash = instance.ways[w], instance.stash[s]
        if owner.two or instance.choices(way, s) != (KEEP,):
            return False
        back, last = instance.backward(s), instance.kinds(s)[-1]
        room = instance.capacity[device] - max(stash.forward, stash.backward)
        for kind, units in ((back, stash.bytes), (last, min(stash.bytes, stash.held))):
            if units:
                most = room // units if kind == back else (instance.capacity[device] - stash.forward) // units
                for k in range(instance.micro_batches - most):
                    end = owner.start[kind, s, k] + way.ticks(kind, s)
                    owner.model.add(owner.start[Kind.F, s, k + most] >= end)
        return back == last and way.devices.count(device) == 1

    def _add_stage(self, w: int, s: int, device: int) -> None:
        """Lifetimes of a stage's stashes on a device, and what its ops hold beyond the least that any op holds."""
        owner, stash = self.owner, self.instance.stash[s]
        least = self.instance.capacity[device] - self.spare[device]
        for k in range(self.instance.micro_batches):
            for mode in owner.modes[s, k]:
                if mode.way == w:
                    self._add_mode(w, s, k, mode.policy, mode.literal, device)
            for kind in (*self.instance.kinds(s), Kind.R):
                units = stash.running(kind) - least
                if units > 0 and (kind, s, k, w) in owner.intervals:
                    self.demands[device].append((owner.intervals[kind, s, k, w], units))

    def _add_mode(self, w: int, s: int, k: int, policy: str, literal: cp_model.LiteralT | None, device: int) -> None:
        owner, way, stash = self.owner, self.instance.ways[w], self.instance.stash[s]
        back, last = self.instance.backward(s), self.instance.kinds(s)[-1]
        made: Expression = owner.start[Kind.F, s, k]

        def hold(start: Expression, end: Expression, units: int) -> None:
            if units > 0:
                self.demands[device].append((owner.lifetime(start, end, literal), units))

        if policy == RECOMPUTE:
            remade = owner.start[Kind.R, s, k]
            hold(made, remade, stash.kept)
            made = remade
        elif policy == OFFLOAD:
            out, home, occupied = owner.start[Kind.OFFLOAD, s, k], owner.start[Kind.FETCH, s, k], way.copy[s][0]
            hold(made, out + occupied, stash.bytes)
            node = self.instance.node[device]
            if self.instance.host_room[node] is not None:
                self.host[node].append((owner.lifetime(out, home + occupied, literal), stash.bytes))
            made = home
        both = min(stash.bytes, stash.held)
        begin, end = owner.start[back, s, k], owner.start[back, s, k] + way.ticks(back, s)
        final = owner.start[last, s, k] + way.ticks(last, s)
        hold(made, end, stash.bytes - both)
        hold(made, final, both)
        hold(begin, final, stash.held - both)


def _spare(instance: Instance) -> dict[int, int]:
    """Units for stashes per device: whatever runs, at least the smallest of its needs is taken as well."""
    least: dict[int, int] = {}
    for way in instance.ways:
        for s, device in enumerate(way.devices):
            small = min(instance.stash[s].running(kind) for kind in instance.kinds(s))
            least[device] = min(least.get(device, small), small)
    return {device: instance.capacity[device] - units for device, units in least.items()}


def _fits_at_all(instance: Instance) -> bool:
    """Whether every stage can hold one stash on its device while its ops run."""
    return all(
        stash.bytes + max(stash.forward, stash.backward) <= instance.capacity[device]
        for way in instance.ways
        for stash, device in zip(instance.stash, way.devices, strict=True)
    )
