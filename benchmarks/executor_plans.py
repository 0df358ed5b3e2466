"""The plans of the executor benchmark: named schedules on their best cut, stashes on the move, and the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contraflow.planner import Cluster, InputError, ModelGraph, Plan, SearchSpace, Workload, plan
from contraflow.planner.graph import KEEP, OFFLOAD, RECOMPUTE, Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op

PEERS = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
"""Schedules that torch has too, by our name: torch's."""
NAMED = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "chimera", "dualpipe", "gems")
SEARCH = "search"
SPACE = SearchSpace(separate_backward=False)
NAMED_S = 10.0


def plans(
    graph: ModelGraph, cluster: Cluster, workload: Workload, names: Sequence[str], time_limit: float, seed: int = 0
) -> Iterator[tuple[str, Plan]]:
    """The plans of these names that exist: schedules, "1f1b recompute", "1f1b offload", "search"."""
    for name in names:
        base, _, policy = name.partition(" ")
        space = SPACE if base == SEARCH else SearchSpace(schedule=base, separate_backward=False)
        seconds = time_limit if base == SEARCH else NAMED_S
        try:
            found = plan(graph, cluster, workload, space, seconds, seed, 2).plan
        except InputError:
            continue
        if found is not None:
            yield name, restashed(found, policy) if policy else found


def restashed(found: Plan, policy: str) -> Plan:
    """The plan's orders with every stash recomputed, or all but the last stage's offloaded."""
    last = len(found.stages) - 1
    row = tuple(KEEP if policy == OFFLOAD and stage == last else policy for stage in range(last + 1))
    candidate = Candidate(found.problem, found.stages, found.pipelines, (row,) * len(found.pipelines))
    return assemble(candidate, [list(_compute(order, policy)) for order in found.orders], found.provenance.source)


def _compute(order: Sequence[Op], policy: str) -> Iterator[Op]:
    for op in order:
        if op.kind in (Kind.B, Kind.I) and policy == RECOMPUTE:
            yield op._replace(kind=Kind.R)
        if op.kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            yield op
