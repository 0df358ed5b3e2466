"""The problems that benchmarks/mechanisms.py solves: a table with the steps to reach, and random ones.

Rows of the table name the mechanism that their step needs; each figure is that of a plan that passes the checker, made
by a named schedule, by hand or by a short random search, or of the planner that a paper published.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from structure_cases import HOST, WORKLOADS, analytic

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import PRESETS, DeviceType

PLENTY = 1 << 40
GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        target: the step or period to reach, as printed; empty: none.
        source: where that figure comes from.
        unit_s: seconds of one unit of the target: 0.001 where it is in milliseconds.
    """

    name: str
    model: ModelGraph
    cluster: Cluster
    workload: Workload
    space: SearchSpace = field(default_factory=SearchSpace)
    target: str = ""
    source: str = ""
    unit_s: float = 1.0

    @property
    def goal_s(self) -> float | None:
        """The most seconds that print as the target; None where there is none."""
        if not self.target:
            return None
        decimals = len(self.target.partition(".")[2])
        return (float(self.target) + 0.5 * 10**-decimals) * self.unit_s


# ------------------------------------------------------------------ the table

V100 = PRESETS["V100-16GB"]
STASHING = SearchSpace(asynchronous=("stash",))


def table() -> Iterator[Case]:
    """Every row; those of published profiles only where these lie beside the project."""
    yield from _own_models()
    yield from _computing_alone()
    yield from _replicated()
    yield from _memory()
    yield from _small()


def _server(devices: int, kind: DeviceType = V100) -> Cluster:
    """One node of V100s with 150 GB/s between them and 12 GB/s to the host."""
    return Cluster((NodeGroup(1, devices, kind, Link(150e9, 3e-6), None, Link(12e9, 10e-6)),))


def _own_models() -> Iterator[Case]:
    """Analytic costs of real models, one micro-batch an update, without a flush."""
    rows = (
        ("gnmt-8", 8, None, "72.5", "--schedule pipefb"),
        ("gnmt-8", 8, 4 * GIB, "80.1", "--schedule pipefb"),
        ("gnmt-8", 16, None, "67.7", "--schedule pipefb"),
        ("vgg-16", 16, None, "83.6", "a cut for each direction, computing alone"),
        ("resnet-101", 16, None, "37.5", "a cut for each direction, computing alone"),
    )
    for name, devices, limit, target, source in rows:
        model = analytic(name, 64, V100, "fp32")
        workload = Workload(6 * devices, "momentum", memory_limit_bytes=limit, update_every=1)
        room = "" if limit is None else f", {limit / GIB:g} GiB"
        yield Case(
            f"{name}, {devices} devices{room}, no flush", model, _server(devices), workload, STASHING, target, source,
            1e-3,
        )  # fmt: skip


def _computing_alone() -> Iterator[Case]:
    """The same with all the memory there may be and nothing to wait for, as the steps to reach were worked out."""
    kind = replace(V100, memory_bytes=PLENTY)
    free = Cluster((NodeGroup(1, 16, kind, Link(), None, Link()),))
    for name, target in (("vgg-16", "83.6"), ("resnet-101", "37.5")):
        workload = Workload(6 * 16, "sgd", update_every=1)
        yield Case(
            f"{name}, 16 devices, computing alone, no flush", analytic(name, 64, V100, "fp32"), free, workload,
            STASHING, target, "a cut for each direction, computing alone", 1e-3,
        )  # fmt: skip


def _replicated() -> Iterator[Case]:
    """Convolutions on many devices, the large parameters on one: PipeDream's 3-1 and 7-1."""
    nodes = Cluster((NodeGroup(8, 1, V100, Link(), None, Link(12e9, 10e-6)),), Link(1.25e9, 2e-5))
    yield Case(
        "vgg-16, 8 nodes of 1.25 GB/s, update every 7", analytic("vgg-16", 64, V100, "fp32"), nodes,
        Workload(7 * 12, "momentum", update_every=7), STASHING, "0.1205", "PipeDream's 7-1 by hand",
    )  # fmt: skip
    profile = WORKLOADS / "pipedream" / "image_classification" / "vgg16" / "graph.txt"
    if not profile.exists():
        return
    from contraflow.planner.formats import load_family

    model, large = load_family(profile).members[0], DeviceType("V100-bench", 80 * GIB, 1.0, 900e9)
    rows = ((4, 1e9, "0.2055", "PipeDream's published planner"), (8, 1.25e9, "0.0909", "PipeDream's 7-1 by hand"))
    for count, bandwidth, target, source in rows:
        cluster = Cluster((NodeGroup(count, 1, large),), Link(bandwidth))
        workload = Workload(24 * (count - 1), update_every=count - 1)
        yield Case(f"PipeDream's VGG-16, {count} nodes", model, cluster, workload, STASHING, target, source)


def _memory() -> Iterator[Case]:
    """Host copies of every stash, or of the leading stages'."""
    devices, batches = 16, 128
    layers = [
        Layer(f"layer{k}", 1.0, 1.0, 1.0, True, 100, 100, 60, output_bytes=2) for k in range(2 * devices)
    ]  # fmt: skip
    limit = int(0.16 * devices * 200) + 2 * 2 * 100 + 20
    cluster = Cluster((NodeGroup(1, devices, DeviceType("toy", PLENTY), Link(1000.0), None, Link(400.0)),))
    yield Case(
        "16 devices, 128 micro-batches, 16 % of 1F1B's memory", ModelGraph.chain(layers), cluster,
        Workload(batches, memory_limit_bytes=limit),
        SearchSpace(pipelines=1, recompute=False, separate_backward=False),
        "867", "v-half with every stash offloaded, by hand",
    )  # fmt: skip
    kind = DeviceType("rtx4090", 24 * GIB, 0.53, 1008e9)
    node = NodeGroup(1, 8, kind, Link(25e9, 3e-6), 256 * GIB, HOST)
    yield Case(
        "llama-7b on 8 x 24 GB", replace(analytic("llama-7b", 1, PRESETS["A100-40GB"], "bf16"), device=None),
        Cluster((node,), Link(50e9, 10e-6)), Workload(64, "adam", "mixed"), SearchSpace(), "29.00",
        "interleaved, leading stages offloaded, by hand: 29.21; a longer search: 29.00",
    )  # fmt: skip


def _toy(count: int, stash: int, parameters: int = 0, output: int = 0) -> ModelGraph:
    return ModelGraph.chain(
        [
            Layer(
                f"layer{k}", 1.0, 2.0, separable=False, parameter_bytes=parameters, stash_bytes=stash,
                output_bytes=output,
            )
            for k in range(count)
        ]
    )  # fmt: skip


def _small() -> Iterator[Case]:
    """Separate devices and shipped stashes on equal stages."""
    for devices, stashes, target, source in ((4, 1, "75", "a longer search"), (8, 2, "81", "a random search")):
        yield Case(
            f"{devices} stages on {devices} devices, 8 micro-batches, {stashes} stashes", _toy(devices, 100),
            Cluster.uniform(devices, PLENTY, Link(100.0)), Workload(8, memory_limit_bytes=100 * stashes),
            SearchSpace(pipelines=1, split_backward=False), target, source,
        )  # fmt: skip
    shipped = ((8, 64, 6.0, 0.5, 0, "213.06"), (16, 64, 12.0, 0.5, 0, "237.07"), (6, 13, 4.6, 0.3, 1500, "54.01"))
    for devices, batches, stashes, ship_s, weights, target in shipped:
        rest = 2 * weights + 40
        cluster = Cluster.uniform(devices, int(stashes * 1000) + rest, Link(1000 / ship_s))
        space = SearchSpace(pipelines=1, recompute=False, offload=False)
        yield Case(
            f"{devices} devices, {batches} micro-batches, {stashes:g} stashes", _toy(devices, 1000, weights, 1),
            cluster, Workload(batches), space, target, "1F1B with stashes shipped to the mirror device, by hand",
        )  # fmt: skip


# ------------------------------------------------------------------ random ones

METHODS = (("stash",), ("stash",), ("2bw",), ("stash", "2bw", "pipeoptim"))


def randomly(seed: int, count: int, flush: bool | None = None) -> Iterator[Case]:
    """So many random problems, alternately with and without a flush: one seed, the same problems.

    `flush`: only those with one, or only those without.
    """
    for k in range(count):
        rng = random.Random(f"{seed}/{k}")
        with_flush = k % 2 == 0
        if flush is None or flush == with_flush:
            yield _random(rng, f"{seed}/{k}", with_flush)


def _spread(rng: random.Random, count: int, mean: float, width: float) -> list[float]:
    """Positive numbers around a mean, all alike where the width is 0."""
    return [mean * rng.lognormvariate(0.0, width) for _ in range(count)]


def _random(rng: random.Random, name: str, flush: bool) -> Case:
    """Chains from half a layer to four layers a device, in 0.15 to 1.3 of the memory that 1F1B takes."""
    devices = rng.randint(3, 16)
    count = max(2, round(devices * rng.choice((0.5, 0.75, 1, 1, 1.5, 2, 2, 3, 4))))
    times, sizes = rng.choice((0.0, 0.0, 0.3, 0.8)), rng.choice((0.0, 0.0, 0.3, 0.8))
    separable, back = rng.random() < 0.5, rng.choice((1.5, 2.0, 2.0, 2.5))
    weight = 10**6 * rng.choice((0.0, 0.0, 0.05, 0.3, 1.0, 4.0))
    boundary = 10**6 * rng.choice((0.002, 0.01, 0.05, 0.2))
    forward = [round(t, 3) + 0.001 for t in _spread(rng, count, 1.0, times)]
    layers = [
        Layer(
            f"layer{k}", f, f * back / 2, f * back / 2, separable, int(p), int(a), int(a * 0.6),
            output_bytes=int(boundary),
        )
        for k, (f, a, p) in enumerate(
            zip(forward, _spread(rng, count, 1e6, sizes), _spread(rng, count, weight, sizes), strict=True)
        )
    ]  # fmt: skip
    cluster = _random_cluster(rng, devices)
    if flush:
        update, batches = None, rng.choice((devices // 2 + 1, devices, 2 * devices, 3 * devices, 4 * devices))
        space = SearchSpace()
    else:
        space = SearchSpace(asynchronous=rng.choice(METHODS), quality_within=0.0)  # the fastest counts here
        # two buffered versions need as many micro-batches an update as a pipeline holds
        update = devices if "2bw" in space.asynchronous else rng.choice((1, 1, 2, devices))
        batches = update * -(-6 * devices // update)
    model = ModelGraph.chain(layers, name="random")
    optimizer = rng.choice(("sgd", "momentum", "adam"))
    share = rng.choice((0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3))
    free = Workload(batches, optimizer, update_every=update)
    workload = replace(free, memory_limit_bytes=_limit(layers, devices, free, share))
    way = "flush" if flush else "+".join(space.asynchronous) + f" every {update}"
    text = f"{name}: {devices} devices, {count} layers, {batches} micro-batches, {share:.0%} of 1F1B's memory, {way}"
    return Case(text, model, cluster, workload, space)


def _random_cluster(rng: random.Random, devices: int) -> Cluster:
    """One node or two, links on which a stash of a layer takes 0.02 to 3 forwards, with and without host links."""
    link = Link(1e6 / rng.choice((0.02, 0.1, 0.3, 1.0, 3.0)), rng.choice((0.0, 0.0, 0.05)))
    host = rng.choice((None, 0.1, 0.5, 1.5, 4.0))
    host_link = Link() if host is None else Link(1e6 / host, 0.0)
    fast = DeviceType("fast", PLENTY, 1.0, rng.choice((None, 1e8)))
    slow = replace(fast, name="slow", speed=0.5)
    if devices % 2 == 0 and rng.random() < 0.3:
        kinds = (fast, slow if rng.random() < 0.3 else fast)
        network = Link(link.bandwidth / rng.choice((2, 8)), link.latency_s)
        groups = tuple(NodeGroup(1, devices // 2, kind, link, None, host_link) for kind in kinds)
        return Cluster(groups, network)
    return Cluster((NodeGroup(1, devices, fast, link, None, host_link),))


def _limit(layers: Sequence[Layer], devices: int, workload: Workload, share: float) -> int:
    """A share of the stashes of 1F1B's fullest device, beside a device's share of the parameters and its largest layer.

    A stash of the largest layer always fits beside that layer's parameters and messages.
    """
    used = min(devices, len(layers))
    stash, large = sum(x.stash_bytes for x in layers), max(x.stash_bytes for x in layers)

    def trained(size: int) -> int:
        return size + workload.gradient_bytes(size) + workload.optimizer_bytes(size)

    even = trained(sum(x.parameter_bytes for x in layers)) // used
    held = max(even, max(trained(x.parameter_bytes) for x in layers))
    messages = 4 * max(x.output_bytes for x in layers)
    flights = min(used, workload.micro_batches)
    return int(1.1 * held + max(share * flights * stash / used, 1.05 * large + messages) + messages)
