"""What every rank is doing, and who is to blame when nothing moves.

Each rank writes what it does into its slot of a `Board` (shared memory, or a plain buffer where ranks are threads);
whoever watches reads all slots and names the rank that hangs, not the ranks that wait for it.
"""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from ...planner.graph import Messages, Ops, StageCosts
from ...planner.plan import COPIES, RECEIVES, Kind, Op, Plan
from ...planner.problem import FLUSH

TIMEOUT_S = 300.0
"""How long a rank may go without progress within a step, unless told otherwise: longer than any operation takes."""
SETUP_S = 1800.0
"""The same before the first step (imports, tracing, checking, loading) and after the last (saving)."""

_SLOT = struct.Struct("=5q")
_BEAT = struct.Struct("=q")
_STRIDE = _SLOT.size + _BEAT.size
NOWHERE = -1
OrdersAt = Callable[[int], Sequence[Sequence[Op]]]
"""The op lists that the ranks follow in a step."""


class Doing(IntEnum):
    """What a rank does; a slot of zeros is a rank that has not started."""

    STARTING = 0
    COMPUTING = 1
    WAITING = 2
    ENDING = 3
    DONE = 4
    EVALUATING = 5


LONG = (Doing.STARTING, Doing.ENDING, Doing.EVALUATING)
"""May take much longer than an op."""
_OUTSIDE = {
    Doing.STARTING: "while starting",
    Doing.ENDING: "while saving",
    Doing.EVALUATING: "while evaluating",
    Doing.DONE: "after its last step",
}


class Slot(NamedTuple):
    """One rank's state.

    `place` is the place in its list of the op that runs, or that cannot start; `awaited` that of the op it waits for
    (-1: for all ranks, at the start of the step). `since_ns`: of the system's monotonic clock.
    """

    doing: Doing
    step: int = NOWHERE
    place: int = NOWHERE
    awaited: int = NOWHERE
    since_ns: int = 0


class Board:
    """A slot for each rank in a buffer of `Board.size(ranks)` bytes, and when its process was last known to run.

    Written without locks: one writer a slot, and one a beat. Behind the slots, for how many seconds ranks have seen
    their parent stopped before they called it back.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    @staticmethod
    def size(ranks: int) -> int:
        """Bytes for so many ranks."""
        return ranks * _STRIDE + _BEAT.size

    def write(self, rank: int, doing: int, step: int, place: int, awaited: int, since_ns: int) -> None:
        """Publishes a rank's state; well under a microsecond."""
        _SLOT.pack_into(self._memory, rank * _STRIDE, doing, step, place, awaited, since_ns)

    def read(self, rank: int) -> Slot:
        """A rank's state."""
        doing, *rest = _SLOT.unpack_from(self._memory, rank * _STRIDE)
        return Slot(Doing(doing), *rest)

    def beat(self, rank: int, now_ns: int) -> None:
        """Says that the rank's process runs."""
        _BEAT.pack_into(self._memory, rank * _STRIDE + _SLOT.size, now_ns)

    def beats(self) -> list[int]:
        """When every rank's process was last known to run, 0: never."""
        found = range(_SLOT.size, len(self._memory) - _BEAT.size, _STRIDE)
        return [_BEAT.unpack_from(self._memory, offset)[0] for offset in found]

    def call_parent(self, seconds: float) -> None:
        """Says that the parent has been stopped for so long while a rank ran."""
        _BEAT.pack_into(self._memory, len(self._memory) - _BEAT.size, int(1e9 * seconds))

    @property
    def parent_stopped_s(self) -> float:
        """For how long ranks have seen their parent stopped; 0: they have not called it back."""
        return float(_BEAT.unpack_from(self._memory, len(self._memory) - _BEAT.size)[0]) / 1e9

    def read_all(self) -> list[Slot]:
        """The states of all ranks."""
        return [self.read(rank) for rank in range(len(self._memory) // _STRIDE)]


class Hang(NamedTuple):
    """The rank that hangs, and one line that says where and for how long."""

    rank: int
    text: str


@dataclass(frozen=True)
class Watcher:
    """Reads slots against a plan.

    Args:
        timeout_s: seconds without progress within a step that are a hang.
        setup_s: the same before the first step and after the last.
        orders_at: where they are not always the plan's.
    """

    plan: Plan
    timeout_s: float
    setup_s: float = SETUP_S
    orders_at: OrdersAt | None = None

    def _orders(self, slot: Slot) -> Sequence[Sequence[Op]]:
        return self.plan.orders if self.orders_at is None else self.orders_at(slot.step)

    def _when(self, slot: Slot) -> str:
        return f"{'step' if self.plan.weights == FLUSH else 'update'} {slot.step}"

    def where(self, rank: int, slot: Slot) -> str:
        """What a rank was doing: "in stage 2, op 2B3, micro-batch 3, step 4"."""
        if slot.doing in (*LONG, Doing.DONE):
            return _OUTSIDE[slot.doing]
        order = self._orders(slot)[rank]
        if not 0 <= slot.place < len(order):
            return f"at the start of {self._when(slot)}"
        at = f"stage {order[slot.place].stage}, {describe_op(order[slot.place])}, {self._when(slot)}"
        if slot.doing is Doing.COMPUTING:
            return f"in {at}"
        return f"waiting for {self._awaited(rank, slot)} in {at}"

    def lost(self, rank: int, exit_code: int, slot: Slot) -> str:
        """A rank's process that ended without a word: by a signal (negative exit code), or by an exit."""
        if exit_code >= 0:
            return f"rank {rank} ended without a result (exit code {exit_code}) {self.where(rank, slot)}"
        return f"rank {rank} was killed by signal {-exit_code}{_signal_name(-exit_code)} {self.where(rank, slot)}"

    def hang(
        self,
        slots: Sequence[Slot],
        now_ns: int | None = None,
        still: Mapping[int, float] = MappingProxyType({}),
        awake_ns: int = 0,
    ) -> Hang | None:
        """Who hangs where; None while there is progress.

        A rank whose process does not run is to blame before all others. One that computes hangs when its operation
        takes longer than the timeout. Ranks that wait are to blame only when all of them do: then nobody is left who
        could end it.

        Args:
            still: seconds for which the processes of ranks have not run (see `pulse.Stillness`).
            awake_ns: what was before counts as begun then.
        """
        now = time.monotonic_ns() if now_ns is None else now_ns
        if still:
            longest = max(still, key=lambda rank: (still[rank], -rank))
            over = still[longest] > self.timeout_s
            return self._stopped(longest, slots[longest]) if over else None
        started = {rank: slot for rank, slot in enumerate(slots) if slot.since_ns > 0}
        age = {rank: (now - max(slot.since_ns, awake_ns)) / 1e9 for rank, slot in started.items()}
        busy = [rank for rank, slot in started.items() if slot.doing is Doing.COMPUTING and age[rank] > self.timeout_s]
        if busy:
            worst = max(busy, key=lambda rank: age[rank])
            return self._hang(worst, slots[worst], self.timeout_s)
        outside = [rank for rank, slot in started.items() if slot.doing in LONG]
        late = [rank for rank in outside if age[rank] > self.setup_s]
        if late:
            return self._hang(min(late), slots[min(late)], self.setup_s)
        waiting = {rank: slot for rank, slot in started.items() if slot.doing is Doing.WAITING}
        done = [rank for rank, slot in enumerate(slots) if slot.doing is Doing.DONE]
        if not waiting or len(waiting) + len(done) < len(slots) or min(age[r] for r in waiting) <= self.timeout_s:
            return None
        root = self._root(waiting)
        others = "".join(f"; rank {r} {self.where(r, s)}" for r, s in waiting.items() if r != root)
        return self._hang(root, waiting[root], self.timeout_s, others)

    def _hang(self, rank: int, slot: Slot, limit_s: float, others: str = "") -> Hang:
        return Hang(rank, f"rank {rank} hangs {self.where(rank, slot)}: no progress for {limit_s:g} s{others}")

    def _stopped(self, rank: int, slot: Slot) -> Hang:
        seen, for_s = self.where(rank, slot), f"{self.timeout_s:g} s"
        return Hang(rank, f"rank {rank} has been stopped, last seen {seen}: its process has not run for {for_s}")

    def _root(self, waiting: Mapping[int, Slot]) -> int:
        """Follows who waits for whom from the rank that has waited longest, up to a rank met before."""
        rank = min(waiting, key=lambda r: (waiting[r].since_ns, r))
        met: set[int] = set()
        while rank not in met:
            met.add(rank)
            ahead = self._partner(rank, waiting[rank])
            if ahead not in waiting:
                return rank
            rank = ahead
        return min(met)

    def _awaited(self, rank: int, slot: Slot) -> str:
        order = self._orders(slot)[rank]
        if not 0 <= slot.awaited < len(order):
            return "the other ranks"
        op = order[slot.awaited]
        partner = self._partner(rank, slot)
        towards = "" if partner == rank else f" {'from' if op.kind in RECEIVES else 'to'} rank {partner}"
        return f"{op}{towards if op.kind is not Kind.REDUCE else ''}"

    def _partner(self, rank: int, slot: Slot) -> int:
        """The rank at the other end of the message that a rank waits for; itself for anything else."""
        orders = self._orders(slot)
        order = orders[rank]
        if not 0 <= slot.awaited < len(order) or order[slot.awaited].kind in COPIES | {Kind.REDUCE}:
            return rank
        ops = Ops.of(orders, len(self.plan.stages))
        messages = Messages.of(ops, StageCosts.of(self.plan.problem.model, self.plan.stages))
        number = int(ops.first[rank]) + slot.awaited
        for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
            if number in (send, receive):
                return int(ops.device[receive if number == send else send])
        return rank


def lost_another(orders_at: OrdersAt, rank: int, slot: Slot) -> bool:
    """Whether an error of a rank in this state came from another rank, which was waited for."""
    if slot.doing is not Doing.WAITING:
        return False
    order = orders_at(slot.step)[rank]
    own_copy = 0 <= slot.awaited < len(order) and order[slot.awaited].kind in COPIES
    return not own_copy


def describe_op(op: Op) -> str:
    """ "op 2B3, micro-batch 3"."""
    return f"op {op}" + (f", micro-batch {op.micro_batch}" if op.micro_batch >= 0 else "")


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
