"""Orders squeezed by costs: a device that would wait runs what is ready and stands a little later in its list.

An event-driven list scheduler. The given orders are priorities, free of deadlock; an op may overtake as long as all
that it overtakes still fits the room, so what comes out runs too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from ..plan import Kind, Op
from .timing import ROUNDING, Timing

LOOKAHEAD = 8
"""Ops of a list that are looked at when its first one is not ready."""


class Squeeze:
    """F and I of one pipeline, to be reordered.

    Args:
        orders: F and I of every device; must be free of deadlock.
        route: device of every stage.
        timing: costs and room.
    """

    def __init__(self, orders: Sequence[Sequence[Op]], route: Sequence[int], timing: Timing) -> None:
        self.stages, self.room = len(route), [room * (1 + ROUNDING) for room in timing.room_bytes]
        self.device, self.arrival = list(route) * 2, timing.arrival_s
        # by unit: a stage's F, then a stage's I
        self.takes = [*timing.forward_s, *timing.input_s]
        self.alive = [*timing.stash_bytes, *(-size for size in timing.stash_bytes)]
        left = [later - size for size, later in zip(timing.stash_bytes, timing.pending_bytes, strict=True)]
        self.held = [*timing.stash_bytes, *left]
        self.weight, self.later = timing.weight_s, timing.pending_bytes
        # an op is its unit times `batches`, plus its micro-batch
        self.batches = 1 + max((op.micro_batch for order in orders for op in order), default=-1)
        self.codes = [[self._code(op) for op in order] for order in orders]

    def _code(self, op: Op) -> int:
        return (op.stage + (op.kind is not Kind.F) * self.stages) * self.batches + op.micro_batch

    def first(self, micro_batches: int) -> Squeeze:
        """The same with the first micro-batches only."""
        fewer = object.__new__(Squeeze)
        fewer.__dict__.update(self.__dict__)
        fewer.codes = [[code for code in codes if code % self.batches < micro_batches] for codes in self.codes]
        return fewer

    def run(self, weight_gap: float, other_gap: float) -> Run:
        """Reorders, with W in the gaps.

        A W, or an F or I out of turn, goes into a wait of at least `weight_gap` or `other_gap` of its time.
        """
        return Run(self, weight_gap, other_gap)


class Run:
    """One event-driven simulation, which makes the lists.

    Attributes:
        fits: whether it came to its end; else not even the given orders fit.
        step_s: seconds until the last op has ended.
    """

    def __init__(self, given: Squeeze, weight_gap: float, other_gap: float) -> None:
        devices, batches = len(given.codes), given.batches
        self.given = given
        self.weight_gaps = [weight_gap * seconds for seconds in given.weight]
        self.other_gaps = [other_gap * seconds for seconds in given.takes]
        self.todo = [list(codes) for codes in given.codes]
        self.lists: list[list[int]] = [[] for _ in range(devices)]
        self.pending: list[deque[int]] = [deque() for _ in range(devices)]
        self.clock = [0.0] * devices
        self.alive = [0.0] * devices
        self.held = [0.0] * devices
        self.ready = [0.0] * batches + [math.inf] * (2 * given.stages - 1) * batches
        self.events = [(0.0, d) for d in range(devices)]
        while self.events:
            now, d = heappop(self.events)
            if self.clock[d] <= now:
                self._turn(d, now)
        self.fits = not any(self.todo)
        self.step_s = max(self.clock, default=0.0)

    @property
    def orders(self) -> tuple[tuple[Op, ...], ...]:
        """The lists, of F, I and W."""
        stages, batches = self.given.stages, self.given.batches
        kinds = [Kind.F] * stages + [Kind.I] * stages + [Kind.W] * stages
        return tuple(
            tuple(Op(kinds[code // batches], code // batches % stages, code % batches) for code in codes)
            for codes in self.lists
        )

    def _turn(self, d: int, now: float) -> None:
        """What a free device does now."""
        todo, pending = self.todo[d], self.pending[d]
        if not todo:
            while pending:
                self._weight(d, self.clock[d])
            return
        first = self.ready[todo[0]]
        k = 0 if first <= now else self._overtaking(d, now, first)
        fits = self._fits(d, todo[max(k, 0)])
        if k >= 0 and fits:
            self._run(d, now, todo.pop(k))
        elif pending and (not fits or first - now >= self.weight_gaps[pending[0] // self.given.batches]):
            self._weight(d, now)
            heappush(self.events, (self.clock[d], d))
        elif now < first < math.inf:
            heappush(self.events, (first, d))

    def _fits(self, d: int, code: int) -> bool:
        """Whether there is room for it, if it is an F."""
        unit = code // self.given.batches
        return unit >= self.given.stages or self.held[d] + self.given.held[unit] <= self.given.room[d]

    def _overtaking(self, d: int, now: float, first: float) -> int:
        """Where in the list the first op is that is ready and may run now; -1: there is none."""
        given, todo, ready = self.given, self.todo[d], self.ready
        batches, stages, alive_of = given.batches, given.stages, given.alive
        alive = most = self.alive[d]
        wait = first - now
        for k, code in enumerate(todo[:LOOKAHEAD]):
            unit = code // batches
            runs = ready[code] <= now and wait >= self.other_gaps[unit]
            if runs and (unit >= stages or most + alive_of[unit] <= given.room[d]):
                return k
            alive += alive_of[unit]
            if alive > most:
                most = alive
        return -1

    def _weight(self, d: int, now: float) -> None:
        code = self.pending[d].popleft()
        stage = code // self.given.batches
        self.lists[d].append(code + 2 * self.given.stages * self.given.batches)
        self.clock[d] = now + self.given.weight[stage]
        self.held[d] -= self.given.later[stage]

    def _run(self, d: int, now: float, code: int) -> None:
        """F or I, and what it lets run."""
        given = self.given
        stages, batches = given.stages, given.batches
        unit = code // batches
        self.lists[d].append(code)
        self.alive[d] += given.alive[unit]
        self.held[d] += given.held[unit]
        self.clock[d] = end = now + given.takes[unit]
        heappush(self.events, (end, d))
        if unit < stages - 1:
            follower, boundary = unit + 1, unit
        elif unit == stages - 1:
            follower, boundary = unit + stages, 0
        else:
            self.pending[d].append(code - stages * batches)
            follower, boundary = unit - 1, unit - stages - 1
            if unit == stages:
                return
        other = given.device[follower]
        if other == d:
            self.ready[code + (follower - unit) * batches] = end
        else:
            arrival = end + given.arrival[boundary]
            self.ready[code + (follower - unit) * batches] = arrival
            if self.clock[other] <= arrival:
                heappush(self.events, (arrival, other))
