"""A CUDA device as the place of a rank. Why this is safe is written down in docs/cuda.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from ...planner.plan import Op
from .place import Clock, Mark, Place, Side, Times
from .records import OpRecord

ROUNDING = 1 / 8
"""Share of a peak that the allocator may need beside it: blocks are rounded up to 512 bytes, and free ones lie between
others."""
WORKSPACE_BYTES = 256 << 20
"""What it may need whatever the peak: segments of 2 and 20 MiB, workspaces of cuBLAS and cuDNN for every stream."""


def allowed_bytes(planned_bytes: int) -> int:
    """What the allocator may reserve where tensors take so much at their peak.

    CUDA's context, code and NCCL's buffers are not the allocator's: they come on top.
    """
    return planned_bytes + int(planned_bytes * ROUNDING) + WORKSPACE_BYTES


class CudaMark:
    """A point in a stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)
        self._device = stream.device

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def block(self) -> None:
        self._event.synchronize()


class CudaSide:
    """A stream beside the rank's own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()

    def put(self, work: Callable[[], None], after: Mark | None = None) -> Mark:
        after = CudaMark(torch.cuda.current_stream(self._device)) if after is None else after
        with self._lock, torch.cuda.stream(self._stream):
            after.wait()
            work()
            return CudaMark(self._stream)


class CudaTimes(Times):
    """Times by events, read when the step is over: nothing waits for the device in between.

    Create it when the device is idle: the step's start on the device is then its start on the host.
    """

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[OpRecord, str, torch.cuda.Event]] = []
        self._origin = self._event()
        super().__init__(clock)

    def open(self, op: Op) -> OpRecord:
        record = super().open(op)
        event = self._event()
        self._events += [(record, "start_s", event), (record, "end_s", event)]
        return record

    def begin(self, record: OpRecord) -> None:
        self._events.append((record, "start_s", self._event()))

    def end(self, record: OpRecord) -> None:
        self._events.append((record, "end_s", self._event()))

    def resolve(self) -> None:
        torch.cuda.synchronize(self._device)
        for record, name, event in self._events:  # a later one of the same record and name counts
            setattr(record, name, 1e-3 * self._origin.elapsed_time(event))
        self._events.clear()

    def forget(self) -> None:
        self._events.clear()

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


class CudaPlace(Place):
    """One CUDA device, with a stream that this rank computes on."""

    queues = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._before_bytes = self._before_reserved_bytes = 0

    @contextmanager
    def _active(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def activate(self) -> AbstractContextManager[object]:
        return self._active()

    def adopt_thread(self) -> None:
        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]

    def mark(self) -> Mark:
        return CudaMark(torch.cuda.current_stream(self.device))

    def side(self) -> Side:
        return CudaSide(self.device)

    def times(self, clock: Clock = time.perf_counter) -> Times:
        return CudaTimes(clock, self.device)

    def bring(self, tensor: Tensor) -> Tensor:
        # Pinned memory is not used again before the copy has run: its allocator sees to that.
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def host_buffer(self, like: Tensor) -> Tensor:
        return torch.empty_like(like, device="cpu", pin_memory=True)

    def host_bytes(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)

    def keep_loss(self, loss: Tensor) -> Tensor | float:
        return loss

    def read_losses(self, losses: Mapping[int, Tensor | float]) -> dict[int, float]:
        if not losses:
            return {}
        together = torch.stack([torch.as_tensor(loss, device=self.device) for loss in losses.values()])
        return dict(zip(losses, together.tolist(), strict=True))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def start_measuring(self) -> None:
        torch.cuda.empty_cache()  # what an earlier run left in the cache is not this one's
        self._before_bytes = torch.cuda.memory_allocated(self.device)
        self._before_reserved_bytes = torch.cuda.memory_reserved(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def allocated_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.device) - self._before_bytes

    def reserved_bytes(self) -> int | None:
        return torch.cuda.max_memory_reserved(self.device) - self._before_reserved_bytes

    def cap(self, planned_bytes: int) -> None:
        fraction = 1.0
        if planned_bytes:
            torch.cuda.empty_cache()  # what checks before training needed is nobody's share
            whole = torch.cuda.get_device_properties(self.device).total_memory
            fraction = min(1.0, (self._before_bytes + allowed_bytes(planned_bytes)) / whole)
        torch.cuda.set_per_process_memory_fraction(fraction, self.device)

    @property
    def name(self) -> object:
        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        return str(uuid) if uuid is not None else self.device.index
