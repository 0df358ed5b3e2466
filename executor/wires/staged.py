"""Messages between device memories over wires between hosts: through buffers in the hosts' memories.

For ranks that share a GPU, with gloo or as threads. A send copies to the host after the work queued so far, and a
thread posts the message when the copy is there; a receive is posted at once, and a thread starts the copy to the device
when the message is there. The rank's thread waits for arrivals only.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from ..place import Lanes, Mark, Place
from .transport import Handle, Transport


class StagedTransport:
    """One rank's end (see `Transport`).

    Args:
        wires: carry the messages between hosts; any thread may post on them.
        place: where the tensors are. reason: why no messages go from GPU to GPU.
    """

    queues, pauses = False, False

    def __init__(self, wires: Transport, place: Place, reason: str) -> None:
        self.reason = reason
        self.rank, self.seat = wires.rank, wires.seat
        self.world_size = wires.world_size
        self._wires = wires
        self._place = place
        self._down, self._up = place.side(), place.side()
        self._lanes = Lanes(place, f"rank {wires.seat.number}")
        self._sent: list[Future[None]] = []

    @property
    def host(self) -> Transport:
        return self._wires

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Handle:
        staged, copied = self._to_host(tensor)
        posted: list[Handle] = []

        def post() -> None:
            copied.block()
            posted.append(self._wires.post_send(staged, peer, tag))

        def finish() -> None:
            sent.result()
            posted[0].wait()

        # Two threads, so that a message whose receiver is late keeps none behind it from being posted.
        sent = self._lanes[f"sends {peer}"].put(post)
        self._sent = [
            *(f for f in self._sent if not f.done() or f.exception()),
            self._lanes[f"sent {peer}"].put(finish),
        ]
        return _Copied(copied, self._failed)

    def post_receive(self, buffer: Tensor, peer: int, tag: int) -> Handle:
        free = self._place.mark()
        staged = self._place.host_buffer(buffer)
        handle = self._wires.post_receive(staged, peer, tag)

        def copy() -> Mark:
            handle.wait()
            return self._up.put(lambda: _copy(staged, buffer), free)

        return _Arriving(self._lanes[f"from {peer}"], copy)

    def all_reduce(self, tensor: Tensor, group: str) -> Handle:
        return self._collective(tensor, group, self._wires.all_reduce)

    def reduce_scatter(self, tensor: Tensor, group: str) -> Handle:
        return self._collective(tensor, group, self._wires.reduce_scatter)

    def all_gather(self, tensor: Tensor, group: str) -> Handle:
        return self._collective(tensor, group, self._wires.all_gather)

    def _collective(self, tensor: Tensor, group: str, start: Callable[[Tensor, str], Handle]) -> Handle:
        staged, copied = self._to_host(tensor)

        def run() -> Mark:
            copied.block()
            start(staged, group).wait()
            return self._up.put(lambda: _copy(staged, tensor), copied)

        return _Arriving(self._lanes[f"reduce {group}"], run)

    def all_gather_object(self, value: Any) -> list[Any]:
        return self._wires.all_gather_object(value)

    @property
    def team(self) -> Any:
        return self._wires.team

    def gather_team(self, value: Any) -> list[Any]:
        return self._wires.gather_team(value)

    def gather_parts(self, tensor: Tensor, rank: int) -> list[Tensor] | None:
        return self._wires.gather_parts(tensor, rank)

    def barrier(self) -> None:
        for future in self._sent:
            future.result()
        self._sent.clear()
        self._wires.barrier()

    def close(self) -> None:
        self._lanes.close()

    def _to_host(self, tensor: Tensor) -> tuple[Tensor, Mark]:
        staged = self._place.host_buffer(tensor)
        return staged, self._down.put(lambda: _copy(tensor, staged))

    def _failed(self) -> None:
        """Raises what went wrong with a message sent earlier."""
        for future in self._sent:
            if future.done():
                future.result()


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source, non_blocking=True)


class _Copied:
    """A message of which only the copy to the host is waited for: then its tensor is free."""

    def __init__(self, copied: Mark, check: Callable[[], None]) -> None:
        self._copied = copied
        self._check = check

    def wait(self) -> None:
        self._check()
        self._copied.wait()

    def done(self) -> bool:
        return self._copied.done()


class _Arriving:
    """What a thread starts copying to the device when it is on the host."""

    def __init__(self, lane: Any, copy: Callable[[], Mark]) -> None:
        self._copied: list[Mark] = []
        self._started: Future[None] = lane.put(lambda: self._copied.append(copy()))

    def wait(self) -> None:
        self._started.result()
        self._copied[0].wait()

    def done(self) -> bool:
        return self._started.done() and self._started.exception() is None and self._copied[0].done()
