"""Structures worth ordering: how stages lie on the devices, in which directions, and what happens to their stashes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...operations import KEEP, OFFLOAD, RECOMPUTE, Candidate
from ...partition.chain import Chain, Cuts, cut, lightest
from ...plan import Pipeline, Problem
from ...workload import SearchSpace
from ..fit import limits

MOST_CHUNKS = 4
"""Stages a device at most."""
Order = tuple[int, ...]


def routes(order: Order, chunks: int) -> list[Order]:
    """Devices of the stages with so many chunks a device: back and forth, and round and round."""
    zigzag: list[int] = []
    for k in range(chunks):
        zigzag += order if k % 2 == 0 else order[::-1]
    found = [tuple(zigzag)]
    if chunks > 1:
        found.append(order * chunks)
    return found


def balanced(chain: Chain, route: Order, twin: Order = ()) -> Cuts | None:
    """A cut for a route, and one in the opposite direction if there is one: the dynamic programme's, boundaries moved.

    The programme balances stages; what counts is the load of a device, the sum over its stages on both routes.
    """
    start = cut(chain, route, [0] * len(route), buffers=0)
    if start is None or (not twin and len(set(route)) == len(route)):
        return start
    seconds = chain.seconds
    speed = {d: chain.speed(d) for d in route}

    def worst(cuts: list[int]) -> tuple[float, float]:
        ends = [0, *cuts, len(chain)]
        load = dict.fromkeys(route, 0.0)
        for way in (route, twin):
            for s, d in enumerate(way):
                load[d] += float(seconds[ends[s], ends[s + 1]]) / speed[d]
        return max(load.values()), sum(x * x for x in load.values())

    cuts = list(start)
    best = worst(cuts)
    improved = True
    while improved:
        improved = False
        for k in range(len(cuts)):
            for by in (-1, 1):
                moved = [*cuts[:k], cuts[k] + by, *cuts[k + 1 :]]
                low, high = ([0, *moved, len(chain)][k], [0, *moved, len(chain)][k + 2])
                if low < moved[k] < high and worst(moved) < best:
                    cuts, best, improved = moved, worst(moved), True
    return tuple(cuts)


def fitting(chain: Chain, route: Order, cuts: Cuts | None) -> Cuts | None:
    """The cut, or one with more room where some device cannot hold its stages with one stash each."""
    if cuts is None:
        return None
    table = chain.bytes(1, 0)
    held: dict[int, float] = {}
    for device, begin, end in zip(route, (0, *cuts), (*cuts, len(chain)), strict=True):
        held[device] = held.get(device, 0.0) + float(table[begin, end])
    if all(size <= chain.limit(device) for device, size in held.items()):
        return cuts
    share = len(held) / len(route)
    found = cut(chain, route, [1] * len(route), buffers=0, share=share)
    least = lightest(chain, route, [1] * len(route))
    return found or (least[0] if least else cuts)


def structures(problem: Problem, space: SearchSpace, chain: Chain, orders: list[Order]) -> Iterator[Candidate]:
    """Candidates with one pipeline or two in opposite directions, stashes kept."""
    batches, layers = problem.workload.micro_batches, len(chain)
    two = batches > 1 and (space.pipelines is None or space.pipelines > 1)
    for order in orders:
        if len(order) < 1 or (order[::-1] in orders and orders.index(order[::-1]) < orders.index(order)):
            continue
        for chunks in range(1, MOST_CHUNKS + 1):
            if chunks * len(order) > layers:
                break
            for route in routes(order, chunks) if len(order) > 1 else [order * chunks][: 1 if chunks == 1 else 0]:
                cuts = fitting(chain, route, balanced(chain, route))
                if cuts is None:
                    continue
                stages = chain.stages(cuts)
                yield Candidate(problem, stages, (Pipeline(route, route, tuple(range(batches))),))
                if (
                    two
                    and len(order) > 1
                    and (chunks == 1 or route[: len(order)] != route[len(order) : 2 * len(order)])
                ):
                    twin = dict(zip(order, order[::-1], strict=True))
                    back = tuple(twin[d] for d in route)
                    down, up = tuple(range(0, batches, 2)), tuple(range(1, batches, 2))
                    shared = fitting(chain, route, balanced(chain, route, back)) or cuts
                    yield Candidate(
                        problem, chain.stages(shared), (Pipeline(route, route, down), Pipeline(back, back, up))
                    )


def policies(problem: Problem, space: SearchSpace) -> list[str]:
    """What may be done with a stash besides keeping it; nothing where memory holds all stashes anyhow."""
    return priced(problem, space) if binding(problem) else []


def priced(problem: Problem, space: SearchSpace) -> list[str]:
    """What may be done with a stash besides keeping it.

    What has no price is not assumed to be free: offloading needs host links whose bandwidth is known, and
    recomputation a model that says how large its tensors between layers are.
    """
    links = all(math.isfinite(group.host_link.bandwidth) for group in problem.cluster.nodes)
    inputs = any(layer.output_bytes or layer.input_bytes for layer in problem.model.layers)
    choices = ((RECOMPUTE, space.recompute and inputs), (OFFLOAD, space.offload and links))
    return [policy for policy, allowed in choices if allowed]


def binding(problem: Problem) -> bool:
    """Whether some device cannot hold the whole model with all its stashes."""
    layers, workload = problem.model.layers, problem.workload
    total = sum(
        x.parameter_bytes + workload.gradient_bytes(x.parameter_bytes) + workload.optimizer_bytes(x.parameter_bytes)
        + x.buffer_bytes * (1 + 2 * workload.micro_batches) + x.workspace_bytes
        + workload.micro_batches * max(x.stash_bytes, x.weight_stash_bytes)
        + workload.micro_batches * (2 * x.output_bytes + (x.input_bytes or 0))
        for x in layers
    )  # fmt: skip
    return total > min(limits(problem))


def with_policy(candidate: Candidate, policy: str, share: float) -> Candidate:
    """The candidate with this policy for the first `share` of its stages, where most micro-batches are in flight."""
    stages = len(candidate.stages)
    changed = max(1, round(stages * share))
    row = (policy,) * changed + (KEEP,) * (stages - changed)
    return replace(candidate, stash=tuple(row for _ in candidate.pipelines))


def resized(candidate: Candidate, micro_batches: int) -> Candidate:
    """The candidate with so many micro-batches, shared out as before."""
    problem = candidate.problem
    smaller = replace(problem, workload=replace(problem.workload, micro_batches=micro_batches))
    count = len(candidate.pipelines)
    pipelines = tuple(
        Pipeline(p.forward, p.backward, tuple(range(k, micro_batches, count)))
        for k, p in enumerate(candidate.pipelines)
    )
    return Candidate(smaller, candidate.stages, pipelines, candidate.stash)
