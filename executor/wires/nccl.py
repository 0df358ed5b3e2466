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
from .transport import BACKSTOP_S, Handle, Transport

MESSAGE_BLOCKS = 8
"""Thread blocks that a message may occupy: receives are posted early and occupy them until the message comes."""


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


class NcclTransport:
    """One rank's end (see `Transport`). Created by all ranks together; makes every connection at once.

    Args:
        wires: between the hosts, for barriers and objects.
    """

    queues = True

    def __init__(self, wires: Transport, plan: Plan, place: Place, timeout_s: float = BACKSTOP_S) -> None:
        self.rank = wires.rank
        self.world_size = wires.world_size
        self._wires = wires
        self._pairs: dict[tuple[int, int], Any] = {}
        self._groups: dict[str, Any] = {}
        timeout = timedelta(seconds=timeout_s)
        for pair in pairs(plan):  # every rank makes every group: it is a collective of all
            self._pairs[pair] = _group(pair, timeout, MESSAGE_BLOCKS)
        for name, ranks in reduce_groups(plan).items():
            self._groups[name] = _group(ranks, timeout)
        self._connect(reduce_groups(plan), place)

    def _connect(self, groups: Mapping[str, Sequence[int]], place: Place) -> None:
        """Sends something everywhere: a first message blocks until both ends are there, in one order for all ranks."""
        probe = torch.zeros(1, device=place.device)
        for pair, group in self._pairs.items():
            if self.rank in pair:
                work = dist.isend if self.rank == pair[0] else dist.irecv
                handle = work(probe, pair[1] if self.rank == pair[0] else pair[0], group=group)
                _NcclHandle(handle).wait()
                place.synchronize()
        for name, ranks in groups.items():
            if self.rank in ranks:
                dist.all_reduce(probe, group=self._groups[name])
                place.synchronize()

    @property
    def host(self) -> Transport:
        return self._wires

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Handle:
        return _NcclHandle(dist.isend(tensor, peer, group=self._pairs[self.rank, peer]))

    def post_receive(self, buffer: Tensor, peer: int, tag: int) -> Handle:
        return _NcclHandle(dist.irecv(buffer, peer, group=self._pairs[peer, self.rank]))

    def all_reduce(self, tensor: Tensor, group: str) -> Handle:
        return _NcclHandle(dist.all_reduce(tensor, group=self._groups[group], async_op=True))

    def all_gather_object(self, value: Any) -> list[Any]:
        return self._wires.all_gather_object(value)

    def barrier(self) -> None:
        self._wires.barrier()

    def close(self) -> None:
        for group in (*self._pairs.values(), *self._groups.values()):
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
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
