"""Layer costs that a peer has published with the step of its own plan: case 7 of benchmarks/search.py.

Ticks of 0.01 ms, as SimPipe rounds them (github.com/guojihu-hana/SimPipe, profiles/nemotron-nano-v2-9B.json; steps of
its images/1f1b.md and images/octopipe.md): M is a Mamba layer, - an MLP, * attention; messages take no time there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from search_cases import KEEP_ALL, PLENTY, SHARE, Case

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Workload

PATTERN = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
TICKS = {"E": (76, 287, 0), "M": (268, 430, 176), "-": (185, 191, 169), "*": (193, 245, 65), "L": (1422, 1571, 6)}
"""F, I and W of the embedding, of every kind of layer, and of the head."""
STEPS = {"1F1B (published)": 133121, "OctoPipe (published)": 89870}
DEVICES, BATCHES = 4, 8


def nemotron() -> ModelGraph:
    """Nemotron Nano v2 9B; every layer's stash is one share, half of it waits for W: the profile says nothing of it."""
    layers = [
        Layer(f"{k}{kind}", *map(float, TICKS[kind]), separable=True, stash_bytes=SHARE, weight_stash_bytes=SHARE // 2)
        for k, kind in enumerate(f"E{PATTERN}L")
    ]
    return ModelGraph.chain(layers, name="nemotron-nano-v2-9B")


def profiles() -> Iterator[Case]:
    """One pipeline on 4 devices with 8 micro-batches: all the memory there may be, as its peer, and that of 1F1B."""
    model, cluster = nemotron(), Cluster.uniform(DEVICES, PLENTY, Link())
    space = replace(KEEP_ALL, pipelines=1)
    one = -(-len(model.layers) // DEVICES)  # shares of a device
    for text, shares in (("any memory", PLENTY // SHARE), ("1F1B's memory", one * DEVICES)):
        yield Case(
            7, f"nemotron-nano-v2-9B p={DEVICES} m={BATCHES}, {text}, 1 pipeline", model, cluster,
            Workload(BATCHES, memory_limit_bytes=shares * SHARE), space, text, tuple(STEPS.items()),
            goal=min(STEPS.values()), small=True,
        )  # fmt: skip
