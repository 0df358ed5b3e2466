"""A rank that nobody spawned watches itself, and tells the others what it does through the job's store (torchrun)."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch.distributed as dist

from .watch import Board, Doing, Hang, Slot, Watcher

_MESSAGE = struct.Struct("=5q")
_BEAT_S = 1.0
_BEATS = 2
"""A rank that says nothing new for so many beats may have gone quiet: one that waits tells how long at every beat."""
_GRACE_S = 5.0
"""How long at most the rank that hangs may take to say so itself before another one says it."""


class Watchdog:
    """A thread that ends this process with one line on stderr when a rank hangs.

    The rank that hangs says so itself where it can; torchrun then ends the others. Where it cannot (it is stopped, or
    its node is gone) the first rank that waits does.
    """

    def __init__(self, watcher: Watcher, board: Board, rank: int) -> None:
        self._watcher = watcher
        self._board = board
        self._rank = rank
        self._ranks = len(watcher.plan.orders)
        self._beat_s = min(_BEAT_S, watcher.timeout_s / 4)
        self._grace_s = min(_GRACE_S, watcher.timeout_s)
        self._heard: dict[int, tuple[bytes, int]] = {}
        self._over = threading.Event()
        self._store: Any = None

    def __enter__(self) -> Watchdog:
        self._board.write(self._rank, Doing.STARTING, -1, -1, -1, time.monotonic_ns())
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        suspected_s = 0.0
        while not self._over.wait(self._beat_s):
            slots = self._exchange()
            hang = self._silent(slots)
            if hang is None and not self._pending(slots):
                hang = self._watcher.hang(slots)
            suspected_s = suspected_s + self._beat_s if hang is not None else 0.0
            if hang is None:
                continue
            if hang.rank == self._rank or (suspected_s > self._grace_s and self._speaks_for(hang)):
                sys.stderr.write(f"contraflow: {hang.text}\n")
                sys.stderr.flush()
                os._exit(1)

    def _quiet_s(self, slots: Sequence[Slot]) -> dict[int, float]:
        """How long the ranks that this one listens to have said nothing new."""
        now = time.monotonic_ns()
        return {
            rank: (now - since_ns) / 1e9
            for rank, (_, since_ns) in self._heard.items()
            if slots[rank].doing is not Doing.DONE
        }

    def _pending(self, slots: Sequence[Slot]) -> bool:
        """Whether some rank may have gone quiet, so that its last words say nothing about what it does now."""
        return any(quiet_s > _BEATS * self._beat_s for quiet_s in self._quiet_s(slots).values())

    def _silent(self, slots: Sequence[Slot]) -> Hang | None:
        """A rank whose own watchdog has gone quiet: its last words may be older than what it hangs in."""
        for rank, quiet_s in self._quiet_s(slots).items():
            if quiet_s > self._watcher.timeout_s:
                where = self._watcher.where(rank, slots[rank])
                text = f"rank {rank} has not been heard of for {self._watcher.timeout_s:g} s, last seen {where}"
                return Hang(rank, text)
        return None

    def _speaks_for(self, hang: Hang) -> bool:
        return self._rank == min(rank for rank in range(self._ranks) if rank != hang.rank)

    def _exchange(self) -> list[Slot]:
        """All ranks' slots as far as they are known; publishes this one's."""
        mine = self._board.read(self._rank)
        slots = [Slot(Doing.STARTING)] * self._ranks
        slots[self._rank] = mine
        try:
            store = self._connected()
            age = time.monotonic_ns() - mine.since_ns
            store.set(_key(self._rank), _MESSAGE.pack(mine.doing, mine.step, mine.place, mine.awaited, age))
            if mine.doing is Doing.WAITING and age > 5e8 * self._watcher.timeout_s:
                self._listen(store, slots)
            else:
                self._heard.clear()
        except (RuntimeError, OSError, ValueError):  # the store has gone: this rank is still watched
            self._store = None
        return slots

    def _connected(self) -> Any:
        if self._store is None:
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                address, port, is_master=False, wait_for_workers=False
            )
        return self._store

    def _listen(self, store: Any, slots: list[Slot]) -> None:
        """What the others last said; a rank that says nothing new does not get younger."""
        for rank in range(self._ranks):
            if rank == self._rank:
                continue
            if not store.check([_key(rank)]):  # it has not said a word yet, though this rank waits for it
                self._heard.setdefault(rank, (b"", time.monotonic_ns()))
                continue
            said, now = store.get(_key(rank)), time.monotonic_ns()
            if self._heard.get(rank, (b"", 0))[0] != said:
                self._heard[rank] = (said, now)
            doing, step, place, awaited, age = _MESSAGE.unpack(said)
            slots[rank] = Slot(Doing(doing), step, place, awaited, self._heard[rank][1] - age)


def _key(rank: int) -> str:
    return f"contraflow/watch/{rank}"
