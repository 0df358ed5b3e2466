"""Memory that was promised is kept: a run ends before an op that would break the promise, or right after one that did.

Tensors are followed one by one, so that what is measured is what the plan speaks of.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from ...planner.forecast import Taken, bytes_taken
from ...planner.graph import route
from ...planner.plan import Kind, Plan
from ..place import Place
from ..wires import Transport


class MemoryExceeded(RuntimeError):
    """A device or host holds, or would hold, more than was planned; both numbers, in bytes."""


_Alike = tuple[Kind, int, str]


class Limit:
    """A device's planned peak, and what the ops of its list need.

    An op declares what it keeps and, as an upper bound, its workspace. The least that one of its kind, stage and stash
    policy has taken from when its inputs were there is what it needs then, and at the most what it keeps before.

    Attributes:
        planned_bytes: the peak of the plan's forecast.
    """

    def __init__(self, plan: Plan, device: int) -> None:
        assert plan.forecast is not None  # require_executable saw to it
        self.planned_bytes = plan.forecast.peak_bytes[device]
        self._device = device
        self._declared: Sequence[Taken] = ()
        self._alike: Sequence[_Alike] = ()
        self._measured: dict[_Alike, int] = {}
        self._position = self._before = self._most = 0

    def follow(self, plan: Plan) -> None:
        """The device runs its list of this plan from now on: the same one, as long as the run."""
        order, pipelines = plan.orders[self._device], route(plan)
        self._declared = bytes_taken(plan, self._device)
        self._alike = [
            (op.kind, op.stage, plan.stash[pipelines[op.micro_batch]][op.stage] if op.micro_batch in pipelines else "")
            for op in order
        ]

    def admit(self, position: int, live_bytes: int) -> None:
        """Before the op at this position of the list. Raises MemoryExceeded."""
        self._position, kept = position, self._declared[position].kept
        self._require(live_bytes, min(kept, self._taken(kept)))
        self._before = self._most = live_bytes

    def started(self, live_bytes: int) -> None:
        """The op that was admitted last has its inputs, and what it does without is gone. Raises MemoryExceeded."""
        self._require(live_bytes, min(self._declared[self._position].bytes, self._taken(0)))
        self._before = self._most = live_bytes

    def _taken(self, otherwise: int) -> int:
        """The least that an op like this one has taken; before any has run, something else."""
        return self._measured.get(self._alike[self._position], otherwise)

    def _require(self, live_bytes: int, needed: int) -> None:
        if needed and live_bytes + needed > self.planned_bytes:
            raise MemoryExceeded(
                f"not run: {live_bytes} bytes held and {needed} declared are {live_bytes + needed} bytes, "
                f"{self.planned_bytes} were planned"
            )

    def hold(self, peak_bytes: int) -> None:
        """After the most that was live lately. Raises MemoryExceeded."""
        if peak_bytes > self.planned_bytes:
            raise MemoryExceeded(f"held {peak_bytes} bytes, {self.planned_bytes} were planned")
        self._most = max(self._most, peak_bytes)

    def ran(self, position: int) -> None:
        """The op that was admitted last has run."""
        key = self._alike[position]
        taken = self._most - self._before  # with what copies brought back meanwhile
        self._measured[key] = min(self._measured.get(key, taken), taken)


def cap_device(place: Place, planned_bytes: int, transport: Transport) -> None:
    """Has the device's allocator refuse what goes far beyond the planned peak; collective over all ranks of the run.

    Its limit is of a process, and of all the ranks that are threads of it.
    """
    mine = (socket.gethostname(), os.getpid(), place.name)
    everyone = transport.all_gather_object((mine, planned_bytes))
    place.cap(sum(count for whose, count in everyone if whose == mine))
