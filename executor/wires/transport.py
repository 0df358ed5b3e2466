"""How tensors travel between ranks: the interface, and gloo. The in-process one is in `threads`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..place import at_once
from .carriers import step_back
from .loopback import ranks_here
from .pair_sum import PairSum, exchanged
from .seat import Seat

BACKSTOP_S = 86400.0
"""How long a rank waits for a message or a collective by itself: a last resort. Others may legitimately take long;
who makes no progress is found by `watch`."""


all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""all_gather_into_tensor by the name that this torch has for it."""


def part_of(tensor: Tensor, number: int, parts: int) -> Tensor:
    """One of so many equal parts of a flat tensor, as a view."""
    size = tensor.numel() // parts
    return tensor[number * size : (number + 1) * size]


class Handle(Protocol):
    """A transfer under way."""

    def wait(self) -> None:
        """Blocks until the transfer is complete; raises when it failed, timed out or was aborted."""

    def done(self) -> bool:
        """Whether it is known to be complete, without blocking."""


class Transport(Protocol):
    """One rank's end of the wires. Messages are matched by (sender, receiver, tag), in posting order.

    A tensor handed over must be contiguous and stay untouched until its handle is complete. Where devices are teams,
    ranks are spoken of as devices: all that is meant are those of the own lane.

    Attributes:
        rank, world_size: the device, and how many there are. seat: where exactly.
        pauses: whether ops should pause now and then: threads of its own carry messages, on the cores of the ranks.
    """

    rank: int
    world_size: int
    seat: Seat
    pauses: bool

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

    def reduce_scatter(self, tensor: Tensor, group: str) -> Handle:
        """As `all_reduce`, but each rank needs the sum of its part alone: what the others hold is theirs to say.

        `tensor` has as many equal parts as `group` has ranks, in their order.
        """

    def all_gather(self, tensor: Tensor, group: str) -> Handle:
        """Starts bringing every rank's part of `tensor`, of which it has written its own, to all ranks, in place."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""

    @property
    def team(self) -> Any:
        """The process group of the team, for tensors where the rank computes; None where a device is one rank."""

    def gather_team(self, value: Any) -> list[Any]:
        """The values of the team, by lane."""

    def gather_parts(self, tensor: Tensor, rank: int) -> list[Tensor] | None:
        """The team's tensors of the host's memory by lane, all of one shape, on that rank of it; None on others."""

    def barrier(self) -> None:
        """Blocks until every rank is here, of all lanes."""

    def close(self) -> None:
        """Releases what the transport holds."""


class GlooTransport:
    """torch.distributed with gloo, on the default process group, which must exist.

    gloo's isend is a rendezvous: it completes when the receive is posted, and tells only those who wait. A thread of
    gloo's carries it, also what is small: the sender's must hear of the receive. Where ranks share cores they do not
    pause for it: whatever else computes there would go on instead. See `carriers`.

    Args:
        groups: ranks per group name; created here, in the same order on every rank. One group per use:
            collectives of different groups need no common order.
        team: ranks a device. whole: names of the groups that all lanes share; the others exist once a lane.
    """

    queues = False

    def __init__(
        self,
        groups: Mapping[str, Sequence[int]],
        timeout_s: float = BACKSTOP_S,
        team: int = 1,
        whole: Collection[str] = (),
    ) -> None:
        self.seat = Seat.of(dist.get_rank(), team)
        self.rank, self.world_size = self.seat.device, dist.get_world_size() // team
        self.pauses = dist.get_world_size() > 1 and ranks_here() <= at_once(torch.get_num_threads())
        self._everybody: Any = dist.group.WORLD  # asked directly: isend looks it up again, and takes half as long again
        self._timeout = timedelta(seconds=timeout_s)
        self._groups = {name: self._group(ranks, name in whole) for name, ranks in groups.items()}
        self._lane = self._group(range(self.world_size), False) if team > 1 else None
        teams = [self._made(Seat(device, 0, team).mates) for device in range(self.world_size)] if team > 1 else [None]
        self._team = teams[self.rank] if team > 1 else None
        step_back()

    def _group(self, devices: Sequence[int], whole: bool) -> Any:
        """The own one of the groups of these devices; every rank makes every group."""
        lanes = self.seat.in_lanes(devices)
        if whole:
            return self._made(sorted(rank for lane in lanes for rank in lane))
        return [self._made(ranks) for ranks in lanes][self.seat.lane]

    def _made(self, ranks: Sequence[int]) -> Any:
        return dist.new_group(list(ranks), timeout=self._timeout, backend="gloo")

    @property
    def team(self) -> Any:
        return self._team

    @property
    def host(self) -> Transport:
        return self

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Handle:
        return _GlooHandle(self._everybody.send([tensor], self.seat.like(peer), tag))

    def post_receive(self, buffer: Tensor, peer: int, tag: int) -> Handle:
        return _GlooHandle(self._everybody.recv([buffer], self.seat.like(peer), tag))

    def all_reduce(self, tensor: Tensor, group: str) -> Handle:
        ranks = self._groups[group]
        if exchanged(tensor, dist.get_world_size(ranks)):
            return PairSum(tensor, ranks)
        return _GlooHandle(dist.all_reduce(tensor, group=ranks, async_op=True))

    def reduce_scatter(self, tensor: Tensor, group: str) -> Handle:
        """gloo's own is an all-reduce of a copy: in place it takes no memory more, and sums in the same order."""
        return self.all_reduce(tensor, group)

    def all_gather(self, tensor: Tensor, group: str) -> Handle:
        ranks = self._groups[group]
        part = part_of(tensor, dist.get_rank(ranks), dist.get_world_size(ranks))
        return _GlooHandle(all_gather_flat(tensor, part, group=ranks, async_op=True))

    def all_gather_object(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.world_size
        with _disable_current_modes():  # nobody's memory: what a pickle is sent in
            dist.all_gather_object(gathered, value, group=self._lane)
        return gathered

    def gather_team(self, value: Any) -> list[Any]:
        if self._team is None:
            return [value]
        gathered: list[Any] = [None] * self.seat.size
        with _disable_current_modes():
            dist.all_gather_object(gathered, value, group=self._team)
        return gathered

    def gather_parts(self, tensor: Tensor, rank: int) -> list[Tensor] | None:
        if self._team is None:
            return [tensor]
        mine = rank == self.seat.number
        parts = [torch.empty_like(tensor) for _ in self.seat.mates] if mine else None
        dist.gather(tensor, parts, dst=rank, group=self._team)
        return parts

    def barrier(self) -> None:
        with _disable_current_modes():  # gloo's is a byte on every rank
            dist.barrier()

    def close(self) -> None:
        step_back(False)  # the default group is not ours
        for group in (*self._groups.values(), self._lane, self._team):
            if group is not None:
                dist.destroy_process_group(group)
        self._groups.clear()
        self._everybody = None  # its address is free again only when nobody holds it


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
