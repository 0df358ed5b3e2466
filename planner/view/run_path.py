"""The critical path of a run: what decided when each op really started, and the chain that decided the end.

A device that was blocked before an op waited for what came last of all that the op needs; else the op started because
the one before it had ended. What is posted (messages, copies) begins when the op before it in the list has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph import NOWHERE, Floats, Ints
from ..plan import COLLECTIVES

if TYPE_CHECKING:
    from ..forecast import Jobs
    from ..runs import RunTrace
    from .critical import Waiting

BLOCKED = 1e-4
"""Of the step: a device that was blocked for less did not wait; looking whether a message is there takes as long."""


@dataclass(frozen=True)
class RunPath:
    """Numbers of items (see `html_data`).

    Attributes:
        decided: for every item the one that decided when it started, -1: none, it could start with the step.
        items: the path, in the order of time.
    """

    decided: list[int]
    items: list[int]

    @classmethod
    def of(cls, jobs: Jobs, op: Ints, waiting: Waiting, run: RunTrace) -> RunPath:
        """`op`: the op of every item; `waiting`: what items wait for, sorted by the waiting one."""
        decided = _Deciders(jobs, op, waiting, run).all()
        end = np.array([timed.end_s for device in run.devices for timed in device.ops])[op]
        lined = np.flatnonzero(jobs.ops.in_line[op])
        path = [int(lined[np.argmax(end[lined])])] if len(lined) else []
        seen = set(path)
        while path and decided[path[-1]] >= 0 and decided[path[-1]] not in seen:
            path.append(decided[path[-1]])
            seen.add(path[-1])
        return cls(decided, path[::-1])


class _Deciders:
    def __init__(self, jobs: Jobs, op: Ints, waiting: Waiting, run: RunTrace) -> None:
        self.ops, self.op = jobs.ops, op
        self.item = np.full(len(jobs.ops), -1, dtype=np.int64)
        self.item[op] = np.arange(len(op))
        timed = [x for device in run.devices for x in device.ops]
        self.over = np.array([x.end_s for x in timed])
        self.over[jobs.messages.send] = self.over[jobs.messages.receive]  # it is over when it has come
        self.blocked = self._blocked(np.array([x.waited_s for x in timed])) > BLOCKED * run.step_s
        self.before = waiting.before
        self.first = np.searchsorted(waiting.after, np.arange(len(op) + 1))

    def _blocked(self, waited: Floats) -> Floats:
        """Seconds for which its device was blocked between the op in line before each op and that op."""
        until = np.append(0.0, np.cumsum(waited))
        since = np.where(self.ops.previous >= 0, self.ops.previous + 1, self.ops.first[self.ops.device])
        return np.asarray(until[1:] - until[since], dtype=np.float64)

    def all(self) -> list[int]:
        """The decider of every item."""
        return [self._of(item, int(place)) for item, place in enumerate(self.op)]

    def _of(self, item: int, place: int) -> int:
        own = int(self.ops.previous[place])
        found = self.before[self.first[item] : self.first[item + 1]]
        if self.ops.in_line[place]:
            found = found[self.op[found] != own] if own < 0 or self.blocked[place] else NOWHERE
        elif self.ops.kind[place] not in COLLECTIVES:
            found = NOWHERE
        if len(found):
            return int(found[np.argmax(self.over[self.op[found]])])
        return int(self.item[own]) if own >= 0 else -1
