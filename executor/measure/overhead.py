"""Measures what ops and messages cost a rank's own thread beside their layers: the overheads of cluster.toml.

Ranks train a model of tiny layers, each all of it and then as stages of a pipeline, and their traces say what they
spent around ops, neither computing nor waiting, and in ops beyond what their layers take: calling programs. A backward
that no message comes to or goes from costs the op alone; what ranks of the pipeline spend more around ops, but for
drawing samples, is that of its messages. What the first run's steps take beyond their ops, and beyond what links say of
the sums between ranks, is a collective's. How late messages arrive at ranks that compute, whose cores also run what
carries messages, says the pipeline's step. Where more ranks train than have a core each, ops and messages are those of
as many as have one, and what ranks wait for one another is read off runs of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist

from ...models import resolve
from ...planner import simulate
from ...planner.graph import Candidate, holders, sum_seconds
from ...planner.lower import assemble, replicated
from ...planner.plan import IN_LINE, Kind, Plan, Problem
from ...planner.problem import Cluster, Link, ModelGraph, Overhead, Workload
from ...planner.runs import OpTrace, RunTrace
from ...planner.schedules import capped
from ..basics import RunOptions
from ..place import at_once
from .profile import profile_model

MODEL = "mlp-deep"
"""Eight layers of a few microseconds."""
SAMPLES, MICRO_BATCHES = 8, 8
STEPS = 24
"""Of each run."""
ROUNDS = 3
HALVINGS = 40
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


def overhead_among(train: Train, threads: int, link: Link = ALONE, on_this: int | None = None) -> Spent:
    """Of all ranks of the default process group, which train as under torchrun; collective. `link`: between two of
    them, as the first has measured it. `on_this`: how many of them are on this computer, as on each; None: all."""
    said = [link]
    dist.broadcast_object_list(said)
    options = RunOptions(steps=STEPS, threads_per_process=threads, self_check=False)
    ranks = dist.get_world_size()
    busy, cores = max(2, min(ranks, at_once(threads))), ranks * at_once(threads) / (on_this or ranks)
    return measure_overhead(
        lambda: _profiled(threads), ranks, lambda made: train(made, options).trace, busy=busy, link=said[0], cores=cores
    )


def _profiled(threads: int) -> ModelGraph:
    """`MODEL` as the first rank measures it by itself; collective."""
    content: list[Any] = [None]
    if dist.get_rank() == 0:
        content = [profile_model(resolve(MODEL), SAMPLES, threads=threads, rounds=2, load=1)]
    dist.broadcast_object_list(content)
    return ModelGraph.from_dict(content[0])


def measure_overhead(
    profile: Callable[[], ModelGraph],
    processes: int,
    train: Callable[[Plan], RunTrace],
    rounds: int = ROUNDS,
    busy: int | None = None,
    link: Link = ALONE,
    cores: float | None = None,
) -> Spent:
    """With so many processes at it, at least 2; those beyond the model's layers wait.

    Profile and runs take turns. Of what a rank's thread spends the least counts, since what else the machine does only
    adds; of how long ranks wait for one another the median.

    Args:
        profile: measures a registry's model of tiny layers, such as `MODEL`.
        train: runs a plan, each device as a process.
        link: between two processes.
        busy: of the processes that train for ops and messages, where the others wait: as many as do not share a core.
            None: all. cores: that all of them share; None: they have one each.
    """
    busy = busy or processes
    cluster = Cluster.uniform(processes, link=link)
    crowd = None if cores is None or cores >= processes else _on_cores(cluster, cores)
    found, chains, sums = [], [], []
    for _ in range(rounds):
        graph = profile()
        ran = [(made, train(made)) for made in (_whole(graph, cluster, busy), _chained(graph, cluster, busy))]
        found.append(_figures(graph, *(trace for _, trace in ran)))
        if crowd is not None:
            ran = [(made, train(made)) for made in (_whole(graph, crowd, processes), _chained(graph, crowd, processes))]
        (whole, alone), (chain, chained) = ran
        chains.append((chain, chained.step_s))
        sums.append((whole, _summing(alone)))
    least = _Figures(*map(min, zip(*found, strict=True)))
    overhead, drawing_s = _overhead(least), MICRO_BATCHES * least.drawing_s
    latency_s = median(_latency_s(chain, overhead, step_s - drawing_s) for chain, step_s in chains)
    collective_s = median(summing_s - _sum_s(whole, latency_s) for whole, summing_s in sums)
    return Spent(replace(overhead, collective_s=max(0.0, collective_s)), latency_s)


def _on_cores(cluster: Cluster, cores: float) -> Cluster:
    """The cluster of one node with so many cores for its devices."""
    (group,) = cluster.nodes
    return replace(cluster, nodes=(replace(group, cores=cores),))


def _latency_s(chain: Plan, overhead: Overhead, step_s: float) -> float:
    """With which latency of its messages a plan is forecast to take as long as it took; at least the link's own."""

    def forecast_s(latency_s: float) -> float:
        problem = _with_latency(chain.problem, latency_s)
        problem = replace(problem, cluster=replace(problem.cluster, overhead=overhead))
        return simulate(replace(chain, problem=problem)).step_s

    low = chain.problem.cluster.link(0, 1).latency_s
    high = max(low, step_s)
    if forecast_s(low) >= step_s:
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if forecast_s(middle) < step_s else (low, middle)
    return low


def _whole(graph: ModelGraph, cluster: Cluster, ranks: int) -> Plan:
    """All layers on each of so many ranks, with micro-batches of its own."""
    return replicated(Problem(graph, cluster, Workload(MICRO_BATCHES * ranks)), range(ranks))


def _chained(graph: ModelGraph, cluster: Cluster, most: int) -> Plan:
    """A stage on each of so many ranks, as far as there are layers, in the order of 1F1B."""
    names = [layer.name for layer in graph.layers]
    ranks = min(most, len(names))
    layout = capped(ranks, MICRO_BATCHES, ranks)
    ends = [len(names) * rank // ranks for rank in range(ranks + 1)]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise(ends))
    orders = [*layout.orders, *([[]] * (len(cluster) - ranks))]
    return assemble(Candidate(Problem(graph, cluster, Workload(MICRO_BATCHES)), stages, layout.pipelines), orders)


def _with_latency(problem: Problem, latency_s: float) -> Problem:
    """The problem on links of another latency."""
    (group,) = problem.cluster.nodes
    link = replace(group.link, latency_s=latency_s)
    return replace(problem, cluster=replace(problem.cluster, nodes=(replace(group, link=link),)))


def _sum_s(plan: Plan, latency_s: float) -> float:
    """What links say of summing the gradients of a plan that has all layers on each of its ranks."""
    trained = sum(layer.trained_bytes for layer in plan.problem.model.layers)
    return sum(sum_seconds(_with_latency(plan.problem, latency_s), holders(plan)[0], trained))


class _Figures(NamedTuple):
    """Seconds. `forward`, `backward`: around an op of a rank that has all layers, and `taken`: by its F and B together.

    `chained`: around an F and a B of every rank that has a stage, together, and `chained_taken`: by these. `layers`: of
    all layers, forward and backward, by the profile. `step`: a STEP.
    """

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
        return max(0.0, self.forward - self.backward)


def _figures(graph: ModelGraph, alone: RunTrace, chained: RunTrace) -> _Figures:
    forward, backward = (fmean(_usual(alone, kind, _around)) for kind in _PASSES)
    return _Figures(
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
    spent_s = found.chained - 2 * ranks * found.backward - found.drawing_s
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
