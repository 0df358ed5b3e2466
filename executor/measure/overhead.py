"""Measures what ops and messages cost a rank's own thread beside their layers: the overheads of cluster.toml.

Ranks train a model of tiny layers, each all of it and then as stages of a pipeline, and their traces say what they
spent around ops, neither computing nor waiting, and in ops beyond what their layers take: calling programs. A backward
that no message comes to or goes from costs the op alone; what ranks of the pipeline spend more around ops, but for
drawing samples, is that of its messages, at least (see `messages`). What the first run's steps take beyond their ops,
and beyond what links say of the sums between ranks, is a collective's. Where more ranks train than have a core each,
ops are those of as many as have one, and what ranks wait for one another is read off runs of all of them: by their
clocks ops take as long as others have their cores, so that a collective's is what a step of one micro-batch a rank
takes beyond its forecast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist

from ...models import resolve
from ...planner.graph import Candidate, holders, sum_seconds
from ...planner.lower import assemble, replicated
from ...planner.plan import IN_LINE, Kind, Plan, Problem
from ...planner.problem import Cluster, Link, ModelGraph, Overhead, Workload
from ...planner.runs import OpTrace, RunTrace
from ...planner.schedules import alternating
from ..basics import RunOptions
from ..place import at_once
from .messages import Pair, collective_s, latency_s, message_s, with_latency
from .profile import profile_model

MODEL = "mlp-deep"
"""Eight layers of a few microseconds."""
SAMPLES, MICRO_BATCHES = 8, 8
STEPS = 32
"""Of each run."""
ROUNDS, TURNS = 3, 2
"""Of all runs, and in each of the pipeline's orders."""
ALONE = Link()
"""Costs nothing."""
_PASSES = (Kind.F, Kind.B)


class Run(Protocol):
    """What a plan's run has left, as far as it matters here."""

    @property
    def trace(self) -> RunTrace:
        """What its ranks did."""


Train = Callable[[Plan, RunOptions], Run]
"""Runs a plan as one of its ranks: `run.run_plan`."""


@dataclass(frozen=True)
class Spent:
    """Overheads, and the latency in seconds of a message between ranks that compute."""

    overhead: Overhead
    latency_s: float


def overhead_among(train: Train, threads: int, link: Link = ALONE, on_this: int | None = None) -> Spent | None:
    """Of all ranks of the default process group, which train as under torchrun; collective, for the first of them.

    Args:
        link: between two of them, as the first has measured it.
        on_this: how many of them are on this computer, as on each; None: all.
    """
    said = [link]
    dist.broadcast_object_list(said)
    options = RunOptions(steps=STEPS, threads_per_process=threads, self_check=False)
    ranks = dist.get_world_size()
    busy, cores = max(2, min(ranks, at_once(threads))), ranks * at_once(threads) / (on_this or ranks)
    crew = Crew(ranks, busy, said[0], cores)
    runs = runs_of(lambda: _profiled(threads), crew, lambda made: train(made, options).trace)
    return spent(runs) if dist.get_rank() == 0 else None


def _profiled(threads: int) -> ModelGraph:
    """`MODEL` as the first rank measures it by itself; collective."""
    content: list[Any] = [None]
    if dist.get_rank() == 0:
        content = [profile_model(resolve(MODEL), SAMPLES, threads=threads, rounds=2, load=1, drawing=False)]
    dist.broadcast_object_list(content)
    return ModelGraph.from_dict(content[0])


@dataclass(frozen=True)
class Crew:
    """Who trains.

    Attributes:
        processes: at least 2; those beyond the model's layers wait.
        busy: of these so many train for ops, where the others wait: as many as do not share a core. None: all.
        link: between two processes.
        cores: that all of them share; None: they have one each.
    """

    processes: int
    busy: int | None = None
    link: Link = ALONE
    cores: float | None = None

    @property
    def cluster(self) -> Cluster:
        """On the cores that there are."""
        cluster = Cluster.uniform(self.processes, link=self.link)
        (group,) = cluster.nodes
        return cluster if self.cores is None else replace(cluster, nodes=(replace(group, cores=self.cores),))

    @property
    def apart(self) -> Cluster:
        """As if each had a core."""
        return Cluster.uniform(self.processes, link=self.link)


class Round(NamedTuple):
    """Figures; a pipeline as 1F1B and with all forwards first, and seconds of a step of each, turn by turn; all layers
    on each rank, seconds of a step, and those of them beyond its ops."""

    figures: _Figures
    chain: Plan
    flood: Plan
    turns: list[tuple[float, float]]
    whole: Plan
    whole_s: float
    summing_s: float


def runs_of(
    profile: Callable[[], ModelGraph], crew: Crew, train: Callable[[Plan], RunTrace], rounds: int = ROUNDS
) -> list[Round]:
    """Profile and runs take turns.

    Args:
        profile: measures a registry's model of tiny layers, such as `MODEL`.
        train: runs a plan, each device as a process.
    """
    return [_round(profile(), crew, train) for _ in range(rounds)]


def _round(graph: ModelGraph, crew: Crew, train: Callable[[Plan], RunTrace]) -> Round:
    crowded = crew.cluster.crowded
    cluster, ranks = crew.apart if crowded else crew.cluster, crew.busy or crew.processes
    whole, chain = _whole(graph, cluster, ranks), _chained(graph, cluster, ranks)
    alone = train(whole)
    figures = _figures(graph, alone, train(chain))
    if crowded:
        cluster, ranks = crew.cluster, crew.processes
        whole, chain = _whole(graph, cluster, ranks, 1), _chained(graph, cluster, ranks)
        alone = train(whole)
    flood = _chained(graph, cluster, ranks, flooded=True)
    turns = [(train(chain).step_s, train(flood).step_s) for _ in range(TURNS)]
    return Round(figures, chain, flood, turns, whole, alone.step_s, _summing(alone))


def spent(runs: list[Round]) -> Spent:
    """What runs tell: of what a thread spends the least, since what else the machine does only adds; of how long steps
    take, and how the two orders of a pipeline compare, the median."""
    least = _Figures(*map(min, zip(*(each.figures for each in runs), strict=True)))
    overhead, drawing_s = _overhead(least), MICRO_BATCHES * least.drawing_s
    turns = [(a - drawing_s, b - drawing_s) for each in runs for a, b in each.turns]
    chain_s = median(a for a, _ in turns)
    fastest = min(runs, key=lambda each: each.figures.layers)
    pair = Pair(fastest.chain, chain_s, fastest.flood, chain_s * median(b / a for a, b in turns))
    overhead = replace(overhead, message_s=message_s(pair, overhead))
    late_s = latency_s(pair.chain, overhead, chain_s)
    cluster = fastest.whole.problem.cluster
    if not cluster.crowded:
        beyond_s = max(0.0, median(each.summing_s - _sum_s(each.whole, late_s) for each in runs))
    else:
        drawn_s = least.drawing_s * len(cluster) / cluster.whole_speed
        beyond_s = collective_s(fastest.whole, overhead, late_s, median(each.whole_s for each in runs) - drawn_s)
    return Spent(replace(overhead, collective_s=beyond_s), late_s)


def _whole(graph: ModelGraph, cluster: Cluster, ranks: int, each: int = MICRO_BATCHES) -> Plan:
    """All layers on each of so many ranks, with so many micro-batches of its own."""
    return replicated(Problem(graph, cluster, Workload(each * ranks)), range(ranks))


def _chained(graph: ModelGraph, cluster: Cluster, most: int, flooded: bool = False) -> Plan:
    """A stage on each of so many ranks, as far as there are layers, in the order of 1F1B or with all forwards first."""
    names = [layer.name for layer in graph.layers]
    ranks = min(most, len(names))
    in_flight = [MICRO_BATCHES if flooded else ranks - rank for rank in range(ranks)]
    layout = alternating("chain", in_flight, MICRO_BATCHES)
    ends = [len(names) * rank // ranks for rank in range(ranks + 1)]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise(ends))
    orders = [*layout.orders, *([[]] * (len(cluster) - ranks))]
    return assemble(Candidate(Problem(graph, cluster, Workload(MICRO_BATCHES)), stages, layout.pipelines), orders)


def _sum_s(plan: Plan, latency_s: float) -> float:
    """What links say of summing the gradients of a plan that has all layers on each of its ranks."""
    trained = sum(layer.trained_bytes for layer in plan.problem.model.layers)
    return sum(sum_seconds(with_latency(plan.problem, latency_s), holders(plan)[0], trained))


class _Figures(NamedTuple):
    """Seconds. `forward`, `backward`: around an op of a rank that has all layers, and `taken`: by its F and B together.
    `mean_forward`: samples are drawn for several forwards at a time.

    `chained`: around an F and a B of every rank that has a stage, together, and `chained_taken`: by these. `layers`: of
    all layers, forward and backward, by the profile. `step`: a STEP.
    """

    mean_forward: float
    forward: float
    backward: float
    taken: float
    chained: float
    chained_taken: float
    layers: float
    step: float
    ranks: int

    @property
    def drawing_s(self) -> float:
        """Of a micro-batch's samples."""
        return max(0.0, self.mean_forward - self.backward)


def _figures(graph: ModelGraph, alone: RunTrace, chained: RunTrace) -> _Figures:
    forward, backward = (fmean(_usual(alone, kind, _around)) for kind in _PASSES)
    return _Figures(
        fmean(x.overhead_s for device in alone.devices for x in device.ops if x.op.kind is Kind.F),
        forward,
        backward,
        sum(fmean(_usual(alone, kind, _duration)) for kind in _PASSES),
        sum(sum(_usual(chained, kind, _around)) for kind in _PASSES),
        sum(sum(_usual(chained, kind, _duration)) for kind in _PASSES),
        sum(layer.forward_s + layer.backward_s for layer in graph.layers),
        fmean(_usual(chained, Kind.STEP, lambda x: x.duration_s + x.overhead_s)),
        sum(bool(device.ops) for device in chained.devices),
    )


def _overhead(found: _Figures) -> Overhead:
    ranks = found.ranks
    calls = (found.taken - found.layers) / 2, (found.chained_taken - found.layers) / (2 * ranks)
    messages = 4 * (ranks - 1)  # a micro-batch's, both ends of each
    spent_s = found.chained - 2 * ranks * found.backward - max(0.0, found.forward - found.backward)
    return Overhead(found.backward + max(0.0, fmean(calls)), max(0.0, spent_s) / messages, found.step)


def _summing(trace: RunTrace) -> float:
    """What a step of ranks that have all layers takes beyond their ops: until their gradients are summed."""
    busy = [sum(x.duration_s + x.overhead_s for x in device.ops if x.op.kind in IN_LINE) for device in trace.devices]
    return trace.step_s - fmean(seconds for seconds in busy if seconds)


def _duration(x: OpTrace) -> float:
    return x.duration_s


def _around(x: OpTrace) -> float:
    return x.overhead_s


def _usual(trace: RunTrace, kind: Kind, seconds: Callable[[OpTrace], float]) -> list[float]:
    """By rank, seconds of an op of this kind: the lower quartile, since what else the machine does only adds."""
    found = [[seconds(x) for x in device.ops if x.op.kind is kind] for device in trace.devices if device.ops]
    return [quantiles(each, n=4, method="inclusive")[0] if len(each) > 1 else each[0] for each in found]
