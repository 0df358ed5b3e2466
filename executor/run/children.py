"""The parent of spawned ranks: starts them, collects what they report, watches them, and leaves none behind."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ..basics import ExecutionError, RunError, SharedFile, foreign, one_line, ours
from ..watch import NOWHERE, Board, Doing, Hang, ProcessState, Stillness, Watcher, process_state
from .collector import Collector
from .reports import Notice, RankReport, StepReport

_POLL_S = 0.2
_PACE_S = 0.02
"""Between two looks at what ranks report: where all cores are ranks', every look costs one of them as much as a short
op."""
_GRACE_S = 5.0
"""How long a process may take to end after it was asked to."""
_REPORT_S = 2.0
"""How long the rank that is the cause may take to be noticed after those that lost it."""


class Failure(NamedTuple):
    """A rank's last words. `order` sorts causes: bad input, then failures, then ranks that only lost another."""

    order: int
    text: str

    @classmethod
    def of(cls, error: Exception, rank: str, lost_another: bool) -> Failure:
        """From what a rank of this name raised; `lost_another`: while it waited for another rank."""
        if isinstance(error, RunError):
            return cls(0, str(error))
        text = one_line(error) if ours(error) else foreign(error)
        lost = lost_another or "onnection" in text or "imed out" in text
        return cls(2 if lost else 1, text if text.startswith("rank") else f"{rank}: {text}")

    def error(self) -> Exception:
        """What the whole run raises."""
        return RunError(self.text) if self.order == 0 else ExecutionError(self.text)

    def stand_back(self) -> None:
        """Leaves the cause time to be told first, and whoever started the ranks time to end this one."""
        if self.order > 1:
            time.sleep(_GRACE_S)


class Children:
    """The processes of a run, one a rank, each with a pipe for its reports and a slot on the board.

    Args:
        context: of multiprocessing.
        target: called in each process as target(rank, outbox, board's file, given).
    """

    def __init__(self, context: Any, ranks: int, target: Callable[..., None], given: Any) -> None:
        self._file = SharedFile(Board.size(ranks))
        self._board = Board(self._file.memory())
        self._stillness = Stillness()
        self._received_s = self._looked_s = 0.0
        self._inboxes: list[Connection] = []
        self._outboxes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(ranks):
            inbox, outbox = context.Pipe(duplex=False)
            process = context.Process(target=target, args=(rank, outbox, self._file, given), daemon=True)
            process.name = f"rank {rank}"
            self._inboxes.append(inbox)
            self._outboxes.append(outbox)
            self._processes.append(process)

    def start(self) -> None:
        """Starts all; from now on `end` is due."""
        for rank, process in enumerate(self._processes):
            self._board.write(rank, Doing.STARTING, NOWHERE, NOWHERE, NOWHERE, time.monotonic_ns())
            with without_interrupts():
                process.start()
            self._outboxes[rank].close()  # so that its death is the end of the pipe

    def collect(self, collected: Collector, watcher: Watcher) -> list[RankReport]:
        """The reports of all ranks at their ends.

        Raises:
            RunError, ExecutionError: a rank failed, was killed or hangs; names the rank that is the cause.
        """
        finished: dict[int, RankReport] = {}
        while len(finished) < len(self._processes):
            failures: list[Failure] = []
            for rank, message in self._receive(watcher):
                if isinstance(message, (StepReport, Notice)):
                    collected.add(message)
                    if not failures:
                        self._look(watcher)  # what the user does about a step may take long
                elif isinstance(message, RankReport):
                    finished[rank] = message
                else:
                    failures.append(message)
            if failures:
                raise self._cause(failures, watcher).error()
            self._look(watcher)
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [finished[rank] for rank in sorted(finished)]

    def _look(self, watcher: Watcher) -> None:
        """Some times a second; raises ExecutionError where a rank hangs, or where this process did not run."""
        if time.monotonic() - self._looked_s < _POLL_S:
            return
        self._looked_s = time.monotonic()
        stopped_s = self._board.parent_stopped_s
        if stopped_s > 0:
            raise ExecutionError(f"the process that watches the ranks was stopped for {stopped_s:.1f} s")
        hang = self._hang(watcher)
        if hang is not None:
            raise ExecutionError(hang.text)

    def _hang(self, watcher: Watcher) -> Hang | None:
        slots, states = self._board.read_all(), {rank: _state(p) for rank, p in enumerate(self._processes)}
        still = self._stillness.seconds(slots, self._board.beats(), states)
        return watcher.hang(slots, still=still, awake_ns=self._stillness.awake_ns)

    def _receive(self, watcher: Watcher) -> Iterator[tuple[int, Any]]:
        """What arrives within a short while; that a process ended without a last word is a failure that arrives."""
        talking = [rank for rank, inbox in enumerate(self._inboxes) if not inbox.closed]
        time.sleep(max(0.0, self._received_s + _PACE_S - time.monotonic()))
        ready = wait([x for rank in talking for x in (self._inboxes[rank], self._processes[rank].sentinel)], _POLL_S)
        self._received_s = time.monotonic()
        for rank in talking:
            if self._inboxes[rank] in ready or self._processes[rank].sentinel in ready:
                yield from ((rank, message) for message in self._waiting(rank, watcher))

    def _waiting(self, rank: int, watcher: Watcher) -> Iterator[Any]:
        """All that a rank has reported by now."""
        inbox, process = self._inboxes[rank], self._processes[rank]
        while not inbox.closed:
            ended = not process.is_alive()
            try:
                if inbox.poll():
                    message = pickle.loads(inbox.recv_bytes())
                elif ended:
                    raise EOFError
                else:
                    return
            except (EOFError, OSError):
                process.join(_GRACE_S)
                message = Failure(1, watcher.lost(rank, process.exitcode or 0, self._board.read(rank)))
            if not isinstance(message, (StepReport, Notice)):
                inbox.close()  # that was its last word
            yield message

    def _cause(self, failures: list[Failure], watcher: Watcher) -> Failure:
        """The failure to report: while all have only lost another rank, that one may still be noticed."""
        deadline = time.monotonic() + _REPORT_S
        while min(failure.order for failure in failures) > 1 and time.monotonic() < deadline:
            failures += [message for _, message in self._receive(watcher) if isinstance(message, Failure)]
        return min(failures, key=lambda failure: failure.order)

    def end(self) -> None:
        """Terminates whoever still runs, and makes sure of it."""
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            if process.is_alive():
                process.kill()  # SIGTERM may ask a rank to save first; what it would leave behind is the parent's
        deadline = time.monotonic() + _GRACE_S
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for inbox in self._inboxes:
            inbox.close()
        self._file.close()


def _state(process: BaseProcess) -> ProcessState:
    return ProcessState() if process.pid is None else process_state(process.pid)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes started meanwhile begin with SIGINT blocked: a Ctrl-C waits until they have said what they do with it.

    So does one of this thread.
    """
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """While it lasts, SIGTERM ends this process as an exception does (SystemExit 143), so that all is cleaned up.

    Left alone: a handler that the caller has set, and calls from other threads than the main one.
    """
    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
