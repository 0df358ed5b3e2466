"""Topological orders of a model's layers that are worth cutting into stages, beside the order of its file.

A chain's cuts are contiguous in one order of its layers; a graph has many. Of the best partition that is known of the
graph, as a straight pipeline on equal devices, an order is made in which its stages are contiguous; others add at every
step what makes the tensors behind it grow least, or go deep before they go wide.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..basics import OutOfTime
from .chain import Chain
from .dag import Effort, GraphProblem, Group, Tensor, cut_graph, narrow_order, random_order

LayerOrder = tuple[int, ...]
"""Positions of a model's layers, in a topological order of its edges."""


def other_orders(chain: Chain, devices: Sequence[int], effort: Effort, seed: int) -> list[LayerOrder]:
    """Orders for as many stages as devices, the most promising kind first; none that is the chain's own.

    For every bandwidth between neighbouring devices one of the best partition, found with an equal part of the effort,
    at first within the memory that one forward, one backward takes. Ctrl-C and deadlines leave what was found.
    """
    model = chain.problem.model
    found: list[list[int]] = []
    bandwidths = _bandwidths(chain, devices)
    part = replace(
        effort,
        seconds=effort.seconds / len(bandwidths),
        deterministic=None if effort.deterministic is None else effort.deterministic / len(bandwidths),
    )
    for bandwidth in bandwidths:
        found += _of_partition(_problem(chain, devices, bandwidth), part, seed)
    problem, everything = _problem(chain, devices, bandwidths[0]), range(len(chain))
    try:
        found.append(narrow_order(problem, everything, random.Random(seed), noise=0.0))
        found.append(random_order(problem, everything, random.Random(seed), depth=1.0))
    except OutOfTime:
        pass
    own = tuple(model.topological)
    listed = [tuple(model.topological[g] for g in order) for order in found]
    return [order for order in dict.fromkeys(listed) if order != own]


def _of_partition(problem: GraphProblem, effort: Effort, seed: int) -> Iterator[list[int]]:
    """The order of the best partition, narrow within its stages; none where no partition was found."""
    found = cut_graph(problem, effort, seed).partition
    if found is None and math.isfinite(problem.limit_bytes):
        found = cut_graph(replace(problem, limit_bytes=math.inf), effort, seed).partition
    if found is not None:
        inside = random.Random(seed)
        yield [g for block in found for g in narrow_order(problem, block.groups, inside, noise=0.0)]


def _bandwidths(chain: Chain, devices: Sequence[int]) -> list[float]:
    """Bytes a second between neighbouring devices, the slowest first; infinite where there is one device."""
    cluster = chain.problem.cluster
    found = {cluster.link(a, b).bandwidth for a, b in zip(devices, devices[1:], strict=False)}
    return sorted(found) or [math.inf]


def _problem(chain: Chain, devices: Sequence[int], bandwidth: float) -> GraphProblem:
    """A straight pipeline of as many stages as devices, in milliseconds: the slower direction of a tensor counts."""
    costs = chain.costs
    work = (1e3 * (costs.forward_s + costs.backward_s)).tolist()
    static, stash = chain.static_bytes[0].tolist(), costs.stash_bytes.tolist()
    groups = tuple(Group(ms, static_bytes=static[g], in_flight_bytes=float(stash[g])) for g, ms in enumerate(work))
    readers: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    for producer, consumer, size in costs.edges:
        readers.setdefault(producer, set()).add(consumer)
        sizes[producer] = max(sizes.get(producer, 0), size)
    tensors = tuple(Tensor(g, frozenset(targets), 1e3 * sizes[g] / bandwidth) for g, targets in readers.items())
    edges = tuple((edge.producer, edge.consumer) for edge in costs.edges)
    limit = min(chain.limit(device) for device in devices)
    whole = max(1.0, float(sum(static)) + len(devices) * float(sum(stash)))
    return GraphProblem(
        groups,
        edges,
        tensors,
        min(len(devices), len(groups)),
        every=True,
        limit_bytes=math.inf if whole <= limit else float(limit),
        overlap=True,
    )
