"""How tensors travel between ranks: the interface, and gloo. The in-process one is in `threads`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

BACKSTOP_S = 86400.0
"""How long a rank waits for a message or a collective by itself: a last resort. Others may legitimately take long;
who makes no progress is found by `watch`."""


class Handle(Protocol):
    """A transfer under way."""

    def wait(self) -> None:
        """Blocks until the transfer is complete; raises when it failed, timed out or was aborted."""

    def done(self) -> bool:
        """Whether it is known to be complete, without blocking."""


class Transport(Protocol):
    """One rank's end of the wires. Messages are matched by (sender, receiver, tag), in posting order.

    A tensor handed over must be contiguous and stay untouched until its handle is complete.
    """

    rank: int
    world_size: int

    @property
    def queues(self) -> bool:
        """Whether waiting is queued on the device and does not block the thread."""

    @property
    def host(self) -> Transport:
        """What carries tensors in the hosts' memories; any thread may post on it."""

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Handle:
        """Starts sending `tensor` to rank `peer`; never blocks."""

    def post_receive(self, buffer: Tensor, peer: int, tag: int) -> Handle:
        """Starts receiving from rank `peer` into `buffer`; never blocks."""

    def all_reduce(self, tensor: Tensor, group: str) -> Handle:
        """Starts summing `tensor` in place over the ranks of `group`; every rank posts in the same order."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""

    def barrier(self) -> None:
        """Blocks until every rank is here."""

    def close(self) -> None:
        """Releases what the transport holds."""


class GlooTransport:
    """torch.distributed with gloo, on the default process group, which must exist.

    gloo's isend is a rendezvous: it completes when the receive is posted, and tells only those who wait.

    Args:
        groups: ranks per group name; created here, in the same order on every rank. One group per use:
            collectives of different groups need no common order.
    """

    queues = False

    def __init__(self, groups: Mapping[str, Sequence[int]], timeout_s: float = BACKSTOP_S) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._groups = {
            name: dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s), backend="gloo")
            for name, ranks in groups.items()
        }

    @property
    def host(self) -> Transport:
        return self

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Handle:
        return _GlooHandle(dist.isend(tensor, peer, tag=tag))

    def post_receive(self, buffer: Tensor, peer: int, tag: int) -> Handle:
        return _GlooHandle(dist.irecv(buffer, peer, tag=tag))

    def all_reduce(self, tensor: Tensor, group: str) -> Handle:
        return _GlooHandle(dist.all_reduce(tensor, group=self._groups[group], async_op=True))

    def all_gather_object(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.world_size
        with _disable_current_modes():  # nobody's memory: what a pickle is sent in
            dist.all_gather_object(gathered, value)
        return gathered

    def barrier(self) -> None:
        with _disable_current_modes():  # gloo's is a byte on every rank
            dist.barrier()

    def close(self) -> None:
        for group in self._groups.values():
            dist.destroy_process_group(group)
        self._groups.clear()


class _GlooHandle:
    def __init__(self, work: dist.Work | None) -> None:
        if work is None:
            raise RuntimeError("this rank is not part of the transfer")
        self._work = work
        self._finished = False

    def wait(self) -> None:
        if not self._finished:
            self._work.wait()
            self._finished = True

    def done(self) -> bool:
        return self._finished or self._work.is_completed()
