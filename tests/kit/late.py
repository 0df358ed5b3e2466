"""A CPU that behaves like a GPU with slow side streams: copies there run as late as they may.

What a program queues on a side is remembered without holding the tensors, and runs only when something waits for it.
So a missing wait leaves wrong numbers behind, and memory that is let go of too early is noticed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from contraflow.executor.place.place import Mark, Place, Side

_here = threading.local()
_LOCK = threading.RLock()
_pinned: list[weakref.ref[Any]] = []


class FreedTooEarly(AssertionError):
    """Memory was freed before a copy that reads or writes it had run."""


@dataclass(frozen=True)
class _Memory:
    """A tensor without its storage; with it, if it is in the host's memory, as CUDA's allocator of pinned memory."""

    storage: Callable[[], Any]
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _Memory:
        where = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        storage = tensor.untyped_storage()
        with _LOCK:
            on_host = any(known() is storage for known in _pinned)
        return cls((lambda: storage) if on_host else weakref.ref(storage), *where)

    def tensor(self) -> Tensor:
        storage = self.storage()
        if storage is None:
            raise FreedTooEarly("memory was freed before the copy that uses it had run")
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.stride)


class _Deferred(TorchDispatchMode):
    """Puts the copies that are asked for on a queue."""

    def __init__(self, queue: list[Callable[[], None]]) -> None:
        super().__init__()
        self.queue = queue

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        target, source = _Memory.of(args[0]), _Memory.of(args[1])
        self.queue.append(lambda: _copy(target, source))
        return args[0]


def _copy(target: _Memory, source: _Memory) -> None:
    with _disable_current_modes():  # nobody's memory is counted by a device
        target.tensor().copy_(source.tensor())


@dataclass
class LateSide:
    """A queue that runs only as far as somebody waits for (see `Side`).

    Putting locks this queue alone, as on CUDA: the work may wait for a message that needs other queues.
    """

    queue: list[Callable[[], None]] = field(default_factory=list)
    passed: int = 0
    putting: threading.Lock = field(default_factory=threading.Lock)
    running: threading.RLock = field(default_factory=threading.RLock)

    def put(self, work: Callable[[], None], after: Mark | None = None) -> Mark:
        with self.putting:
            if after is not None:
                self.queue.append(after.block)
            outer, _here.side = getattr(_here, "side", None), self
            try:
                with _Deferred(self.queue):
                    work()
            finally:
                _here.side = outer
            with _LOCK:
                return LateMark(self, self.passed + len(self.queue))

    def run(self, until: int) -> None:
        """Runs what is queued up to there. It may wait for another rank, which must not wait for this one's lock."""
        with self.running:
            while True:
                with _LOCK:
                    if self.passed >= until:
                        return
                    self.passed += 1
                    work = self.queue.pop(0)
                work()


@dataclass
class LateMark:
    """A point of a `LateSide`."""

    side: LateSide
    end: int

    def wait(self) -> None:
        waiting = getattr(_here, "side", None)
        if waiting is None:
            self.block()
        else:
            waiting.queue.append(self.block)

    def done(self) -> bool:
        return False  # a thread that asks is always too early

    def block(self) -> None:
        self.side.run(self.end)


def queued_so_far() -> LateMark | None:
    """Of the side that this thread queues on; None where it works at once."""
    side: LateSide | None = getattr(_here, "side", None)
    if side is None:
        return None
    with _LOCK:
        return LateMark(side, side.passed + len(side.queue))


class LatePlace(Place):
    """Queues like a CUDA device, on the CPU."""

    queues = True

    def __init__(self) -> None:
        self.sides: list[LateSide] = []

    def side(self) -> Side:
        self.sides.append(LateSide())
        return self.sides[-1]

    def host_buffer(self, like: Tensor) -> Tensor:
        with _disable_current_modes():  # the host's memory does not count as the device's
            return self._pinned(super().host_buffer(like))

    def host_bytes(self, count: int) -> Tensor:
        with _disable_current_modes():
            return self._pinned(super().host_bytes(count))

    def _pinned(self, buffer: Tensor) -> Tensor:
        with _LOCK:
            _pinned[:] = [known for known in _pinned if known() is not None]
            _pinned.append(weakref.ref(buffer.untyped_storage()))
        return buffer
