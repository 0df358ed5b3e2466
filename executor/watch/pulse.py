"""Whether a rank's process runs at all: every rank beats, and whoever watches counts for how long one has not.

A process that does not run (stopped by a signal, frozen, swapped out) beats no more, whatever its main thread was
doing. One that beats while its main thread makes no progress is judged by what that does (`watch.Watcher`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence

from .board import LONG, Board, Doing, Slot
from .proc import ProcessState, process_state

BEAT_S = 0.5
_ASLEEP_S = 2.0
"""A watcher that looks again only after so long did not run itself."""
_CALL_S = 5.0
"""So long after it was called back a stopped parent has ended its ranks."""
STILL_S = 2.0
"""A process that has not run for so long may be why others wait: they are not judged meanwhile."""


def beat(board: Board, rank: int, timeout_s: float) -> threading.Event:
    """Starts a thread that beats for the rank until the event is set.

    The ranks of a parent that has been stopped for `timeout_s` while they ran are watched by nobody: they say so on the
    board, let it go on, and end if it does not end them.
    """
    over, parent = threading.Event(), os.getppid()
    board.beat(rank, time.monotonic_ns())

    def work() -> None:
        stillness = Stillness()
        while not over.wait(BEAT_S):
            now = time.monotonic_ns()
            board.beat(rank, now)
            stopped_s = stillness.seconds([Slot(Doing.DONE)], [now], {0: process_state(parent)}).get(0, 0.0)
            if stopped_s > timeout_s + _CALL_S:
                os._exit(1)
            if stopped_s > timeout_s:
                board.call_parent(stopped_s)
                os.kill(parent, signal.SIGCONT)

    threading.Thread(target=work, daemon=True, name="heartbeat").start()
    return over


class Stillness:
    """For how long processes have not run, as far as one process can tell; asked several times a second.

    Whoever asks may have been stopped together with them (Ctrl-Z): then all counts begin anew, and `awake_ns` is when
    it went on.
    """

    def __init__(self) -> None:
        self._stopped_since: dict[int, int] = {}
        self._asked_ns = 0
        self.awake_ns = 0

    def seconds(
        self,
        slots: Sequence[Slot],
        beats: Sequence[int],
        states: Mapping[int, ProcessState],
        now_ns: int | None = None,
    ) -> dict[int, float]:
        """Of every rank whose process does not run.

        Args:
            beats: when each rank was last known to run (0: never heard of), by this process's monotonic clock.
            states: of the ranks whose processes the system tells about.
        """
        now = time.monotonic_ns() if now_ns is None else now_ns
        if now - self._asked_ns > _ASLEEP_S * 1e9:
            self._stopped_since.clear()
            self.awake_ns = now
        self._asked_ns = now
        still: dict[int, float] = {}
        for rank, slot in enumerate(slots):
            state = states.get(rank, ProcessState())
            if slot.doing is Doing.DONE and not state.stopped:
                continue
            since = self._since(rank, slot, beats[rank], state, now)
            if since is not None:
                still[rank] = max(0.0, (now - since) / 1e9)
        return still

    def _since(self, rank: int, slot: Slot, beat_ns: int, state: ProcessState, now: int) -> int | None:
        """When the rank last ran; None: it runs, or nobody knows.

        A library that is being loaded, or an op, can keep a running process from beating: then the main thread is
        judged, as long as the system says that the process is not stopped.
        """
        if state.stopped:
            return self._stopped_since.setdefault(rank, now)
        self._stopped_since.pop(rank, None)
        if beat_ns == 0 or (state.known and (slot.doing in LONG or slot.doing is Doing.COMPUTING)):
            return None
        since = max(beat_ns, self.awake_ns)
        return since if now - since > STILL_S * 1e9 else None
