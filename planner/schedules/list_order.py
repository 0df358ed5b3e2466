"""Where the W ops go: a list scheduler in unit time around given orders of F and I.

A W can run at any time after its I, so it fills the slots in which its device would wait, and the rest wait for
the end, unless the device's stashes reach a limit: then a W goes before the F that would exceed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..plan import Kind, Op
from .layout import weight_backward

_FORWARD = Kind.F
Ends = list[list[int | None]]


def with_weights(orders: Sequence[Sequence[Op]], route: Sequence[int], most: int) -> tuple[tuple[Op, ...], ...]:
    """Orders of F and I of one pipeline with their W placed; every op takes one unit of time.

    Args:
        orders: F and I of every device; must be free of deadlock.
        route: device of every stage.
        most: stashes a device may hold, from F until W. Where F and I alone need more, that much is held.
    """
    batches = 1 + max((op.micro_batch for order in orders for op in order), default=-1)
    forwards: Ends = [[None] * batches for _ in route]
    backwards: Ends = [[None] * batches for _ in route]
    devices = [_Device(order, most) for order in orders]
    neighbours: list[set[int]] = [set() for _ in orders]
    for a, b in zip(route, route[1:], strict=False):
        neighbours[a].add(b)
        neighbours[b].add(a)
    runnable = list(range(len(devices)))
    while runnable:
        d = runnable.pop()
        if devices[d].advance(forwards, backwards):
            runnable += neighbours[d]
    return tuple(tuple(device.order) for device in devices)


class _Device:
    """One device's list in the making."""

    def __init__(self, todo: Sequence[Op], most: int) -> None:
        self.todo = todo
        self.most = most
        self.order: list[Op] = []
        self.next = 0
        self.clock = 0
        self.held = 0
        self.pending: deque[Op] = deque()

    def advance(self, forwards: Ends, backwards: Ends) -> bool:
        """Runs all ops whose inputs are known, with the W before them; whether there was any."""
        first, last = self.next, len(forwards) - 1
        for k in range(first, len(self.todo)):
            op = self.todo[k]
            kind, stage, m, _ = op
            if kind is _FORWARD:
                ready = 0 if stage == 0 else forwards[stage - 1][m]
            else:
                ready = forwards[stage][m] if stage == last else backwards[stage + 1][m]
            if ready is None:
                break
            if self.pending:
                self._fill(ready, kind is _FORWARD)
            self.clock = max(self.clock, ready) + 1
            self.order.append(op)
            self.next = k + 1
            if kind is _FORWARD:
                self.held += 1
                forwards[stage][m] = self.clock
            else:
                self.pending.append(weight_backward(stage, m))
                backwards[stage][m] = self.clock
        if self.next == len(self.todo):
            self.order += self.pending
            self.pending.clear()
        return self.next > first

    def _fill(self, until: int, needs_room: bool) -> None:
        while self.pending and (self.clock < until or (needs_room and self.held >= self.most)):
            self.order.append(self.pending.popleft())
            self.clock += 1
            self.held -= 1
