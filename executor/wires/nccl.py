"""Messages and reductions between GPUs by NCCL, for ranks that have a GPU each.

NCCL knows no tags and runs the messages of one communicator one after the other. So every ordered pair of ranks that
exchange messages has a communicator of its own: messages of a pair are posted in list order at both ends (a checked
plan sees to that), and the two directions, other pairs and reductions never wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...planner.plan import SENDS, Kind, Op, Plan
from ..place import Place
from .groups import reduce_groups
from .seat import Seat
from .transport import BACKSTOP_S, Handle, Transport, all_gather_flat, part_of

MESSAGE_BLOCKS = 8
"""Thread blocks that a message may occupy: receives are posted early and occupy them until the message comes."""
STREAMS = 32
"""Of high priority in torch's pool: beyond so many communicators of a rank, two share one."""
_scatter_sums = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""reduce_scatter_tensor by the name that this torch has for it. Its output may be the rank's own part of its input."""


def pairs(plan: Plan) -> list[tuple[int, int]]:
    """(sender, receiver) of every pair of ranks with messages, in one order for all ranks."""
    route = {m: pipeline for pipeline in plan.pipelines for m in pipeline.micro_batches}

    def receiver(op: Op) -> int:
        if op.kind is Kind.SEND_F:
            return route[op.micro_batch].forward[op.peer]
        if op.kind is Kind.SEND_B:
            return route[op.micro_batch].backward[op.peer]
        return op.peer

    return sorted({(rank, receiver(op)) for rank, ops in enumerate(plan.orders) for op in ops if op.kind in SENDS})


def communicators(plan: Plan) -> list[int]:
    """How many every rank is part of: a pair of ranks has one in each direction with messages, and a team has one."""
    team = int(plan.problem.cluster.team > 1)
    both = [*pairs(plan), *reduce_groups(plan).values()]
    return [team + sum(rank in ranks for ranks in both) for rank in range(len(plan.orders))]


class NcclTransport:
    """One rank's end (see `Transport`). Created by all ranks together; makes every connection at once.

    Args:
        wires: between the hosts, for barriers and objects.
    """

    queues, pauses = True, False

    def __init__(self, wires: Transport, plan: Plan, place: Place, timeout_s: float = BACKSTOP_S) -> None:
        self.rank, self.seat = wires.rank, wires.seat
        self.world_size = wires.world_size
        self._wires = wires
        self._pairs: dict[tuple[int, int], Any] = {}
        self._groups: dict[str, Any] = {}
        timeout = timedelta(seconds=timeout_s)
        own = self.seat.lane
        for pair in pairs(plan):  # every rank makes every group: it is a collective of all
            self._pairs[pair] = [_group(ranks, timeout, MESSAGE_BLOCKS) for ranks in self.seat.in_lanes(pair)][own]
        for name, devices in reduce_groups(plan).items():
            self._groups[name] = [_group(ranks, timeout) for ranks in self.seat.in_lanes(devices)][own]
        self._team: Any = None
        if self.seat.size > 1:
            mates = [Seat(device, 0, self.seat.size).mates for device in range(self.world_size)]
            self._team = [_group(ranks, timeout) for ranks in mates][self.rank]
        self._connect(reduce_groups(plan), place)

    def _connect(self, groups: Mapping[str, Sequence[int]], place: Place) -> None:
        """Sends something everywhere: a first message blocks until both ends are there, in one order for all ranks."""
        probe = torch.zeros(1, device=place.device)
        for pair, group in self._pairs.items():
            if self.rank in pair:
                work = dist.isend if self.rank == pair[0] else dist.irecv
                handle = work(probe, self.seat.like(pair[1] if self.rank == pair[0] else pair[0]), group=group)
                _NcclHandle(handle).wait()
                place.synchronize()
        for name, ranks in groups.items():
            if self.rank in ranks:
                dist.all_reduce(probe, group=self._groups[name])
                place.synchronize()
        if self._team is not None:
            dist.all_reduce(probe, group=self._team)
            place.synchronize()

    @property
    def host(self) -> Transport:
        return self._wires

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Handle:
        return _NcclHandle(dist.isend(tensor, self.seat.like(peer), group=self._pairs[self.rank, peer]))

    def post_receive(self, buffer: Tensor, peer: int, tag: int) -> Handle:
        return _NcclHandle(dist.irecv(buffer, self.seat.like(peer), group=self._pairs[peer, self.rank]))

    def all_reduce(self, tensor: Tensor, group: str) -> Handle:
        return _NcclHandle(dist.all_reduce(tensor, group=self._groups[group], async_op=True))

    def reduce_scatter(self, tensor: Tensor, group: str) -> Handle:
        ranks = self._groups[group]
        part = part_of(tensor, dist.get_rank(ranks), dist.get_world_size(ranks))
        return _NcclHandle(_scatter_sums(part, tensor, group=ranks, async_op=True))

    def all_gather(self, tensor: Tensor, group: str) -> Handle:
        ranks = self._groups[group]
        part = part_of(tensor, dist.get_rank(ranks), dist.get_world_size(ranks))
        return _NcclHandle(all_gather_flat(tensor, part, group=ranks, async_op=True))

    def all_gather_object(self, value: Any) -> list[Any]:
        return self._wires.all_gather_object(value)

    @property
    def team(self) -> Any:
        return self._team

    def gather_team(self, value: Any) -> list[Any]:
        return self._wires.gather_team(value)

    def gather_parts(self, tensor: Tensor, rank: int) -> list[Tensor] | None:
        return self._wires.gather_parts(tensor, rank)

    def barrier(self) -> None:
        self._wires.barrier()

    def close(self) -> None:
        for group in (*self._pairs.values(), *self._groups.values(), self._team):
            if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        self._pairs.clear()
        self._groups.clear()


def _group(ranks: Sequence[int], timeout: timedelta, blocks: int | None = None) -> Any:
    """A communicator; its stream comes from the pool of high priority, from which nothing else here takes any."""
    options: Any = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    if blocks is not None and hasattr(options, "config"):
        options.config.max_ctas = blocks
    return dist.new_group(list(ranks), timeout=timeout, backend="nccl", pg_options=options)


class _NcclHandle:
    """`wait` queues: the current stream goes on after the transfer, the thread at once."""

    def __init__(self, work: dist.Work | None) -> None:
        if work is None:
            raise RuntimeError("this rank is not part of the transfer")
        self._work = work

    def wait(self) -> None:
        self._work.wait()

    def done(self) -> bool:
        return self._work.is_completed()
