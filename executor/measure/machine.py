"""Measures what processes that talk through gloo do to one another: links, optimizer steps and copies.

Everything is measured with all processes at it, as in training: messages cross both ways at once, copies and optimizer
steps run on every core.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...planner.problem import Workload
from ..basics import Training
from ..state import make_optimizer

WARMUPS = 2
ROUNDS = 15
MESSAGE_BYTES = 1 << 20
REDUCED_BYTES = 8 << 20
PARAMETERS = 2 << 20
"""Of the optimizer step that is measured: with Adam's state it is beyond any cache of one core."""


@dataclass(frozen=True)
class Machine:
    """What was measured, in seconds and bytes a second.

    Attributes:
        latency_s, bandwidth: of a message between two processes while one goes the other way.
        reduce_bandwidth: with which the formula of a ring reproduces an all-reduce between all processes (None: one
            process alone).
        link_cores: that one process's threads beside its own keep busy while it sums with the others.
        memory_bandwidth: of the optimizer step, in the bytes that `Workload.step_traffic_bytes` counts.
        host_latency_s, host_bandwidth: of a copy to newly allocated memory, in a thread beside the process's own.
    """

    latency_s: float
    bandwidth: float
    reduce_bandwidth: float | None
    link_cores: float
    memory_bandwidth: float
    host_latency_s: float
    host_bandwidth: float


@dataclass(frozen=True)
class Seat:
    """One of the processes of a node: its number there, how many there are, the rank of the first, their group."""

    local: int
    processes: int
    first: int = 0
    group: Any = None

    @property
    def neighbour(self) -> int | None:
        """The rank it exchanges messages with: pairs of neighbours do, of an odd number the last one only waits."""
        peer = self.local ^ 1
        return self.first + peer if peer < self.processes else None


def measured(seat: Seat, rounds: int = ROUNDS) -> Machine:
    """What one process of a node measures; collective over all ranks, those of other nodes measure at the same time."""
    processes = seat.processes
    latency_s, bandwidth = link_to(seat.neighbour, rounds)
    small = torch.zeros(1)
    flat = torch.zeros(REDUCED_BYTES // small.element_size())
    reduce_s = _usual(lambda: dist.all_reduce(flat, group=seat.group), rounds)
    link_cores = _kept_busy(lambda: dist.all_reduce(flat, group=seat.group), rounds) if processes > 1 else 0.0
    hops = 2 * (processes - 1)
    moved = hops * REDUCED_BYTES / processes
    step_s, traffic = _optimizer_step(rounds)
    source = torch.zeros(REDUCED_BYTES // small.element_size())
    copy_s = _usual(lambda: torch.empty_like(source).copy_(source), rounds)
    return Machine(
        latency_s=latency_s,
        bandwidth=bandwidth,
        reduce_bandwidth=moved / _beyond(reduce_s, hops * latency_s) if hops else None,
        link_cores=link_cores,
        memory_bandwidth=traffic / step_s,
        host_latency_s=_usual(lambda: torch.empty_like(small).copy_(small), rounds),
        host_bandwidth=source.nbytes / copy_s,
    )


def _beyond(seconds: float, latency_s: float) -> float:
    """Seconds without the latency; all of them where the latency is most of it: too little was moved to tell."""
    return seconds - latency_s if seconds > 2 * latency_s else seconds


def link_to(peer: int | None, rounds: int = ROUNDS) -> tuple[float, float]:
    """(latency, bandwidth) of messages with another rank, both ways at once; collective over all ranks."""
    latency_s = _usual(_exchange(peer, 4), rounds)
    return latency_s, MESSAGE_BYTES / _beyond(_usual(_exchange(peer, MESSAGE_BYTES), rounds), latency_s)


def _exchange(peer: int | None, count: int) -> Callable[[], None]:
    """The two ranks send each other `count` bytes; without a peer it only waits for the others."""
    outgoing, incoming = (torch.zeros(count, dtype=torch.uint8) for _ in range(2))

    def exchange() -> None:
        if peer is not None:
            receiving = dist.irecv(incoming, peer)
            dist.send(outgoing, peer)
            assert receiving is not None
            receiving.wait()

    return exchange


def _optimizer_step(rounds: int) -> tuple[float, int]:
    """(seconds, bytes) of a step of Adam."""
    parameter: Tensor = torch.zeros(PARAMETERS)
    parameter.grad = torch.zeros_like(parameter)
    optimizer = make_optimizer("adam", [parameter], Training().of_run("adam", 1), fused=True)
    return _usual(optimizer.step, rounds), Workload(1, "adam").step_traffic_bytes(parameter.nbytes)


def _kept_busy(work: Callable[[], object], rounds: int) -> float:
    """Cores that threads of this process beside the one that asks for the work keep busy while it is done."""
    began, whole, own = time.perf_counter(), time.process_time(), time.thread_time()
    for _ in range(rounds):
        work()
    others_s = time.process_time() - whole - (time.thread_time() - own)
    return others_s / (time.perf_counter() - began)


def _usual(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the work after a common start, warmed up: the lower quartile, since others only ever add."""
    laps = []
    for _ in range(WARMUPS + rounds):
        dist.barrier()
        start = time.perf_counter()
        work()
        laps.append(time.perf_counter() - start)
    return statistics.quantiles(laps[WARMUPS:], n=4, method="inclusive")[0]
