"""The problems that benchmarks/search.py solves, with the steps that peers reach on them.

Uniform chains in ticks (1 tick = 1 s in the model): F, I, W and the latency between devices are given per device and
divided over its layers. Memory is in shares, the stash of one device's layers: F leaves one, I releases half of it, W
the rest (the peers' convention). Parameters and messages have 0 bytes, so stashes alone fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Plan, SearchSpace, Workload
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType

SHARE = 1 << 16
"""Bytes of one device's stash: divisible by the layers of a device and by 8."""
PLENTY = 1 << 50
KEEP_ALL = SearchSpace(offload=False, recompute=False)
INTERLEAVED = "interleaved ZB x4 (published)"
CHIMERA = "Chimera direct (published)"


@dataclass(frozen=True)
class Costs:
    """Ticks of one device for one micro-batch, and of a message between neighbours."""

    forward: int
    backward_input: int
    backward_weight: int
    latency: int = 0

    def __str__(self) -> str:
        return f"{self.forward}/{self.backward_input}/{self.backward_weight} comm {self.latency}"


EVEN = Costs(100, 100, 100)
UNEVEN = Costs(100, 120, 80, 5)


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        number: the case it belongs to, 1 to 7.
        limit: the memory limit for people.
        unit_bytes, unit: how peaks are printed.
        published: what others reach, as (who, step).
        goal: the step to reach; None: the best peer's.
        peak_of: a named schedule whose own peak, measured, is the memory limit.
        small: part of a quick run.
    """

    number: int
    name: str
    model: ModelGraph
    cluster: Cluster
    workload: Workload
    space: SearchSpace
    limit: str
    published: tuple[tuple[str, float], ...] = ()
    goal: float | None = None
    peak_of: str | None = None
    unit_bytes: int = SHARE
    unit: str = "shares"
    small: bool = False

    def limited(self, count: int, text: str) -> Case:
        """The same problem under a memory limit of `count` bytes."""
        return replace(self, workload=replace(self.workload, memory_limit_bytes=count), limit=text)


def chain(devices: int, chunks: int, costs: Costs, input_share: float = 0.0, separable: bool = True) -> ModelGraph:
    """A uniform chain, `chunks` layers a device; `input_share`: what recompute keeps, of a layer's stash."""
    layers = []
    for k in range(devices * chunks):
        layers.append(
            Layer(
                f"layer{k}",
                costs.forward / chunks,
                costs.backward_input / chunks,
                costs.backward_weight / chunks,
                separable=separable,
                stash_bytes=SHARE // chunks,
                weight_stash_bytes=SHARE // chunks // 2,
                input_bytes=int(SHARE / chunks * input_share) if input_share else None,
            )
        )
    return ModelGraph.chain(layers, name="uniform")


def uniform(
    number: int,
    devices: int,
    batches: int,
    costs: Costs,
    shares: float,
    chunks: int = 4,
    note: str = "",
    space: SearchSpace = KEEP_ALL,
    **rest: object,
) -> Case:
    """A row on uniform costs, with a limit of `shares` stashes a device."""
    way = f", {space.pipelines} pipeline{'s' if space.pipelines != 1 else ''}" if space.pipelines else ""
    text = f"{shares:.3f}".rstrip("0").rstrip(".") if shares != int(shares) else str(int(shares))
    return Case(
        number,
        f"p={devices} m={batches} {costs}{', ' + note if note else ''}{way}",
        chain(devices, chunks, costs),
        Cluster.uniform(devices, PLENTY, Link(latency_s=costs.latency)),
        Workload(batches, memory_limit_bytes=int(shares * SHARE)),
        space,
        f"{text} shares",
        small=devices <= 4 or (devices <= 8 and batches <= 8),
        **rest,  # type: ignore[arg-type]
    )


def published(who: str, step: float) -> tuple[tuple[str, float], ...]:
    """One peer's figure, as a row takes it."""
    return ((who, step),)


# ------------------------------------------------------------------ 1: the memory of 1F1B

FULL = {
    (4, 8, EVEN): 2475,
    (8, 16, EVEN): 4975,
    (16, 32, EVEN): 9975,
    (4, 8, UNEVEN): 2625,
    (8, 16, UNEVEN): 5305,
    (16, 32, UNEVEN): 10665,
    (8, 64, UNEVEN): 19705,
}


def full_memory(pipelines: int) -> Iterator[Case]:
    """p stashes: interleaved zero-bubble with 4 chunks is the best peer; one chunk a device: ZB-H1."""
    space = replace(KEEP_ALL, pipelines=pipelines)
    for (p, m, costs), step in FULL.items():
        yield uniform(1, p, m, costs, p, space=space, published=published(INTERLEAVED, step))
    if pipelines > 1:
        return
    for p, m in ((4, 8), (8, 16), (16, 32)):
        step = m * 300 + (p - 1) * 100  # ZB-H1's bubble, (p-1)(F+I-W): arXiv:2401.10241, table 1
        peer = published("ZB-H1 (published)", step)
        yield uniform(1, p, m, EVEN, p, 1, "one chunk", space, published=peer)
        yield uniform(1, p, m, UNEVEN, p, 1, "one chunk", space)


# ------------------------------------------------------------------ 2: less than that

HALF = {
    (4, 8, EVEN): (2950, 1.0),
    (8, 16, EVEN): (5950, 1.0),
    (8, 32, EVEN): (10750, 1.0),
    (16, 32, EVEN): (12550, 1.0),
    (4, 8, UNEVEN): (3510, 1.0),
    (8, 16, UNEVEN): (7100, 0.90),
    (8, 32, UNEVEN): (13840, 0.86),
    (16, 32, UNEVEN): (15880, 0.82),
}
"""(devices, micro-batches, costs): the peers' best step, and the share of it to reach."""
V_HALF = {8: 0.625, 16: 0.5625, 32: 0.53125}


def tight_memory(pipelines: int) -> Iterator[Case]:
    """Half of 1F1B's memory, the peaks of V-Half and V-Min, a third and a quarter."""
    space = replace(KEEP_ALL, pipelines=pipelines)
    for (p, m, costs), (step, share) in HALF.items():
        peer = published("best named (published)", step)
        yield uniform(2, p, m, costs, p / 2, space=space, published=peer, goal=share * step)
    for p, share in V_HALF.items():
        for costs in (EVEN, UNEVEN):
            yield uniform(2, p, 2 * p, costs, share * p, note="V-Half's peak", space=space)
            yield uniform(2, p, 2 * p, costs, p, note="V-Min's peak", space=space, peak_of="v-min")
    for part, name in ((3, "a third"), (4, "a quarter")):
        for p, m in ((8, 16), (8, 32), (16, 32)):
            for costs in (EVEN, UNEVEN):
                yield uniform(2, p, m, costs, p / part, note=name, space=space)


# ------------------------------------------------------------------ 3: both directions

CHIMERA_SPLIT = {(8, 8): 3600, (8, 16): 6600, (8, 32): 12600}
UNSPLIT = {(4, 8): (30, 28), (4, 16): (58, 52), (6, 12): (48, 44), (8, 16): (66, 60), (16, 16): (76, 76)}
"""(devices, micro-batches) at F=1, B=2: the step of Chimera's direct concatenation, and the one to reach."""


def two_directions() -> Iterator[Case]:
    """Two pipelines in opposite directions; never worse than Chimera and than interleaved zero-bubble."""
    space = replace(KEEP_ALL, pipelines=2)
    for d in (4, 8, 16):
        for costs in (EVEN, UNEVEN):
            for n in (d, 2 * d, 4 * d):
                peers = published(INTERLEAVED, FULL[d, n, costs]) if (d, n, costs) in FULL else ()
                if costs == EVEN and (d, n) in CHIMERA_SPLIT:
                    peers += published(CHIMERA, CHIMERA_SPLIT[d, n])
                yield uniform(3, d, n, costs, d, space=space, published=peers)
    space = replace(space, split_backward=False)
    for (d, n), (step, goal) in UNSPLIT.items():
        case = uniform(3, d, n, Costs(1, 1, 1), d, 1, "B=2F unsplit", space, goal=goal)
        peer = published(CHIMERA, step)
        yield replace(case, model=chain(d, 1, Costs(1, 1, 1), separable=False), published=peer)


# ------------------------------------------------------------------ 4: what happens to a stash

POLICIES = {
    "keep": KEEP_ALL,
    "offload": SearchSpace(recompute=False),
    "recompute": SearchSpace(offload=False),
}
STASH_STEPS = {("keep", 2): 410, ("keep", 3): 310, ("offload", 2): 280, ("offload", 3): 270}
"""Proven optimal by an exact model."""


def stash_decisions() -> Iterator[Case]:
    """p=4, m=8, F=I=W=10, one stage a device, a whole stash takes 6 to the host and 6 back."""
    costs = Costs(10, 10, 10)
    for shares in (2, 3):
        for policy, space in POLICIES.items():
            known = STASH_STEPS.get((policy, shares))
            peer = published("exact model", known) if known else ()
            least = min(known or STASH_STEPS["keep", shares], STASH_STEPS["keep", shares])
            case = uniform(
                4, 4, 8, costs, shares, 1, f"may {policy}", replace(space, pipelines=1), published=peer, goal=least
            )
            node = NodeGroup(1, 4, DeviceType("custom", PLENTY), host_link=Link(SHARE / 6))
            yield replace(case, cluster=Cluster((node,)), model=chain(4, 1, costs, input_share=1 / 8))


FRACTIONS = (1.0, 0.7, 0.5, 0.35, 0.25)


def gpt(blocks: int = 32, hidden: int = 2048, sequence: int = 4096, batch: int = 4, vocabulary: int = 50304) -> Case:
    """A GPT on 8 A100s at half of their peak, mixed precision, Adam; N=32, all memory.

    FLOPs and stashes of a block as in Korthikanti et al. (arXiv:2205.05198) with fused attention: 34 bytes a token and
    hidden unit; 32 of them are held between I and W (arXiv:2401.10241, table 1).
    """
    tokens, rate = batch * sequence, 0.5 * 312e12
    boundary = 2 * tokens * hidden
    work = (24 * tokens * hidden**2 + 2 * tokens * sequence * hidden) / rate
    block = Layer(
        "block", work, work, 24 * tokens * hidden**2 / rate, True, 24 * hidden**2, 34 * tokens * hidden,
        32 * tokens * hidden, boundary, boundary,
    )  # fmt: skip
    table = 2 * vocabulary * hidden
    look_up = 2 * boundary / 2e12  # reads and writes one boundary tensor
    embedding = Layer(
        "embedding", look_up, 0.0, look_up, True, table, 8 * tokens, 8 * tokens + boundary, boundary, 8 * tokens
    )
    project, logits = 2 * tokens * hidden * vocabulary / rate, 2 * tokens * vocabulary
    head = Layer("head", project, project, project, True, table, boundary + logits, boundary + logits, 0, boundary)
    layers = [embedding, *(replace(block, name=f"block{k}") for k in range(blocks)), head]
    host = Link(25e9, 10e-6)
    node = NodeGroup(1, 8, DeviceType("A100-80GB-bench", 80 << 30, 1.0, 2.0e12), Link(300e9, 3e-6), None, host)
    workload = Workload(32, optimizer="adam", precision="mixed")
    model = ModelGraph.chain(layers, name="gpt")
    return Case(4, "GPT", model, Cluster((node,)), workload, SearchSpace(), "none", unit_bytes=1 << 30, unit="GiB")


# ------------------------------------------------------------------ 5 and 6: scale, and a solver


LARGE = ((64, 512, 1.0), (64, 512, 0.5), (128, 512, 1.0), (128, 512, 0.5), (256, 1024, 1.0))
"""Devices, micro-batches, and the memory as a share of 1F1B's."""


def scale(devices: int = 64, sizes: tuple[int, ...] = (128, 256, 512), more: bool = True) -> Iterator[Case]:
    """Many devices and micro-batches, one layer a device at 1F1B's memory; then those of LARGE, of uneven costs."""
    space = replace(KEEP_ALL, pipelines=1)
    for m in sizes:
        peer = published("ZB-H1 (published)", m * 300 + (devices - 1) * 100)
        yield uniform(5, devices, m, EVEN, devices, 1, space=space, published=peer)
    for p, m, share in LARGE if more else ():
        yield uniform(5, p, m, UNEVEN, share * p, space=space, note=f"4 layers a device, {share:.0%} of 1F1B's memory")


ILP_SIZES = ((4, 8), (4, 16), (6, 12), (8, 8), (8, 16))


def against_ilp(sizes: tuple[tuple[int, int], ...] = ILP_SIZES) -> Iterator[tuple[Costs, int, int, Case]]:
    """One chunk a device, 1F1B's memory; with the numbers that the peer's model takes: costs, devices, batches."""
    space = replace(KEEP_ALL, pipelines=1)
    for p, m in sizes:
        for costs in (EVEN, UNEVEN):
            yield costs, p, m, uniform(6, p, m, costs, p, 1, space=space)


def routes(plan: Plan) -> int:
    """Pipelines that visit different devices: those that differ in their stashes alone count once."""
    return len({(pipeline.forward, pipeline.backward) for pipeline in plan.pipelines})
