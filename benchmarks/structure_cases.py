"""The problems that benchmarks/structure.py solves: real models, and clusters of several kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import search_cases
from search_cases import KEEP_ALL, Case, chain

from contraflow.executor.measure.analytic import analytic_profile
from contraflow.models.registry import resolve
from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import PRESETS, DeviceType

WORKLOADS = Path(__file__).parents[2] / "shared" / "workloads"
"""Published profiles, beside the project."""
HOST = Link(25e9, 10e-6)
INSIDE = Link(300e9, 3e-6)
TECHNIQUES = {
    "keep": KEEP_ALL,
    "recompute": SearchSpace(offload=False),
    "offload": SearchSpace(recompute=False),
    "joint": SearchSpace(),
}


# ------------------------------------------------------------------ 1: a real profile under a real limit


def vgg(batches: int, memory: int | None, space: SearchSpace) -> Case:
    """VGG-16's profile by PipeDream at batch 128, on 4 devices with 12 GB/s host links and a 1.25 GB/s network."""
    from contraflow.planner.formats import load_family

    model = load_family(WORKLOADS / "pipedream" / "image_classification" / "vgg16" / "graph.txt").members[0]
    kind = DeviceType("bench", memory if memory is not None else 1 << 50)
    cluster = Cluster((NodeGroup(4, 1, kind, Link(), None, Link(12e9)),), Link(1.25e9))
    limit = "unlimited" if memory is None else f"{memory / 1e9:g} GB"
    return Case(1, "VGG-16", model, cluster, Workload(batches), space, limit, unit_bytes=10**9, unit="GB")


# ------------------------------------------------------------------ 2: forward and backward apart

APART = {4: (33, 32), 3: (39, 36), 2: (51, 43), 1: (96, 75)}
"""Stashes a device: the best step with one device a stage, and with two (one pipeline, proven)."""


def apart(limit: int, separate: bool, bandwidth: float = 1.0, policies: bool = False, weights: int = 0) -> Case:
    """Four stages with F=1, B=2 on four devices, N=8; a stash takes 1 / bandwidth from device to device.

    weights: bytes of parameters a stage, of a stash's. Stashes are kept or shipped, or whatever `policies` allow.
    """
    layers = [Layer(f"layer{k}", 1.0, 2.0, separable=False, stash_bytes=100, parameter_bytes=weights) for k in range(4)]
    space = SearchSpace(
        pipelines=1, offload=policies, recompute=policies, split_backward=False, separate_backward=separate
    )
    cluster = Cluster.uniform(4, 1 << 40, Link(100 * bandwidth))
    held = 2 * weights  # parameters and gradients of one stage
    workload = Workload(8, memory_limit_bytes=limit * 100 + held)
    name = f"F=1 B=2, ship {1 / bandwidth:g}, weights {weights / 100:g} stashes"
    return Case(
        2, name, ModelGraph.chain(layers), cluster, workload, space, f"{limit} stashes", unit_bytes=100, unit="stashes"
    )


# ------------------------------------------------------------------ 3: unequal devices and links


def unequal() -> Iterator[Case]:
    """A GPT on eight A100s: two of half speed, one of half memory, or in two nodes with a slow link."""
    fast = DeviceType("A100-bench", 80 << 30, 1.0, 2.0e12)
    slow, small = replace(fast, name="half-speed", speed=0.5), replace(fast, name="half-memory", memory_bytes=40 << 30)

    def nodes(*parts: tuple[int, DeviceType], link: Link = INSIDE) -> Cluster:
        return Cluster(tuple(NodeGroup(1, count, kind, INSIDE, None, HOST) for count, kind in parts), link)

    free, large = search_cases.gpt(), search_cases.gpt(batch=8)
    yield replace(free, number=3, name="two of eight at half speed", cluster=nodes((6, fast), (2, slow)))
    mixed = nodes((3, fast), (1, small), (4, fast))
    yield replace(large, number=3, name="one of eight with half the memory", cluster=mixed)
    apart = nodes((4, fast), (4, fast), link=Link(INSIDE.bandwidth / 10, 10 * INSIDE.latency_s))
    yield replace(large, number=3, name="two nodes, a link 10 times slower", cluster=apart)


# ------------------------------------------------------------------ 5: how many directions


def mixes(sizes: tuple[int, ...]) -> Iterator[Case]:
    """Uniform chains over devices, micro-batches, memory for weights and memory for stashes.

    Weights: how many times a device's share of the parameters and gradients fits beside the stashes, which get a share
    of 1F1B's memory. Parameters of a device's share are as large as its stash, and adding up the gradients of two
    replicas takes about as long as a forward. Two layers a device and split backwards, then one layer a device and
    whole ones.
    """
    for devices in sizes:
        for layers_each, space, copies in ((2, KEEP_ALL, (1, 2, 4)), (1, WHOLE, (1, 2, devices))):
            for batches in (devices, 4 * devices):
                for held in copies:
                    for part in (1.0, 0.5):
                        yield _mix(devices, layers_each, batches, held, part, space)


WHOLE = replace(KEEP_ALL, split_backward=False)


def _mix(devices: int, layers_each: int, batches: int, copies: int, part: float, space: SearchSpace) -> Case:
    share = search_cases.SHARE
    message = share // 64
    layers = [
        replace(layer, parameter_bytes=share // layers_each, output_bytes=message)
        for layer in chain(devices, layers_each, search_cases.EVEN).layers
    ]
    limit = copies * 2 * share + int(part * devices * share) + 8 * message
    name = f"D={devices} N={batches}, {layers_each} layers each, weights x{copies}, stashes {part:.0%}"
    return Case(
        5, name, ModelGraph.chain(layers), Cluster.uniform(devices, search_cases.PLENTY, Link(message / 2)),
        Workload(batches, memory_limit_bytes=limit), space, f"{limit / share:.3g} shares",
    )  # fmt: skip


# ------------------------------------------------------------------ 6 and 7: many devices

P100 = PRESETS["P100-16GB"]


def analytic(name: str, micro_batch_size: int, device: DeviceType, precision: str) -> ModelGraph:
    """A model of the registry with costs from FLOPs and bytes."""
    return ModelGraph.from_dict(
        analytic_profile(resolve(name), micro_batch_size, device, precision, 0.5, layers="block")
    )


def evaluation(quick: bool) -> Iterator[tuple[str, int, int, tuple[int, ...]]]:
    """Model, nodes, mini-batch, and the micro-batch sizes tried (Chimera, arXiv:2107.06925, section 4)."""
    if quick:
        yield "bert-48", 16, 64, (4,)
        return
    for nodes in (16, 32, 64):
        yield "bert-48", nodes, 16 * nodes, (4, 8, 16)
    for nodes in (512, 1024, 2048):
        yield "gpt2-64", nodes, nodes, (1,)


def nodes_of_one(count: int) -> Cluster:
    """Nodes with one P100 each on a network like Cray Aries: about 10 GB/s and 1 us."""
    return Cluster((NodeGroup(count, 1, P100, Link(), None, Link(12e9, 10e-6)),), Link(10e9, 1e-6))


def spread(model: ModelGraph, size: int, nodes: int, mini_batch: int) -> Case:
    """One training step of `mini_batch` samples on so many nodes, in micro-batches of `size`."""
    return Case(
        6, f"{model.name} on {nodes} nodes, mini-batch {mini_batch}", model, nodes_of_one(nodes),
        Workload(mini_batch // size, optimizer="adam"), SearchSpace(), "16 GiB", unit_bytes=1 << 30, unit="GiB",
    )  # fmt: skip


def giants(quick: bool) -> Iterator[Case]:
    """Planning end to end: a 70B model on 64 GPUs, and GPT-2 with 1.4e9 parameters on 2,048."""
    h100 = PRESETS["H100-80GB"]
    if not quick:
        node = NodeGroup(8, 8, h100, Link(450e9, 3e-6), None, Link(25e9, 10e-6))
        yield Case(
            7, "llama-70b on 8 x 8, 512 micro-batches", analytic("llama-70b", 1, h100, "bf16"),
            Cluster((node,), Link(50e9, 10e-6)), Workload(512, optimizer="adam", precision="mixed"), SearchSpace(),
            "80 GiB", unit_bytes=1 << 30, unit="GiB",
        )  # fmt: skip
    nodes = 64 if quick else 2048
    yield replace(spread(analytic("gpt2-64", 1, P100, "fp32"), 1, nodes, nodes), number=7)
