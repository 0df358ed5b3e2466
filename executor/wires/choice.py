"""Which transport carries a rank's tensors: its host's own, the same through staging buffers, or NCCL."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from ...planner.plan import Plan
from ..place import Place
from .transport import GlooTransport, Transport


@contextmanager
def transport_for(plan: Plan, wires: Transport, place: Place) -> Iterator[Transport]:
    """A transport for tensors where the rank computes, given one for tensors in the hosts' memories; collective.

    NCCL where ranks are processes and each has a CUDA device of its own; else messages go through the hosts.
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


def _for_cuda(plan: Plan, wires: Transport, place: Place) -> Transport:
    if isinstance(wires, GlooTransport):
        devices = wires.all_gather_object((socket.gethostname(), place.name, dist.is_nccl_available()))
        if len({(host, device) for host, device, _ in devices}) == len(devices) and all(d[2] for d in devices):
            from .nccl import NcclTransport

            return NcclTransport(wires, plan, place)
    from .staged import StagedTransport

    return StagedTransport(wires, place)
