"""Copies between a device and its host, in threads of their own: one for each direction.

On the CPU a copy is a copy into a second buffer. On CUDA it runs on a side stream between pinned memory and the
device, after the work that the rank had queued when it asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class Lane:
    """One thread that does one thing after the other.

    Attributes:
        last: the end of what was put there last (None: nothing yet).
    """

    def __init__(self, name: str) -> None:
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, name, initializer=torch.set_num_threads, initargs=(threads,))
        self.last: Future[None] | None = None

    def put(self, work: Callable[[], None]) -> Future[None]:
        """Does `work` after everything that was put here before; its errors come out of the future."""
        self.last = self._pool.submit(work)
        return self.last

    def close(self) -> None:
        """Starts nothing more; does not wait for what runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class CopyEngine:
    """The copies of one direction of one rank. A copy is complete when the call returns."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def to_host(self, piece: Tensor, after: torch.cuda.Event | None) -> Tensor:
        """A copy in host memory; `after`: the `mark` of the work that makes `piece`."""
        target = torch.empty_like(piece, device="cpu", pin_memory=piece.is_cuda)
        self._copy(piece, target, piece.device, after)
        return target

    def to_device(self, piece: Tensor, target: Tensor) -> None:
        """Fills a new tensor, which may be memory that work queued so far still uses."""
        self._copy(piece, target, target.device, mark(target.device))

    def _copy(self, source: Tensor, target: Tensor, device: torch.device, after: torch.cuda.Event | None) -> None:
        if after is None:
            target.copy_(source)
            return
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self._streams[device]
        stream.wait_event(after)
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
        done.synchronize()  # blocks this thread alone: the rank's own stream goes on


def mark(device: torch.device) -> torch.cuda.Event | None:
    """The work queued on a device's current stream so far; None where nothing is ever queued."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
