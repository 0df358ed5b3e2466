"""Structures worth ordering: how stages lie on the devices, in which directions, and what happens to their stashes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ... import bounds
from ...graph import KEEP, OFFLOAD, RECOMPUTE, Candidate
from ...partition import Chain, Cuts, cut, lightest
from ...plan import Pipeline, Problem
from ...problem import SearchSpace
from .balance import Order, balanced
from .effort import SIZE
from .fit import limits


def routes(order: Order, chunks: int) -> list[Order]:
    """Devices of the stages with so many chunks a device: back and forth, and round and round. With one they are the
    same, and of use where it does not hold what a whole backward needs.
    """
    zigzag: list[int] = []
    for k in range(chunks):
        zigzag += order if k % 2 == 0 else order[::-1]
    found = [tuple(zigzag)]
    if chunks > 1 and len(order) > 1:
        found.append(order * chunks)
    return found


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


def structures(
    problem: Problem, space: SearchSpace, chain: Chain, orders: list[Order], most_chunks: int = SIZE.chunks
) -> Iterator[Candidate]:
    """Candidates with one pipeline or two in opposite directions, stashes kept, at most so many stages a device."""
    two = problem.workload.micro_batches > 1 and (space.pipelines is None or space.pipelines > 1)
    for order in orders:
        if len(order) < 1 or (order[::-1] in orders and orders.index(order[::-1]) < orders.index(order)):
            continue
        for chunks in range(1, most_chunks + 1):
            if chunks * len(order) > len(chain):
                break
            for route in routes(order, chunks):
                other_way = chunks == 1 or route[: len(order)] != route[len(order) : 2 * len(order)]
                twin = dict(zip(order, order[::-1], strict=True))
                for back in ((), tuple(twin[d] for d in route)) if two and len(order) > 1 and other_way else ((),):
                    found = _best_cut(problem, space, chain, route, back)
                    if found is not None:
                        yield found


def _best_cut(problem: Problem, space: SearchSpace, chain: Chain, route: Order, back: Order) -> Candidate | None:
    """A route, and perhaps the one back, on the cut whose bound is least: of equal stages, or of equal devices."""
    batches = problem.workload.micro_batches
    pipelines: tuple[Pipeline, ...] = (Pipeline(route, route, tuple(range(0, batches, 2 if back else 1))),)
    pipelines += (Pipeline(back, back, tuple(range(1, batches, 2))),) if back else ()
    tried = [cut(chain, route, [0] * len(route), buffers=0), balanced(chain, route, back)]
    fit = dict.fromkeys(c for c in (fitting(chain, route, cuts) for cuts in tried) if c is not None)
    found = [Candidate(problem, chain.stages(cuts), pipelines) for cuts in fit]
    shares = tuple(len(pipeline.micro_batches) for pipeline in pipelines)
    if len(found) < 2:
        return found[0] if found else None
    return min(found, key=lambda one: bounds.candidate(one, shares, space.split_backward))


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


def subsets(policies: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All sets of these policies with any in them, the largest first."""
    for size in range(len(policies), 0, -1):
        yield from combinations(policies, size)


def binding(problem: Problem) -> bool:
    """Whether some device cannot hold the whole model with all its stashes."""
    layers, workload = problem.model.layers, problem.workload
    total = sum(
        x.parameter_bytes + workload.gradient_bytes(x.trained_bytes) + workload.optimizer_bytes(x.trained_bytes)
        + x.buffer_bytes * (2 + workload.micro_batches) + x.workspace_bytes
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
