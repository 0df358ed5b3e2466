"""Where a rank computes: its device, the queues of work on it, and how they wait for each other.

On the CPU an operator has run when it returns. On CUDA (see `cuda`) it has only been queued: then one queue waits for
another without blocking the thread, and memory is handed on in the order of the rank's own queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from ...planner.plan import Op
from .records import OpRecord

Clock = Callable[[], float]


class Mark(Protocol):
    """A point in a queue of work. Also a `transport.Handle`: something under way that ends there."""

    def wait(self) -> None:
        """What this thread queues from now on runs after it."""

    def done(self) -> bool:
        """Whether it has been reached, without blocking."""

    def block(self) -> None:
        """Blocks the thread until it is reached."""


class Side(Protocol):
    """A queue of work beside the rank's own."""

    def put(self, work: Callable[[], None], after: Mark | None = None) -> Mark:
        """Runs `work`, which queues there what it does, after a point (default: what this thread has queued so far).

        Returns the point where it ends. Whatever the work reads or writes must be held until then.
        """


class Times:
    """The clock of one step: seconds from its start go into the ops' records."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self.began_s = clock()

    def now(self) -> float:
        """Seconds since the step's start."""
        return self._clock() - self.began_s

    def open(self, op: Op) -> OpRecord:
        """A record of an op that is reached now."""
        now = self._clock() - self.began_s
        return OpRecord(op, now, now)

    def begin(self, record: OpRecord) -> None:
        """The op starts."""
        record.start_s = self._clock() - self.began_s

    def end(self, record: OpRecord) -> None:
        """The op has ended, or is known to have."""
        record.end_s = self._clock() - self.began_s

    def resolve(self) -> None:
        """Completes the records, at the end of the step."""

    def forget(self) -> None:
        """Nobody reads the records so far."""


class _Reached:
    """A point that is always behind."""

    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True

    def block(self) -> None:
        pass


REACHED: Mark = _Reached()


class _AtOnce:
    def put(self, work: Callable[[], None], after: Mark | None = None) -> Mark:
        if after is not None:
            after.block()
        work()
        return REACHED


class Place:
    """The CPU: nothing is queued, every point is reached when it is asked for.

    Attributes:
        device: where the rank's tensors live.
        queues: whether operators are queued rather than run by the thread that calls them.
    """

    device = torch.device("cpu")
    queues = False

    def activate(self) -> AbstractContextManager[object]:
        """What the rank's thread runs in."""
        return nullcontext()

    def adopt_thread(self) -> None:
        """Makes this thread one of the rank's helpers: it works on the rank's device, in a queue of its own."""

    def mark(self) -> Mark:
        """What this thread has queued so far."""
        return REACHED

    def side(self) -> Side:
        """A new queue."""
        return _AtOnce()

    def times(self, clock: Clock = time.perf_counter) -> Times:
        """The clock of a step that starts now."""
        return Times(clock)

    def bring(self, tensor: Tensor) -> Tensor:
        """A tensor of the host on the device."""
        return tensor

    def host_buffer(self, like: Tensor) -> Tensor:
        """A new tensor in the host's memory that copies to and from the device are fast with."""
        return torch.empty_like(like, device="cpu")

    def host_bytes(self, count: int) -> Tensor:
        """The same for so many bytes."""
        return torch.empty(count, dtype=torch.uint8)

    def keep_loss(self, loss: Tensor) -> Tensor | float:
        """The loss in a form that costs no waiting; `read_losses` makes numbers of them."""
        return loss.item()

    def read_losses(self, losses: Mapping[int, Tensor | float]) -> dict[int, float]:
        """The step's losses by micro-batch."""
        return {m: float(loss) for m, loss in losses.items()}

    def synchronize(self) -> None:
        """Blocks until everything queued on the device has run."""

    def start_measuring(self) -> None:
        """From here on `allocated_bytes` is measured."""

    def allocated_bytes(self) -> int | None:
        """The most that the allocator of the device has given this process; None where it does not count."""
        return None

    def reserved_bytes(self) -> int | None:
        """The most that the allocator took from the device for that: what is beside it are gaps; None as above."""
        return None

    def cap(self, planned_bytes: int) -> None:
        """From here on the allocator of the device gives this process no more than such a peak takes (0: no end).

        Where the allocator knows no limit, nothing happens.
        """

    @property
    def name(self) -> object:
        """Equal for two ranks that share a device."""
        return "cpu"


CPU = Place()
