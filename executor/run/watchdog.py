"""A rank that nobody spawned watches itself and its neighbours, and tells the others what it does (torchrun)."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from ..watch import Board, Doing, Hang, ProcessState, Siblings, Slot, Stillness, Watcher, under_torchrun
from ..wires import JobStore

_MESSAGE = struct.Struct("=6q")
_BEAT_S = 0.5
_GRACE_S = 3.0
"""How long at most the rank that hangs may take to say so itself before another one says it."""
_NOTICED_S = 0.5
"""How long after its connections a process that was killed may take to be seen as ended."""


class Watchdog:
    """A thread that ends this process with one line on stderr when a rank hangs.

    The rank that hangs says so itself where it can; torchrun then ends the others. Where it cannot (it is stopped, or
    its node is gone) the first rank that notices does, and kills it if it is stopped on this machine. It also ends a
    rank that torchrun has left behind, or that can expect nothing from a torchrun that is stopped.

    Attributes:
        watcher: may be replaced by one that knows the op lists.
    """

    def __init__(self, watcher: Watcher, board: Board, rank: int, store: JobStore | None = None) -> None:
        self.watcher = watcher
        self._board = board
        self._rank = rank
        self._ranks = watcher.ranks
        self._beat_s = min(_BEAT_S, watcher.timeout_s / 4)
        self._grace_s = min(_GRACE_S, watcher.timeout_s)
        self._store = store or JobStore()
        self._siblings = Siblings(rank)
        self._stillness, self._parents = Stillness(), Stillness()
        self._heard: dict[int, tuple[bytes, int]] = {}
        self._count = 0
        self._over = threading.Event()
        self._signals: int | None = None
        self._asked = False

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
            self._follow_sigterm()
            self._follow_parent()
            hang = self._hang()
            suspected_s = suspected_s + self._beat_s if hang is not None else 0.0
            if hang is not None and (hang.rank == self._rank or suspected_s > self._grace_s):
                self._end_unless_over(hang.text, self._store.first_word())

    def _end_unless_over(self, text: str, aloud: bool) -> None:
        if not self._over.is_set():
            self._end(text, aloud)

    def _end(self, text: str, aloud: bool, code: int = 1) -> None:
        if aloud:
            sys.stderr.write(f"contraflow: {text}\n")
            sys.stderr.flush()
        self._siblings.kill_stopped()
        os._exit(code)

    # ------------------------------------------------------------ who started the ranks

    def _follow_parent(self) -> None:
        """Ends this rank where torchrun cannot."""
        if not under_torchrun():
            return
        if self._siblings.orphaned:
            self._end_unless_over(f"torchrun has ended; {self._mine()}", self._siblings.first)
        slot, state = Slot(Doing.WAITING), self._siblings.parent
        still = self._parents.seconds([slot], [time.monotonic_ns()], {0: state}).get(0, 0.0)
        if still > self.watcher.timeout_s:
            first = self._siblings.first
            self._siblings.resume_parent()
            self._end_unless_over(f"torchrun has been stopped: it has not run for {self.watcher.timeout_s:g} s", first)

    def _mine(self) -> str:
        where = self.watcher.where(self._rank, self._board.read(self._rank))
        return f"{self.watcher.name(self._rank)} was {where}"

    # ------------------------------------------------------------ the ranks

    def end_if_lost(self) -> None:
        """Ends this process, which has lost a connection, if a rank of this machine has ended; tells which, and where.

        At once: torchrun ends it as soon as it notices.
        """
        deadline = time.monotonic() + _NOTICED_S
        while True:
            gone = self._gone(self._siblings.states())
            if gone is not None:
                self._listen()
                self._end(self._ended(gone, self._known()[0][gone]).text, self._store.first_word())
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)

    @contextmanager
    def heeding_sigterm(self) -> Iterator[None]:
        """While it lasts, a SIGTERM that this process handles is noticed also where its main thread waits in torch."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._signals, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(written)

    def _follow_sigterm(self) -> None:
        """Ends this rank a beat after a SIGTERM that its main thread has not come to since."""
        if self._asked:
            self.end_if_left()
            self._end("terminated", self._store.first_word(), 128 + signal.SIGTERM)
        if self._signals is not None:
            with contextlib.suppress(BlockingIOError):
                self._asked = signal.SIGTERM in os.read(self._signals, 64)

    def end_if_left(self) -> None:
        """Ends this process, which torchrun has asked to end, if a rank of this machine has ended before."""
        gone = self._siblings.missing()
        if gone is not None:
            self._listen()
            self._end(self._ended(gone, self._known()[0][gone]).text, self._store.first_word())

    def _hang(self) -> Hang | None:
        mine, states = self._board.read(self._rank), self._siblings.states()
        self._count += 1
        age = time.monotonic_ns() - mine.since_ns
        self._store.set(_key(self._rank), _MESSAGE.pack(*mine[:4], age, self._count))
        alarming = any(state.stopped or state.over for state in states.values())
        if mine.doing is not Doing.DONE and (alarming or age > 2e9 * self._beat_s):
            self._listen()
        else:
            self._heard.clear()
        slots, beats = self._known()
        still = self._stillness.seconds(slots, beats, states)
        gone = self._gone(states)
        if gone is not None and mine.doing is not Doing.DONE and slots[gone].doing is not Doing.DONE:
            return self._ended(gone, slots[gone])
        return self.watcher.hang(slots, still=still, awake_ns=self._stillness.awake_ns)

    def _gone(self, states: Mapping[int, ProcessState]) -> int | None:
        return next((rank for rank, state in sorted(states.items()) if state.over), None)

    def _ended(self, rank: int, slot: Slot) -> Hang:
        name, seen = self.watcher.name(rank), self.watcher.where(rank, slot)
        return Hang(rank, f"{name} has ended without a result, last seen {seen}")

    def _listen(self) -> None:
        """Hears what the others say; who says nothing new does not get younger."""
        said = self._store.read([_key(rank) for rank in range(self._ranks)])
        now = time.monotonic_ns()
        for rank, words in enumerate(said):
            if rank != self._rank and words and self._heard.get(rank, (b"", 0))[0] != words:
                self._heard[rank] = (words, now)

    def _known(self) -> tuple[list[Slot], list[int]]:
        """What every rank does, as far as this one has heard, and when it was last known to run."""
        slots, beats = [Slot(Doing.STARTING)] * self._ranks, [0] * self._ranks
        for rank, (said, since_ns) in self._heard.items():
            doing, step, position, awaited, age, _ = _MESSAGE.unpack(said)
            slots[rank], beats[rank] = Slot(Doing(doing), step, position, awaited, since_ns - age), since_ns
        slots[self._rank], beats[self._rank] = self._board.read(self._rank), time.monotonic_ns()
        return slots, beats


def _key(rank: int) -> str:
    return f"watch/{rank}"
