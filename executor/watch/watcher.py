"""Who is to blame when nothing moves: the rank that hangs, not the ranks that wait for it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ...planner.graph import Messages, Ops, StageCosts
from ...planner.plan import COPIES, RECEIVES, Kind, Op, Plan
from ...planner.problem import FLUSH
from ..basics import rank_name
from .board import LONG, MATES, Doing, Slot

SETUP_S = 1800.0
"""The same before the first step (imports, tracing, checking, loading) and after the last (saving)."""

OrdersAt = Callable[[int], Sequence[Sequence[Op]]]
"""The op lists that the ranks follow in a step."""

_OUTSIDE = {
    Doing.STARTING: "while starting",
    Doing.ENDING: "while saving",
    Doing.EVALUATING: "while evaluating",
    Doing.DONE: "after its last step",
    Doing.AWAY: "between its steps",
}
_TEAM = "the other ranks of its team"


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

    @property
    def _team(self) -> int:
        return self.plan.problem.cluster.team

    @property
    def ranks(self) -> int:
        """How many there are: all lanes of all devices."""
        return len(self.plan.orders) * self._team

    def name(self, rank: int) -> str:
        """What messages call a rank, see `rank_name`."""
        return rank_name(rank, self._team)

    def _orders(self, slot: Slot) -> Sequence[Sequence[Op]]:
        return self.plan.orders if self.orders_at is None else self.orders_at(slot.step)

    def _when(self, slot: Slot) -> str:
        return f"{'step' if self.plan.weights == FLUSH else 'update'} {slot.step}"

    def where(self, rank: int, slot: Slot) -> str:
        """What a rank was doing: "in stage 2, op 2B3, micro-batch 3, step 4"."""
        if slot.doing in _OUTSIDE:
            return _OUTSIDE[slot.doing] + (f", waiting for {_TEAM}" if slot.awaited == MATES else "")
        order = self._orders(slot)[rank // self._team]
        if not 0 <= slot.position < len(order):
            return f"at the start of {self._when(slot)}"
        at = f"stage {order[slot.position].stage}, {describe_op(order[slot.position])}, {self._when(slot)}"
        if slot.doing is Doing.COMPUTING:
            return f"in {at}"
        return f"waiting for {self._awaited(rank, slot)} in {at}"

    def lost(self, rank: int, exit_code: int, slot: Slot) -> str:
        """A rank's process that ended without a word: by a signal (negative exit code), or by an exit."""
        if exit_code >= 0:
            return f"{self.name(rank)} ended without a result (exit code {exit_code}) {self.where(rank, slot)}"
        return f"{self.name(rank)} was killed by signal {-exit_code}{_signal_name(-exit_code)} {self.where(rank, slot)}"

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
        could end it. One that is away between its steps may be so for ever.

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
        late = [(slots[rank].awaited == MATES, rank) for rank in outside if age[rank] > self.setup_s]
        if late:
            _, first = min(late)
            return self._hang(first, slots[first], self.setup_s)
        waiting = {rank: slot for rank, slot in started.items() if slot.doing is Doing.WAITING}
        done = [rank for rank, slot in enumerate(slots) if slot.doing is Doing.DONE]
        if not waiting or len(waiting) + len(done) < len(slots) or min(age[r] for r in waiting) <= self.timeout_s:
            return None
        root = self._root(waiting)
        others = "".join(f"; {self.name(r)} {self.where(r, s)}" for r, s in waiting.items() if r != root)
        return self._hang(root, waiting[root], self.timeout_s, others)

    def _hang(self, rank: int, slot: Slot, limit_s: float, others: str = "") -> Hang:
        return Hang(rank, f"{self.name(rank)} hangs {self.where(rank, slot)}: no progress for {limit_s:g} s{others}")

    def _stopped(self, rank: int, slot: Slot) -> Hang:
        seen, for_s = self.where(rank, slot), f"{self.timeout_s:g} s"
        return Hang(rank, f"{self.name(rank)} has been stopped, last seen {seen}: its process has not run for {for_s}")

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
        order = self._orders(slot)[rank // self._team]
        if not 0 <= slot.awaited < len(order):
            return _TEAM if slot.awaited == MATES else "the other ranks"
        op = order[slot.awaited]
        partner = self._partner(rank, slot)
        towards = "" if partner == rank else f" {'from' if op.kind in RECEIVES else 'to'} rank {partner}"
        return f"{op}{towards if op.kind not in (Kind.REDUCE, Kind.GATHER) else ''}"

    def _partner(self, rank: int, slot: Slot) -> int:
        """The rank at the other end of the message that a rank waits for; itself for anything else."""
        orders = self._orders(slot)
        order = orders[rank // self._team]
        if not 0 <= slot.awaited < len(order) or order[slot.awaited].kind in COPIES | {Kind.REDUCE, Kind.GATHER}:
            return rank
        ops = Ops.of(orders, len(self.plan.stages))
        messages = Messages.of(self.plan, StageCosts.of(self.plan.problem.model, self.plan.stages), ops)
        number = int(ops.first[rank // self._team]) + slot.awaited
        for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
            if number in (send, receive):
                return int(ops.device[receive if number == send else send]) * self._team + rank % self._team
        return rank


def lost_another(orders_at: OrdersAt, device: int, slot: Slot) -> bool:
    """Whether an error of a rank of this device in this state came from another rank, which was waited for."""
    if slot.awaited == MATES:
        return True
    if slot.doing is not Doing.WAITING:
        return False
    order = orders_at(slot.step)[device]
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
