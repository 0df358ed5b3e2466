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

from contraflow.planner import Cluster, Forecast, InputError, Link, ModelGraph, Workload, check
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
    runs = {
        "flush": [each],
        "stash": [2 * shape.depth + 8, 3 * shape.depth + 16],
        "2bw": [4 * each, 6 * each],
    }[weights]
    try:
        found = [_run(setting, scheme, shape, width, batches, 2 * each) for batches in runs]
    except InputError:
        return None
    seconds = found[-1].step_s
    if weights != "flush":  # a mini-batch's share of what the longer run takes longer
        seconds = (seconds - found[0].step_s) * each / (runs[1] - runs[0])
    return Outcome(seconds, max(found[-1].peak_bytes), shape, width)


def _run(setting: Setting, scheme: str, shape: Shape, width: int, batches: int, whole: int) -> Forecast:
    """So many micro-batches of each of two groups; `whole`: of both together in a mini-batch. Raises InputError."""
    weights, graph = WEIGHTS.get(scheme, "flush"), model(setting.model, shape.samples)
    update = {"flush": None, "stash": 2, "2bw": whole}[weights]
    cluster = _groups(setting, scheme, shape, width)
    problem = Problem(graph, cluster, Workload(2 * batches, "adam", update_every=update))
    layout = build("1f1b" if scheme in WEIGHTS else scheme, shape.depth, batches)
    pipelines, orders = _twice(layout, shape)
    policy = RECOMPUTE if shape.recompute else KEEP
    rows = tuple((policy,) * layout.stages for _ in pipelines)
    candidate = Candidate(problem, stages(graph, shape.depth, shape.even), pipelines, rows, weights)
    made = assembled(candidate, orders, scheme, period=False)
    if weights == "flush" and max(made.forecast.peak_bytes) <= P100.memory_bytes and batches * shape.depth <= 256:
        wrong = check(made.plan)
        assert not wrong, wrong[0]
    return made.forecast


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
    """The fastest shape of a scheme that fits: depth, micro-batch size, recomputation and cut are free.

    Shapes are simulated by their bounds; those that cannot be faster than the best so far are left out.
    """
    shapes = [
        Shape(2**k, size, recompute, even)
        for size in samples
        for k in range(1, 7)
        for recompute in (False, True)
        for even in (True, False)
    ]
    bounds = {shape: least_s(setting, scheme, shape) for shape in shapes}
    best: Outcome | None = None
    for shape in sorted(shapes, key=lambda shape: bounds[shape]):
        if bounds[shape] >= (math.inf if best is None else best.seconds):
            break
        found = simulated(setting, scheme, shape)
        if found is not None and found.fits and (best is None or found.seconds < best.seconds):
            best = found
    return best


def least_s(setting: Setting, scheme: str, shape: Shape) -> float:
    """Seconds that a mini-batch of this shape takes at least; infinite where it does not fit or exist.

    The work of an average device; without two directions and with a flush also the last stage's, behind the first
    forward and before the last backward; of two micro-batches in flight, every pair's way; gradient sums after every
    micro-batch.
    """
    graph, width = model(setting.model, shape.samples), setting.nodes // shape.depth
    held = 4 * sum(x.parameter_bytes for x in graph.layers) * (2 if scheme in BOTH_WAYS else 1) / shape.depth
    count = setting.mini_batch / (max(width, 1) * shape.samples)
    if width < 2 or held > P100.memory_bytes or count < 1 or shape.depth > len(graph.layers) - 2:
        return math.inf
    work = {x.name: x.forward_s * (2 if shape.recompute else 1) + x.backward_s for x in graph.layers}
    total, last = sum(work.values()), sum(work[name] for name in stages(graph, shape.depth, shape.even)[-1])
    found = count * total / shape.depth
    if scheme == "gems":
        return max(found, count * total / 2)
    if scheme == "pipedream":
        gradient = sum(x.parameter_bytes for x in graph.layers) / shape.depth
        return max(found, count * 2 * (width - 1) / width * gradient / setting.sums)
    return max(found, total + (count - 1) * last) if scheme in ("gpipe", "1f1b") else found
