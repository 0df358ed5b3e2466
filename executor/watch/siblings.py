"""The ranks that torchrun (or a shell) has started on this machine beside this one, and who started them."""

from __future__ import annotations

import contextlib
import os
import signal

from .proc import ProcessState, children_of, process_state, variable_of

_SAME = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def under_torchrun() -> bool:
    """Whether torchrun has started this process, and ends it where another rank fails."""
    return "TORCHELASTIC_RUN_ID" in os.environ


class Siblings:
    """Found by their environments among the children of this process's parent; none where the system hides them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._parent = os.getppid()
        self._processes: dict[int, int] = {}

    @property
    def parent(self) -> ProcessState:
        """Of the process that started this one; over when it has left this one alone."""
        return ProcessState("X") if self.orphaned else process_state(self._parent)

    @property
    def orphaned(self) -> bool:
        """Whether the process that started this one has ended."""
        return os.getppid() != self._parent

    @property
    def first(self) -> bool:
        """Whether this is the lowest rank here that is not stopped."""
        return all(self._rank < rank for rank, state in self.states().items() if not (state.stopped or state.over))

    def states(self) -> dict[int, ProcessState]:
        """Of the other ranks here that have been seen so far, by rank."""
        if not self.orphaned:
            self._look()
        return {rank: process_state(pid) for rank, pid in self._processes.items()}

    def missing(self) -> int | None:
        """The lowest rank that torchrun has started here and that has ended, seen or not; None: all are there.

        To be asked when torchrun ends this rank: it has started all by then.
        """
        alive = {self._rank, *(rank for rank, state in self.states().items() if not state.over)}
        return next((rank for rank in self._local() if rank not in alive), None)

    def _local(self) -> range:
        """All ranks of this machine, as torchrun says."""
        local, count = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
        if not (under_torchrun() and local.isdecimal() and count.isdecimal()):
            return range(0)
        first = self._rank - int(local)
        return range(first, first + int(count))

    def kill_stopped(self) -> None:
        """Ends the ranks that are stopped: they would follow no request to end."""
        for rank, pid in self._processes.items():
            if process_state(pid).stopped and variable_of(pid, "RANK") == str(rank):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def resume_parent(self) -> None:
        """Lets the process that started this one go on, so that it sees what has become of the run."""
        with contextlib.suppress(OSError):
            if not self.orphaned:
                os.kill(self._parent, signal.SIGCONT)

    def _look(self) -> None:
        known = {os.getpid(), *self._processes.values()}
        for pid in children_of(self._parent):
            if pid in known or any(variable_of(pid, name) != os.environ.get(name) for name in _SAME):
                continue
            rank = variable_of(pid, "RANK")
            if rank is not None and rank.isdecimal() and int(rank) != self._rank:
                self._processes[int(rank)] = pid
