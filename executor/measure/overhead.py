"""Measures what ops and messages cost a rank's own thread beside their layers: the overheads of cluster.toml.

Ranks train a model of tiny layers, each all of it and then as stages of a pipeline, and their traces say what they
spent around ops, neither computing nor waiting. A backward that no message comes to or goes from costs the op alone;
what ranks of the pipeline spend more, but for drawing samples, is that of its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, quantiles

from ...planner.graph import Candidate
from ...planner.lower import assemble
from ...planner.plan import Kind, Op, Pipeline, Plan, Problem
from ...planner.problem import Cluster, ModelGraph, Overhead, Workload
from ...planner.runs import RunTrace
from ...planner.schedules import capped

MODEL = "mlp-deep"
"""Eight layers of a few microseconds."""
MICRO_BATCHES = 8
STEPS = 24
"""Of each run."""


def measure_overhead(graph: ModelGraph, processes: int, train: Callable[[Plan], RunTrace]) -> Overhead:
    """With so many processes at it, as many as the model has layers at the most, and at least 2.

    Args:
        graph: a registry's model of tiny layers, such as `MODEL`, as it was profiled.
        train: runs a plan, each device as a process.
    """
    ranks = min(processes, len(graph.layers))
    return overhead_of(train(_whole(graph, ranks)), train(_chained(graph, ranks)))


def _whole(graph: ModelGraph, ranks: int) -> Plan:
    """All layers on every rank, each with micro-batches of its own."""
    mine = [tuple(range(rank, MICRO_BATCHES * ranks, ranks)) for rank in range(ranks)]
    problem = Problem(graph, Cluster.uniform(ranks), Workload(MICRO_BATCHES * ranks))
    pipelines = tuple(Pipeline((rank,), (rank,), batches) for rank, batches in enumerate(mine))
    orders = [[Op(kind, 0, m) for m in batches for kind in (Kind.F, Kind.B)] for batches in mine]
    return assemble(Candidate(problem, (tuple(layer.name for layer in graph.layers),), pipelines), orders)


def _chained(graph: ModelGraph, ranks: int) -> Plan:
    """A stage on every rank, in the order of 1F1B."""
    layout, names = capped(ranks, MICRO_BATCHES, ranks), [layer.name for layer in graph.layers]
    ends = [len(names) * rank // ranks for rank in range(ranks + 1)]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise(ends))
    problem = Problem(graph, Cluster.uniform(ranks), Workload(MICRO_BATCHES))
    return assemble(Candidate(problem, stages, layout.pipelines), layout.orders)


def overhead_of(alone: RunTrace, chained: RunTrace) -> Overhead:
    """What runs of one model say: every rank with all of it and no message between stages; a stage on each rank."""
    ranks = len(chained.devices)
    forward, op_s = (fmean(_around(alone, kind)) for kind in (Kind.F, Kind.B))
    drawing_s = max(0.0, forward - op_s)
    spent_s = sum(_around(chained, Kind.F)) + sum(_around(chained, Kind.B))
    messages = 4 * (ranks - 1)  # a micro-batch's, both ends of each
    return Overhead(op_s, max(0.0, spent_s - 2 * ranks * op_s - drawing_s) / messages)


def _around(trace: RunTrace, kind: Kind) -> list[float]:
    """By rank, seconds around an op of this kind: the lower quartile, since what else the machine does only adds."""
    found = [[x.overhead_s for x in device.ops if x.op.kind is kind] for device in trace.devices]
    return [quantiles(seconds, n=4, method="inclusive")[0] for seconds in found]
