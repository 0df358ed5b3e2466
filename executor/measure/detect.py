"""This machine, or all machines of a torchrun job, as a cluster.toml: devices, memory, links, host links, network."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ...planner.problem import Cluster, DeviceType, Link, NodeGroup, Overhead
from ..basics import RunError
from ..place import cores
from .cluster_text import cluster_toml
from .environment import memory_bytes
from .gpus import Gpus, found_gpus
from .machine import ROUNDS, Machine, Seat, link_to, measured
from .overhead import Train, overhead_among
from .ranks import among, under_a_launcher


@dataclass(frozen=True)
class Found:
    """A cluster as it was found.

    Attributes:
        cluster: what `contraflow plan` takes; all nodes alike. remarks: how it was found, a line each.
    """

    cluster: Cluster
    remarks: tuple[str, ...] = ()

    def toml(self) -> str:
        """cluster.toml."""
        return cluster_toml(self.cluster, self.remarks)


TOLD_APART = 0.02
"""Forecasts of plans of processes on one computer are off from one another by as much (`benchmarks/runtime.py`)."""


def detect_cluster(
    device: str = "cpu", processes: int = 2, threads: int = 1, rounds: int = ROUNDS, train: Train | None = None
) -> Found | None:
    """Measures with everything at it; under torchrun all its nodes, and then None on all ranks but the first.

    Args:
        device: "cuda": the GPUs of this machine, "cpu": processes.
        processes, threads: of the CPU; under torchrun as many processes as it has started.
        train: runs plans of a small model (`run.run_plan`), for what ops cost beside their layers; on the CPU only.

    Raises RunError: no GPU here, too few processes to measure a link, or nodes that are not alike.
    """
    if not under_a_launcher():
        if device == "cuda":
            return _of_gpus(found_gpus(rounds), 1, None)
        return among(processes, threads, partial(_joined, device, threads, rounds, train))
    torch.set_num_threads(threads)
    dist.init_process_group("gloo")
    try:
        return _joined(device, threads, rounds, train)
    finally:
        dist.destroy_process_group()


def _joined(device: str, threads: int, rounds: int, train: Train | None) -> Found | None:
    """As one of the job's ranks. Nodes are torchrun's agents: several may be on one machine."""
    local, each, node = (int(os.environ.get(key, 0)) for key in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"))
    shapes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, (node, each, platform.node()))
    counts = {number: ranks for number, ranks, _ in shapes}
    here = len({number for number, _, computer in shapes if computer == platform.node()})
    if len(set(counts.values())) > 1:
        raise RunError(f"nodes have {', '.join(map(str, counts.values()))} ranks: start as many on each")
    if each * len(counts) < 2:
        raise RunError("one rank alone has no link to measure")
    groups = [dist.new_group(range(k * each, (k + 1) * each)) for k in range(len(counts))]
    found = measured(Seat(local, each, node * each, groups[node]), rounds)
    network = None
    if len(counts) > 1:
        peer = node ^ 1
        latency_s, bandwidth = link_to(peer * each + local if peer < len(counts) else None, rounds)
        network = Link(bandwidth, latency_s)
    if device == "cuda":
        dist.barrier()
        gpus = found_gpus(rounds) if local == 0 else None
        dist.barrier()
        return _of_gpus(gpus, len(counts), network) if gpus is not None and dist.get_rank() == 0 else None
    link = _link_of(found) if each > 1 else Link()
    spent = None if train is None else overhead_among(train, threads, network or link, each * here)
    if spent is not None and network is None:
        found = replace(found, latency_s=spent.latency_s)
    if spent is not None and network is not None:
        network = replace(network, latency_s=spent.latency_s)
    if dist.get_rank() != 0:
        return None
    overhead = None if spent is None else spent.overhead
    return _of_processes(found, each, len(counts), network, overhead, cores() / threads / here)


def _of_processes(
    found: Machine,
    processes: int,
    nodes: int,
    network: Link | None,
    overhead: Overhead | None,
    at_once: float,
) -> Found:
    """Each has its share of the memory. Copies to the host are copies within it: they take room there, too.

    `at_once`: how many of a node's have cores. What more of them make of optimizer steps is the cores' doing.
    """
    whole = memory_bytes()
    memory_bandwidth = found.memory_bandwidth * max(1.0, processes / at_once)
    kind = DeviceType("cpu", whole // (2 * processes), memory_bandwidth=memory_bandwidth)
    link = _link_of(found) if processes > 1 else Link()
    host = Link(found.host_bandwidth, found.host_latency_s, cores=1.0)
    group = NodeGroup(nodes, processes, kind, link, whole // 2, host, cores=at_once)
    remarks = [
        f"{processes} processes on each of {nodes} nodes" if nodes > 1 else f"{processes} processes on this computer",
        f"{os.cpu_count()} cores, {whole} bytes of memory: half for devices, half for what is copied to the host.",
        "Measured while all were at it; links are gloo's.",
    ]
    told_apart = 0.0 if overhead is None else TOLD_APART
    return Found(Cluster((group,), network or Link(), overhead=overhead, told_apart=told_apart), tuple(remarks))


def _link_of(found: Machine) -> Link:
    """Between two processes of a node."""
    return Link(found.bandwidth, found.latency_s, found.reduce_bandwidth, found.link_cores)


def _of_gpus(gpus: Gpus, nodes: int, network: Link | None) -> Found:
    group = NodeGroup(nodes, gpus.count, gpus.kind, gpus.link, memory_bytes(), gpus.host_link, gpus.hosts_shared_by)
    across = ("The network is gloo's, over the host's memory: NCCL's is faster.",) if nodes > 1 else ()
    return Found(Cluster((group,), network or Link()), (*gpus.remarks, *across))
