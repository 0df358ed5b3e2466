"""Named schemes on many nodes of one device, simulated by hand: two groups of devices stand for all of them.

Groups are alike and wait for each other only in gradient sums, so two are simulated and the bandwidth of a sum is
lowered until a ring over them takes what one over all replicas takes. Stages have equally many blocks, or least load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import mechanisms_opponents
from structure_cases import P100, analytic

from contraflow.planner import Cluster, InputError, Link, ModelGraph, Workload, check
from contraflow.planner.graph import KEEP, RECOMPUTE, Candidate
from contraflow.planner.lower import assembled
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.schedules import Layout, build

GIB = 1 << 30
HEADS = {"gpt2-64": (20, 632), "bert-48": (16, 128)}
"""Heads of attention and length of a sequence."""
UNFUSED = 9
"""Bytes that unfused attention keeps of every score in float32: softmax, dropout's mask and what it leaves (5 s^2 a in
16 bit: arXiv:2205.05198, section 4.1)."""
WEIGHTS = {"pipedream": "stash", "pipedream-2bw": "2bw"}
BOTH_WAYS = ("chimera", "gems")
"""Schemes that hold every stage twice in a group."""


@dataclass(frozen=True)
class Setting:
    """Nodes, their mini-batch, and the bandwidth of a gradient sum in bytes/s."""

    model: str
    nodes: int
    mini_batch: int
    sums: float

    def network(self) -> Link:
        """Cray Aries: about 10 GB/s and 1 us."""
        return Link(10e9, 1e-6, self.sums)

    def cluster(self) -> Cluster:
        """All nodes."""
        return Cluster((NodeGroup(self.nodes, 1, P100, Link(), None, Link(12e9, 10e-6)),), self.network())


@dataclass(frozen=True)
class Shape:
    """A scheme's own choices: stages a pipeline, samples a micro-batch, and what happens to stashes."""

    depth: int
    samples: int
    recompute: bool
    even: bool = True


@dataclass(frozen=True)
class Outcome:
    """Seconds a mini-batch, and the bytes of the fullest device."""

    seconds: float
    peak_bytes: int
    shape: Shape
    width: int

    @property
    def fits(self) -> bool:
        """Whether the fullest device has room for it."""
        return self.peak_bytes <= P100.memory_bytes

    def __str__(self) -> str:
        """The shape in words."""
        way = "recompute" if self.shape.recompute else "keep"
        return f"{self.width} x {self.shape.depth}, micro-batches of {self.shape.samples}, {way}"


@cache
def model(name: str, samples: int) -> ModelGraph:
    """Analytic costs in float32 on a P100, with what unfused attention keeps in every block, whole backwards."""
    found, (heads, length) = analytic(name, samples, P100, "fp32"), HEADS[name]
    more = UNFUSED * heads * length**2 * samples
    layers = [
        replace(
            x, separable=False, stash_bytes=x.stash_bytes + (more if x.name.startswith("block") else 0)
        )
        for x in found.layers
    ]  # fmt: skip
    return ModelGraph(tuple(layers), found.edges, found.name, found.micro_batch_size, found.device)


def stages(graph: ModelGraph, depth: int, even: bool) -> tuple[tuple[str, ...], ...]:
    """Stages of equally many blocks, embedding and head with the first and the last; or of least load."""
    count = len(graph.layers)
    if even:
        blocks, more = divmod(count - 2, depth)
        inner = list(accumulate((blocks + (s < more) for s in range(depth)), initial=1))
        return mechanisms_opponents.stages_of(graph, [0, *inner[1:-1], count])
    loads = [x.forward_s + x.backward_s for x in graph.layers]
    return mechanisms_opponents.stages_of(graph, mechanisms_opponents.cut(loads, [1.0] * depth))


def simulated(setting: Setting, scheme: str, shape: Shape) -> Outcome | None:
    """A scheme in this shape; None where it does not exist there: too many stages, or no whole micro-batches."""
    width, rest = divmod(setting.nodes, shape.depth)
    each, uneven = divmod(setting.mini_batch, width * shape.samples)
    graph = model(setting.model, shape.samples)
    if rest or uneven or each < 1 or width < 2 or shape.depth > len(graph.layers) - 2:
        return None
    weights = WEIGHTS.get(scheme, "flush")
    batches = {"flush": each, "stash": max(6 * each, 2 * shape.depth + 8), "2bw": 6 * each}[weights]
    update = {"flush": None, "stash": 2, "2bw": 2 * each}[weights]
    problem = Problem(
        graph, _groups(setting, scheme, shape, width), Workload(2 * batches, "adam", update_every=update)
    )  # fmt: skip
    try:
        layout = build("1f1b" if scheme in WEIGHTS else scheme, shape.depth, batches)
        pipelines, orders = _twice(layout, shape)
        policy = RECOMPUTE if shape.recompute else KEEP
        rows = tuple((policy,) * layout.stages for _ in pipelines)
        candidate = Candidate(problem, stages(graph, shape.depth, shape.even), pipelines, rows, weights)
        made = assembled(candidate, orders, scheme)
    except InputError:
        return None
    forecast = made.forecast
    if max(forecast.peak_bytes) <= P100.memory_bytes and batches * shape.depth <= 256:
        wrong = check(made.plan)
        assert not wrong, wrong[0]
    seconds = forecast.step_s if forecast.period_s is None else forecast.period_s * 2 * each
    return Outcome(seconds, max(forecast.peak_bytes), shape, width)


def _groups(setting: Setting, scheme: str, shape: Shape, width: int) -> Cluster:
    """Two groups of nodes, between which a gradient sum takes as long as between all replicas."""
    copies = 2 if scheme in BOTH_WAYS else 1
    here, there = 2 * copies, width * copies
    slower = ((here - 1) / here) / ((there - 1) / there)
    network = replace(setting.network(), reduce_bandwidth=setting.sums * slower)
    return Cluster((replace(setting.cluster().nodes[0], count=2 * shape.depth),), network)


def _twice(layout: Layout, shape: Shape) -> tuple[tuple[Pipeline, ...], list[list[Op]]]:
    """A layout on two groups, which take micro-batches in turns."""
    pipelines: list[Pipeline] = []
    orders: list[list[Op]] = []
    for g in range(2):
        for p in layout.pipelines:
            route = tuple(d + g * shape.depth for d in p.forward)
            pipelines.append(Pipeline(route, route, tuple(g + 2 * m for m in p.micro_batches)))
        orders += [list(_of_group(order, g, shape.recompute)) for order in layout.orders]
    return tuple(pipelines), orders


def _of_group(order: Sequence[Op], group: int, recompute: bool) -> list[Op]:
    found = []
    for op in order:
        mine = op._replace(micro_batch=group + 2 * op.micro_batch)
        if recompute and mine.kind is Kind.B:
            found.append(Op(Kind.R, mine.stage, mine.micro_batch))
        found.append(mine)
    return found


def at_best(setting: Setting, scheme: str, samples: Sequence[int]) -> Outcome | None:
    """The fastest shape of a scheme that fits: depth, micro-batch size, recomputation and cut are free."""
    best: Outcome | None = None
    depths = [2**k for k in range(1, 7)]
    for size in samples:
        for depth in depths:
            for recompute in (False, True):
                for even in (True, False):
                    shape = Shape(depth, size, recompute, even)
                    if best is not None and least_s(setting, scheme, shape) >= best.seconds:
                        continue
                    found = simulated(setting, scheme, shape)
                    if found is not None and found.fits and (best is None or found.seconds < best.seconds):
                        best = found
    return best


def least_s(setting: Setting, scheme: str, shape: Shape) -> float:
    """Seconds of computing of an average device, which no shape is faster than."""
    graph = model(setting.model, shape.samples)
    forward, back = sum(x.forward_s for x in graph.layers), sum(x.backward_s for x in graph.layers)
    batches = setting.mini_batch / shape.samples
    found = (forward * (2 if shape.recompute else 1) + back) * batches / setting.nodes
    if scheme == "gems":  # two micro-batches in flight at most
        found *= max(1.0, shape.depth / 2)
    return found if math.isfinite(found) else 0.0
