"""Which transport carries a rank's tensors: its host's own, the same through staging buffers, or NCCL."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist

from ...planner.plan import Plan
from ..place import Place
from .transport import GlooTransport, Transport


@contextmanager
def transport_for(plan: Plan, wires: Transport, place: Place) -> Iterator[Transport]:
    """A transport for tensors where the rank computes, given one for tensors in the hosts' memories; collective.

    NCCL where ranks are processes, each has a CUDA device of its own, and a stream for every communicator; else
    messages go through the hosts, and `said` tells why.
    """
    if not place.queues:
        yield wires
        return
    transport = _for_cuda(plan, wires, place)
    try:
        yield transport
        transport.barrier()  # what was sent has left
    finally:
        transport.close()


def said(transport: Transport) -> str | None:
    """In a line, why a rank with a GPU has its messages go through the hosts; None: they do not, or there are none."""
    from .staged import StagedTransport

    if not isinstance(transport, StagedTransport) or transport.world_size == 1:
        return None
    return f"messages between GPUs go through pinned memory of the host, since {transport.reason}"


def _for_cuda(plan: Plan, wires: Transport, place: Place) -> Transport:
    reason: str | None = "ranks are threads of one process"
    if isinstance(wires, GlooTransport):
        reason = no_nccl(plan, wires.all_gather_object((socket.gethostname(), place.name, dist.is_nccl_available())))
    if reason is None:
        from .nccl import NcclTransport

        return NcclTransport(wires, plan, place)
    from .staged import StagedTransport

    return StagedTransport(wires, place, reason)


def no_nccl(plan: Plan, devices: Sequence[tuple[str, object, bool]]) -> str | None:
    """Why ranks with these (host, device, whether torch has NCCL) cannot use NCCL; None: they can."""
    from .nccl import STREAMS, communicators

    if not all(there for _, _, there in devices):
        return "this torch has no NCCL"
    first: dict[tuple[str, object], int] = {}
    for rank, (host, device, _) in enumerate(devices):
        if first.setdefault((host, device), rank) != rank:
            return f"ranks {first[host, device]} and {rank} share a GPU, which NCCL refuses"
    counts = communicators(plan)
    most = max(range(len(counts)), key=counts.__getitem__)
    if counts[most] > STREAMS:
        return (
            f"rank {most} would need {counts[most]} communicators, and torch has {STREAMS} streams for them: two on "
            "one may wait for each other"
        )
    return None
