"""Where the W ops go: a list scheduler around given orders of F and I.

A W can run at any time after its I, so it fills the gaps in which its device would wait, and the rest wait for
the end, unless the device's stashes reach a limit: then a W goes before the F that would exceed it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..plan import Kind, Op
from .layout import weight_backward
from .timing import ROUNDING, Timing

_FORWARD, _WEIGHT = Kind.F, Kind.W
Ends = list[list[float | None]]


class Listed(NamedTuple):
    """Compute orders of every device, their step in seconds, and the bytes by which stashes exceed the room."""

    orders: tuple[tuple[Op, ...], ...]
    step_s: float
    over_bytes: float


def with_weights(orders: Sequence[Sequence[Op]], route: Sequence[int], most: int) -> tuple[tuple[Op, ...], ...]:
    """Orders of F and I of one pipeline with their W placed; every op takes one unit of time.

    Args:
        orders: F and I of every device; must be free of deadlock.
        route: device of every stage.
        most: stashes a device may hold, from F until W. Where F and I alone need more, that much is held.
    """
    return filled(orders, route, Timing.unit(len(route), len(orders), most)).orders


def filled(orders: Sequence[Sequence[Op]], route: Sequence[int], timing: Timing, least_gap: float = 0.0) -> Listed:
    """The same with other costs; a W goes into a gap of at least `least_gap` of its time.

    A W that is longer than its gap delays what comes after, so which share is best depends on the costs. W that the
    orders hold stay where they are; then there must be all.
    """
    batches = 1 + max((op.micro_batch for order in orders for op in order), default=-1)
    forwards: Ends = [[None] * batches for _ in route]
    backwards: Ends = [[None] * batches for _ in route]
    arrival = [0.0 if a == b else s for a, b, s in zip(route, route[1:], timing.arrival_s, strict=False)]
    devices = [
        _Device(order, room, timing, arrival, least_gap) for order, room in zip(orders, timing.room_bytes, strict=True)
    ]
    neighbours: list[set[int]] = [set() for _ in orders]
    for a, b in zip(route, route[1:], strict=False):
        neighbours[a].add(b)
        neighbours[b].add(a)
    runnable = dict.fromkeys(range(len(devices)))
    while runnable:
        d = next(iter(runnable))
        del runnable[d]
        if devices[d].advance(forwards, backwards):
            runnable.update(dict.fromkeys(neighbours[d]))
    step_s = max((device.clock for device in devices), default=0.0)
    return Listed(tuple(tuple(device.order) for device in devices), step_s, max(device.over for device in devices))


class _Device:
    """One device's list in the making."""

    def __init__(
        self, todo: Sequence[Op], room: float, timing: Timing, arrival: Sequence[float], least_gap: float
    ) -> None:
        self.todo = todo
        self.room = room * (1 + ROUNDING)
        self.timing = timing
        self.arrival = arrival
        self.gaps = [max(least_gap - ROUNDING, ROUNDING) * w for w in timing.weight_s]
        self.left = [b - a for a, b in zip(timing.stash_bytes, timing.pending_bytes, strict=True)]
        self.places = all(op.kind is not _WEIGHT for op in todo)
        self.order: list[Op] = []
        self.next = 0
        self.clock = 0.0
        self.held = 0.0
        self.over = 0.0
        self.pending: deque[Op] = deque()

    def advance(self, forwards: Ends, backwards: Ends) -> bool:
        """Runs all ops whose inputs are known, with the W before them; whether there was any."""
        first, last, todo = self.next, len(forwards) - 1, self.todo
        order, pending, arrival = self.order, self.pending, self.arrival
        forward_s, input_s, stash = self.timing.forward_s, self.timing.input_s, self.timing.stash_bytes
        for k in range(first, len(todo)):
            op = todo[k]
            kind, stage, m, _ = op
            is_forward = kind is _FORWARD
            if is_forward:
                ready = forwards[stage - 1][m] if stage else 0.0
                wait = arrival[stage - 1] if stage else 0.0
            elif kind is _WEIGHT:
                self.next = k + 1
                self._run_weight(op)
                continue
            elif stage == last:
                ready, wait = forwards[stage][m], 0.0
            else:
                ready, wait = backwards[stage + 1][m], arrival[stage]
            if ready is None:
                break
            ready += wait
            if pending:
                self._fill(ready, stash[stage] if is_forward else 0.0)
            order.append(op)
            self.next = k + 1
            begin = self.clock if self.clock > ready else ready
            if is_forward:
                self.held += stash[stage]
                self.over = max(self.over, self.held - self.room)
                forwards[stage][m] = self.clock = begin + forward_s[stage]
            else:
                self.held += self.left[stage]
                if self.places:
                    pending.append(weight_backward(stage, m))
                backwards[stage][m] = self.clock = begin + input_s[stage]
        if self.next == len(todo):
            self._fill(math.inf, 0.0)
        return self.next > first

    def _fill(self, until: float, needed: float) -> None:
        """W into the gap, and where an F needs so many bytes more than there are."""
        while self.pending:
            stage = self.pending[0].stage
            if until - self.clock < self.gaps[stage] and self.held + needed <= self.room:
                return
            self._run_weight(self.pending.popleft())

    def _run_weight(self, op: Op) -> None:
        self.order.append(op)
        self.clock += self.timing.weight_s[op.stage]
        self.held -= self.timing.pending_bytes[op.stage]
