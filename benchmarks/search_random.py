"""Random instances on which the search is compared with its peers: nobody has chosen them, and any seed makes new ones.

Chains around published costs: 4 to 16 devices, odd numbers too, from one micro-batch less than devices to eight times
as many, messages up to 40 % of an F, a heavy first or last layer on a third of them, and memory from a quarter to
twice that of 1F1B. Every device could have 2, 4 or 6 layers, so that schedules with several stages a device apply.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from search_cases import KEEP_ALL, PLENTY, SHARE, Case

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Workload

PROFILES = {"even": (100, 100, 100, 0, 0.5), "uneven": (100, 120, 80, 5, 0.5), "1.5B": (18522, 18086, 9337, 601, 0.366)}
"""F, I, W of a device and a message, and the share of a stash that waits for W; the last is a measured GPT of 1.5
billion parameters (arXiv:2401.10241, table 4)."""
MEMORY = {"1/4": 0.25, "3/8": 0.375, "1/2": 0.5, "5/8": 0.625, "3/4": 0.75, "1": 1.0, "3/2": 1.5, "2": 2.0}
"""Of what 1F1B takes."""
LAYERS = (2, 4, 4, 4, 6)
HEAVY = 1 / 3


@dataclass(frozen=True)
class Drawn:
    """An instance: costs of a device, `heavy` times as much for the first and the last layer."""

    devices: int
    micro_batches: int
    layers: int
    profile: str
    costs: tuple[int, int, int, int]
    weight_share: float
    heavy: tuple[float, float]
    memory: str

    @property
    def name(self) -> str:
        """For people."""
        f, i, w, latency = self.costs
        ends = "" if self.heavy == (1.0, 1.0) else f", ends x{self.heavy[0]:g} and x{self.heavy[1]:g}"
        size = f"p={self.devices} m={self.micro_batches}, {self.layers} layers a device"
        return f"{size}, {self.profile} {f}/{i}/{w} comm {latency}{ends}, memory {self.memory}"

    def case(self, number: int = 7) -> Case:
        """As a row of the benchmark, with one pipeline and all stashes kept."""
        layers = [self._layer(k) for k in range(self.devices * self.layers)]
        limit = int(MEMORY[self.memory] * self.devices * SHARE)
        return Case(
            number,
            self.name,
            ModelGraph.chain(layers, name="random"),
            Cluster.uniform(self.devices, PLENTY, Link(latency_s=self.costs[3])),
            Workload(self.micro_batches, memory_limit_bytes=limit),
            replace(KEEP_ALL, pipelines=1),
            f"{self.memory} of 1F1B",
        )

    def _layer(self, k: int) -> Layer:
        last = self.devices * self.layers - 1
        times = self.heavy[0] if k == 0 else self.heavy[1] if k == last else 1.0
        f, i, w = (times * cost / self.layers for cost in self.costs[:3])
        stash = SHARE // self.layers
        pending = int(stash * self.weight_share)
        return Layer(f"layer{k}", f, i, w, True, stash_bytes=stash, weight_stash_bytes=pending)


def drawn(rng: random.Random) -> Drawn:
    """One instance."""
    devices = rng.randint(4, 16)
    batches = round(math.exp(rng.uniform(math.log(devices - 1), math.log(8 * devices))))
    profile = rng.choice(list(PROFILES))
    f, i, w, latency, share = PROFILES[profile]
    around = [max(1, round(cost * rng.uniform(0.8, 1.25))) if rng.random() < 0.7 else cost for cost in (f, i, w)]
    message = latency if rng.random() < 0.5 else round(rng.uniform(0, 0.4) * around[0])
    heavy = (1.0, 1.0)
    if rng.random() < HEAVY:
        factor = round(rng.uniform(1.5, 3.5), 1)
        heavy = (factor, 1.0) if rng.random() < 0.5 else (1.0, factor)
    costs = (around[0], around[1], around[2], message)
    return Drawn(devices, batches, rng.choice(LAYERS), profile, costs, share, heavy, rng.choice(list(MEMORY)))


def instances(count: int, seed: int) -> list[Drawn]:
    """So many instances of a seed; the first ones are the same however many there are."""
    rng = random.Random(seed)
    return [drawn(rng) for _ in range(count)]
