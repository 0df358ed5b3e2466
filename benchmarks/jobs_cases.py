"""The training jobs of benchmarks/jobs.py: models, machines, samples a step; and their layers' costs.

Costs are analytic, of two sorts. `half`: every operator at half of the device's peaks, launches free (`contraflow
profile --efficiency 0.5`); `kernels`: what kernels reach by shape (the default). They lie in benchmarks/costs, one xz
file for each job, sort and size of layers, each what `contraflow profile` writes; `command` says what to type.

    python benchmarks/jobs_cases.py            writes those that are missing
"""

from __future__ import annotations

import json
import lzma
import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from contraflow.planner import Choice, Cluster, Link, ModelFamily, Workload
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import PRESETS

FOLDER = Path(__file__).parent / "costs"
SORTS = {"half": 0.5, "kernels": None}
"""Sorts of costs, and the efficiency that each is asked for with."""
LAYERS = ("parts", "block")
NVLINK = {"H100-80GB": Link(450e9, 3e-6), "A100-80GB": Link(300e9, 3e-6), "A100-40GB": Link(300e9, 3e-6)}
PCIE = Link(25e9, 5e-6)
HOST = Link(25e9, 10e-6)


@dataclass(frozen=True)
class Costs:
    """What `contraflow profile` is asked: the preset of the first kind of devices, then the others.

    Teams divide tensors and, between those parts, positions: as much is sent, and nothing is kept by all.
    """

    model: str
    devices: str
    precision: str
    teams: str
    sizes: str
    link: str

    def arguments(self, sort: str, layers: str) -> dict[str, Any]:
        """Of `executor.cli.profile.Asked`."""
        return {
            "micro_batch_size": self.sizes, "team": self.teams, **self.ways(), "device": self.devices,
            "precision": self.precision, "efficiency": SORTS[sort], "layers": layers,
        }  # fmt: skip

    def ways(self) -> dict[str, Any]:
        """How teams divide layers, and over what."""
        return {} if self.teams == "1" else {"link": self.link, "ways": "sequence"}

    def command(self, sort: str, layers: str) -> str:
        """What to type for the same file."""
        options = {key: value for key, value in self.arguments(sort, layers).items() if value is not None}
        given = (text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", str(value)))
        return shlex.join(["contraflow", "profile", self.model, *given])

    def estimated(self, sort: str, layers: str) -> ModelFamily:
        """Computed now: needs torch, and some seconds."""
        from contraflow.executor.cli.profile import Asked, estimate

        return ModelFamily.from_dict(estimate(self.model, Asked(**self.arguments(sort, layers))))


@dataclass(frozen=True)
class Job:
    """A training step on a machine.

    Attributes:
        goals: seconds a step to reach, and the gap; in costs of the sort `half`.
        grid_s: the best uniform grid that issue 17 names, without any of its techniques; the same costs.
        published: a named schedule that was published for this job, planned by name.
        file: the costs' name in benchmarks/costs; without one they are computed.
    """

    name: str
    costs: Costs
    cluster: Cluster
    samples: int
    workload: Workload
    goals: tuple[float | None, float | None] = (None, None)
    grid_s: float | None = None
    published: str | None = None
    file: str | None = None

    @property
    def choice(self) -> Choice:
        """Everything that the costs have."""
        return Choice(self.samples)

    def family(self, sort: str, layers: str = "parts") -> ModelFamily:
        """The costs of the layers."""
        if self.file is None:
            return _estimated(self.costs, sort, layers)
        return ModelFamily.from_dict(json.loads(lzma.decompress(self.path(sort, layers).read_bytes())))

    def path(self, sort: str, layers: str) -> Path:
        """Where costs are kept."""
        return FOLDER / f"{self.file}-{layers}-{sort}.json.xz"

    def keep(self, sort: str, layers: str) -> None:
        """Writes the costs."""
        family = self.costs.estimated(sort, layers)
        content = family.to_dict() if len(family.members) > 1 else family.members[0].to_dict()
        FOLDER.mkdir(exist_ok=True)
        self.path(sort, layers).write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))


@cache
def _estimated(costs: Costs, sort: str, layers: str) -> ModelFamily:
    return costs.estimated(sort, layers)


def nodes(*groups: tuple[int, int, str], network: Link) -> Cluster:
    """Nodes as (count, devices, preset), each with the links that such devices usually have."""
    made = [NodeGroup(n, d, PRESETS[kind], NVLINK.get(kind, PCIE), None, HOST) for n, d, kind in groups]
    return Cluster(tuple(made), network)


MIXED = Workload(1, "adam", "mixed")
LLAMA_70B = Costs("llama-70b", "H100-80GB", "bf16", "1,2,4,8", "1,2,4", "450GB/s,3us")
LLAMA_13B = Costs("llama-13b", "A100-40GB", "bf16", "1,2,4,8", "1,2,4", "300GB/s,3us")
GPT2 = Costs("gpt2-64", "P100-16GB", "fp32", "1", "1,2,4", "")
BERT = Costs("bert-large", "A100-40GB,H100-80GB", "bf16", "1,2", "1,2,4,8", "300GB/s,3us")
LLAMA_7B = Costs("llama-7b", "A100-80GB,A10-24GB", "bf16", "1,2,4", "1,2,4", "25GB/s,5us")
SLOW_7B = Costs("llama-7b", "A100-40GB", "bf16", "1,2,4", "1,2,4", "300GB/s,3us")


def table() -> Iterator[Job]:
    """The rows that issue 17 asks for."""
    h100 = nodes((8, 8, "H100-80GB"), network=Link(50e9, 10e-6))
    for samples, goals, grid_s in ((512, (43.5, None), 63.6), (128, (11.0, 0.08), 17.93)):
        yield Job(
            f"Llama-70B, 8 x 8 H100-80GB, {samples} samples", LLAMA_70B, h100, samples, MIXED, goals, grid_s,
            file="llama-70b",
        )  # fmt: skip
    a100 = nodes((2, 8, "A100-40GB"), network=Link(25e9, 10e-6))
    yield Job(
        "Llama-13B, 2 x 8 A100-40GB, 64 samples", LLAMA_13B, a100, 64, MIXED, (13.3, None), 18.56, file="llama-13b"
    )
    p100 = Cluster((NodeGroup(32, 1, PRESETS["P100-16GB"], Link(), None, Link(12e9, 10e-6)),), Link(10e9, 1e-6))
    yield Job(
        "GPT-2, 32 x 1 P100, 128 samples", GPT2, p100, 128, Workload(1, "adam"), published="chimera", file="gpt2-64"
    )
    both = nodes((1, 4, "A100-40GB"), (1, 2, "H100-80GB"), network=Link(25e9, 10e-6))
    yield Job("BERT-Large, 4 A100-40GB + 2 H100, 96 samples", BERT, both, 96, MIXED, file="bert-large")
    unequal = nodes((2, 4, "A100-80GB"), (2, 4, "A10-24GB"), network=Link(12.5e9, 10e-6))
    yield Job("Llama-7B, 8 A100-80GB + 8 A10, 64 samples", LLAMA_7B, unequal, 64, MIXED, file="llama-7b-unequal")
    slow = nodes((4, 4, "A100-40GB"), network=Link(1.25e9, 30e-6))
    yield Job("Llama-7B, 4 x 4 A100-40GB, 10 Gb/s, 64 samples", SLOW_7B, slow, 64, MIXED, file="llama-7b-slow")


HEADS = {"gpt2": 12, "bert-large": 16, "bert-48": 16, "gpt2-64": 20, "llama-7b": 32}
"""Of attention, by model: a team divides them equally."""


def drawn(seed: int, count: int) -> Iterator[Job]:
    """Jobs that nobody was shown: models, devices, nodes, links, memory and samples at random."""
    for number in range(count):
        dice = random.Random(f"{seed}/{number}")
        model = dice.choice(tuple(HEADS))
        kind = dice.choice(("A100-40GB", "A100-80GB", "H100-80GB", "A10-24GB", "RTX-4090-24GB"))
        each = dice.choice((1, 2, 4, 8))
        groups = dice.choice([n for n in (1, 2, 4, 8) if 4 <= n * each <= 16])
        inside, between = dice.choice((25e9, 100e9, 300e9)), dice.choice((1.25e9, 5e9, 12.5e9, 50e9))
        kept = PRESETS[kind].memory_bytes
        memory = int(dice.choice((1.0, 1.0, 0.6, 0.4)) * kept) if model != "llama-7b" else kept
        samples = dice.choice((16, 32, 64, 128))
        teams = ",".join(str(t) for t in (1, 2, 4, 8) if t <= each and HEADS[model] % t == 0)
        costs = Costs(model, kind, "bf16", teams, "1,2,4", f"{inside / 1e9:g}GB/s,5us")
        cluster = Cluster(
            (NodeGroup(groups, each, PRESETS[kind], Link(inside, 5e-6), None, HOST),), Link(between, 20e-6)
        )
        name = (
            f"{seed}/{number}: {model}, {groups} x {each} {kind}, {inside / 1e9:g} and {between / 1e9:g} GB/s, "
            f"{memory / 2**30:.3g} GiB, {samples} samples"
        )
        yield Job(name, costs, cluster, samples, replace(MIXED, memory_limit_bytes=memory))


if __name__ == "__main__":
    for job in table():
        for sort in SORTS:
            for layers in LAYERS:
                if not job.path(sort, layers).exists():
                    print(job.costs.command(sort, layers), "|", "xz -9 >", job.path(sort, layers).name, flush=True)
                    job.keep(sort, layers)
