"""The problems on which `benchmarks/effort.py` halves and doubles the search's numbers: one of every kind it knows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.plan import Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType

Instance = tuple[Problem, SearchSpace]
PLENTY = 1 << 40


def layers(rng: random.Random, count: int, separable: bool = True, parameters: int = 12) -> ModelGraph:
    """Uneven layers whose stashes are some times their parameters."""
    made = []
    for k in range(count):
        stash, half = rng.randint(10, 40), rng.uniform(0.5, 1.5)
        parts = (
            rng.uniform(0.5, 1.5),
            half,
            half,
            separable,
            rng.randint(5, parameters),
            stash,
            stash // 2,
            stash // 4,
        )
        made.append(Layer(f"layer{k}", *parts))
    return ModelGraph.chain(made)


def room(model: ModelGraph, devices: int, micro_batches: float) -> int:
    """Bytes of a device for its share of the model and so many of its stashes."""
    stash = sum(x.stash_bytes for x in model.layers)
    return int((micro_batches * stash + 2 * sum(x.parameter_bytes for x in model.layers)) / devices) + 60


def cluster(rng: random.Random, devices: int, host: float | None = None) -> Cluster:
    """One node; with a link to host memory, `host` bytes a second, where asked for."""
    hosts = {} if host is None else {"host_link": Link(host, 0.02)}
    return Cluster((NodeGroup(1, devices, DeviceType("one", PLENTY), Link(rng.choice((100.0, 500.0)), 0.02), **hosts),))


def limited(model: ModelGraph, machine: Cluster, batches: int, held: float | None, **space: object) -> Instance:
    """With memory for so many micro-batches' stashes."""
    memory = None if held is None else room(model, len(machine), held)
    return Problem(model, machine, Workload(batches, memory_limit_bytes=memory)), SearchSpace(**space)  # type: ignore[arg-type]


def small(rng: random.Random) -> Instance:
    """Everything is listed."""
    return limited(layers(rng, 5), cluster(rng, 3), 4, 2.2, pipelines=1, offload=False, recompute=False)


def small_choice(rng: random.Random) -> Instance:
    """The same, with a choice for every stash."""
    return limited(layers(rng, 4), cluster(rng, 3, 40.0), 4, 1.6)


def separate(rng: random.Random) -> Instance:
    """Two devices a stage pay: fast links, few parameters."""
    model = layers(rng, 4, separable=False, parameters=6)
    machine = Cluster.uniform(4, PLENTY, Link(2000.0))
    return limited(model, machine, 6, 1.6, pipelines=1, offload=False, recompute=False)


def medium(rng: random.Random) -> Instance:
    """Memory for all stashes of 1F1B."""
    return limited(layers(rng, 10), cluster(rng, 4), 8, 4.5, pipelines=1)


def tight(rng: random.Random) -> Instance:
    """Half of it, all choices."""
    return limited(layers(rng, 9), cluster(rng, 4, 60.0), 9, 2.2)


def tightest(rng: random.Random) -> Instance:
    """Hardly more than one micro-batch."""
    return limited(layers(rng, 7), cluster(rng, 3), 8, 1.15)


def nothing_fits(rng: random.Random) -> Instance:
    """Not even the parameters and one stash."""
    return limited(layers(rng, 8, parameters=60), cluster(rng, 4), 6, 0.1)


def groups(rng: random.Random) -> Instance:
    """Replicas: two nodes with a slow link between."""
    machine = Cluster(
        (NodeGroup(2, 3, DeviceType("one", PLENTY), Link(500.0, 0.01), None, Link(80.0)),), Link(60.0, 0.05)
    )
    return limited(layers(rng, 10), machine, 12, 3.0)


def unequal(rng: random.Random) -> Instance:
    """Devices of two speeds."""
    fast, slow = DeviceType("fast", PLENTY), DeviceType("slow", PLENTY, 0.5)
    link = Link(300.0, 0.02)
    machine = Cluster((NodeGroup(1, 3, fast, link), NodeGroup(1, 2, slow, link)), Link(200.0, 0.03))
    return limited(layers(rng, 10), machine, 10, 3.0)


def uneven_orders(rng: random.Random) -> Instance:
    """Two directions, each micro-batch's stashes kept: the race decides."""
    return limited(layers(rng, 12), cluster(rng, 6), 12, 3.0, pipelines=2, offload=False, recompute=False)


def large(rng: random.Random) -> Instance:
    """More micro-batches than are searched at once."""
    return limited(layers(rng, 12), cluster(rng, 6), 40, 4.0, pipelines=2)


def largest(rng: random.Random) -> Instance:
    """No exact model is built."""
    return limited(layers(rng, 16), cluster(rng, 10, 80.0), 124, 6.0)


def unflushed(rng: random.Random) -> Instance:
    """Weights are updated without a flush; every method may be taken."""
    methods = ("stash", "2bw", "pipeoptim")
    return limited(layers(rng, 10), cluster(rng, 4), 24, 5.0, asynchronous=methods)


def unflushed_tight(rng: random.Random) -> Instance:
    """The same with little memory and a host link."""
    problem, space = limited(layers(rng, 8), cluster(rng, 4, 60.0), 16, 2.0, asynchronous=("stash", "2bw"))
    return replace(problem, workload=replace(problem.workload, update_every=4)), space


KINDS: tuple[Callable[[random.Random], Instance], ...] = (
    small, small_choice, separate, medium, tight, tightest, nothing_fits, groups, unequal, uneven_orders, large,
    largest, unflushed, unflushed_tight,
)  # fmt: skip


def problems(seed: int, kinds: list[str] | None = None) -> dict[str, Instance]:
    """One instance of every kind, by its name; each has random numbers of its own."""
    chosen = [make for make in KINDS if kinds is None or make.__name__ in kinds]
    return {make.__name__: make(random.Random(f"{make.__name__} {seed}")) for make in chosen}
