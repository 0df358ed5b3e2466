"""Saving while training goes on: a copy in the host's memory at a step's end, written by a thread.

Every rank writes its tensors and then a note of what it wrote; rank 0 waits for all notes and makes the folder a
checkpoint. One save is under way at most: the next one waits for it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..basics import Aborted, Checkpointing
from .checkpoint import RUN, Inventory, kept_scaler, launched, load
from .checkpoint_files import (
    FileRecord,
    Index,
    SaveError,
    commit,
    complete,
    discard,
    folder_of,
    sweep,
    write_tensors,
    write_text,
)
from .identity import RunIdentity
from .stopping import Stop, on_signals
from .wholes import Wholes

LOCK = ".lock"
_POLL_S = 0.01
_PATIENCE_S = 1.5
"""How long a run that has failed waits for a save of what was still right."""


class _Snapshot(NamedTuple):
    """What a thread writes: a rank's state after so many steps, in the host's memory."""

    step: int
    tensors: dict[str, Tensor]
    scaler: Mapping[str, float | int]


class Lock:
    """One run at a time writes into a folder; others get SaveError. Free when its process has ended."""

    def __init__(self, directory: str | Path) -> None:
        path = Path(directory) / LOCK
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise SaveError.of(path, error) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise SaveError(f"another run is writing checkpoints to {directory}") from None
        except OSError:  # a file system without locks
            pass

    def release(self) -> None:
        """Lets others in."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def tidy(directory: str | Path) -> None:
    """Removes what a run that failed has left, unless another run is writing there."""
    try:
        lock = Lock(directory)
    except SaveError:
        return
    sweep(directory)
    lock.release()


@contextmanager
def kept_whole(directory: str | Path, stop: Stop) -> Iterator[None]:
    """While a run saves there: signals ask it to end after the step under way; nothing half saved is left behind."""
    try:
        with on_signals(stop):
            yield
    finally:
        if os.environ.get("RANK", "0") == "0":
            tidy(directory)


class Saver:
    """One rank's part in saving. Collective: all ranks make one, and save after the same steps.

    Args:
        wholes: puts together what a team divides.
        state: the rank's tensors by name, the live ones; its argument: only those that are up to date here.
        end: the step after the run's last, for a launcher that starts it again.

    Raises SaveError: the folder cannot be written, or another run writes there.
    """

    def __init__(
        self,
        options: Checkpointing,
        identity: RunIdentity,
        wholes: Wholes,
        state: Callable[[bool], dict[str, Tensor]],
        end: int,
    ) -> None:
        self._options, self._identity, self._wholes, self._state = options, identity, wholes, state
        self._rank = wholes.transport.seat.number
        self._folder = Path(options.folder)
        self._lock = self._enter(end) if self._rank == 0 else None
        self._inventory = Inventory.gather(wholes, state(True))
        team = wholes.transport.seat.mates
        mine = {wholes.name(key) for key in state(True)}
        self._made = {
            name: entry.saver
            for name, entry in self._inventory.entries.items()
            if name in mine and (entry.saver in team or name in wholes.pieces)
        }
        self._run = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"rank {self._rank} saves")
        self._pending: Future[None] | None = None
        self._closed = math.inf
        self.saved = -1

    def _enter(self, end: int) -> Lock:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError.of(self._folder, error) from None
        lock = Lock(self._folder)
        sweep(self._folder)
        if (launch := launched()) is not None:
            write_text(self._folder / RUN, json.dumps({"launch": launch, "end": end}) + "\n")
        return lock

    def resume(self, first: int) -> dict[str, float | int]:
        """Loads the checkpoint after `first` steps; returns the loss scale's state. Raises RunError."""
        index = load(self._folder, first, self._state(False), self._inventory, self._wholes)
        self._run, self.saved = index.run, first
        return kept_scaler(index)

    def save(self, step: int, scaler: Mapping[str, float | int]) -> None:
        """Copies the state to the host and has it written, when the save before it has ended; raises its SaveError."""
        if step == self.saved:
            return
        self.wait()
        state = {self._wholes.name(key): tensor for key, tensor in self._state(True).items()}
        made = {name: self._wholes.made(name, state[name], saver) for name, saver in self._made.items()}
        tensors = {name: tensor for name, tensor in made.items() if tensor is not None}
        self._pending = self._thread.submit(self._write, _Snapshot(step, tensors, dict(scaler)))
        self.saved = step

    def check(self) -> None:
        """Raises the SaveError of a save that has failed; never blocks."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Blocks until what this rank does for the last save is done. Raises SaveError."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Gives up what is not complete, unless it soon is."""
        self._closed = time.monotonic() + _PATIENCE_S
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._lock is not None:
            sweep(self._folder)
            self._lock.release()

    # ------------------------------------------------------------ in the thread

    def _write(self, snapshot: _Snapshot) -> None:
        target = folder_of(self._folder, snapshot.step)
        part = target.with_name(f"{target.name}.part")
        rank = self._rank
        try:
            _make(part)
            if rank in self._inventory.savers:
                _require_finite(snapshot, target)
                record = write_tensors(part / _file(rank), snapshot.tensors)
                snapshot.tensors.clear()
                write_text(part / _note(rank), json.dumps(record))
            if rank == 0:
                commit(part, target, self._index(snapshot, self._notes(part)))
                self._prune()
        except Aborted:
            return

    def _notes(self, part: Path) -> dict[int, FileRecord]:
        """What every rank has written, once all have. Raises Aborted: the run has ended before."""
        notes = {rank: part / _note(rank) for rank in self._inventory.savers}
        while not all(path.exists() for path in notes.values()):
            time.sleep(_POLL_S)
            if time.monotonic() > self._closed:
                raise Aborted("the run has ended")
            if not part.is_dir():
                raise SaveError(f"cannot save {part}: it is gone")
        try:
            return {rank: FileRecord(*json.loads(path.read_text())) for rank, path in notes.items()}
        except OSError as error:
            raise SaveError.of(part, error) from None

    def _index(self, snapshot: _Snapshot, notes: Mapping[int, FileRecord]) -> Index:
        self._run = self._run or uuid.uuid4().hex
        tensors = {name: _file(entry.saver) for name, entry in self._inventory.entries.items()}
        files = {_file(rank): record for rank, record in notes.items()}
        return Index(self._run, snapshot.step, self._identity, snapshot.scaler, files, tensors)

    def _prune(self) -> None:
        if self._options.keep is None:
            return
        for old in complete(self._folder)[: -self._options.keep]:
            try:
                discard(old)
            except OSError as error:
                raise SaveError.of(old, error) from None


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _note(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def _make(part: Path) -> None:
    try:
        part.mkdir(exist_ok=True)  # but not what it is in: that was there at the start
    except OSError as error:
        raise SaveError.of(part, error) from None


def _require_finite(snapshot: _Snapshot, target: Path) -> None:
    """Raises SaveError where what was trained has been lost already; a model's own buffers may hold infinities."""
    for name, tensor in snapshot.tensors.items():
        if not name.startswith("buffers/") and not bool(torch.isfinite(tensor).all()):
            raise SaveError(f"{target} is not saved: {name} is not finite")
