"""Equal groups of devices: which there are, a plan of one of them laid on all, and the parts of such a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...plan import Op, Pipeline, Plan, Problem

Groups = tuple[tuple[int, ...], ...]
"""Devices of every group, in the order of the one group that is searched."""


def equal_groups(problem: Problem, width: int) -> list[Groups]:
    """So many equal groups: neighbours together, and replicas together where that is something else."""
    devices = len(problem.cluster)
    size = devices // width
    near = tuple(tuple(range(g * size, (g + 1) * size)) for g in range(width))
    far = tuple(tuple(range(g, devices, width)) for g in range(width))
    found = {_links_of(problem, g): g for g in (far, near) if len({_kind_of(problem, group) for group in g}) == 1}
    return list(found.values())[::-1]


def _links_of(problem: Problem, groups: Groups) -> tuple[object, ...]:
    """Which devices of a group, and which replicas of a stage, share a node."""
    return _kind_of(problem, groups[0]), *(_kind_of(problem, members) for members in zip(*groups, strict=True))


def _kind_of(problem: Problem, group: tuple[int, ...]) -> tuple[object, ...]:
    """What makes two groups equal: kinds of devices and nodes, and which devices share a node."""
    cluster, nodes = problem.cluster, dict[int, int]()
    found: list[object] = []
    for d in group:
        node = cluster.devices[d].node
        found.append((replace(cluster.node_groups[node], count=1), nodes.setdefault(node, len(nodes))))
    return tuple(found)


def dealt(
    problem: Problem, groups: Groups, pipelines: Sequence[Pipeline], orders: Sequence[Sequence[Op]]
) -> tuple[list[tuple[Pipeline, int, tuple[int, ...]]], list[list[Op]]]:
    """Pipelines and compute orders of one group on all of them, micro-batches dealt out in turns.

    With every pipeline the number of that which it comes from, and the devices of its group.
    """
    width, batches = len(groups), problem.workload.micro_batches
    found: list[tuple[Pipeline, int, tuple[int, ...]]] = []
    listed: list[list[Op]] = [[] for _ in problem.cluster.devices]
    for g, devices in enumerate(groups):
        for number, pipeline in enumerate(pipelines):
            mine = tuple(g + width * m for m in pipeline.micro_batches if g + width * m < batches)
            forward, backward = (tuple(devices[d] for d in route) for route in (pipeline.forward, pipeline.backward))
            found += [(Pipeline(forward, backward, mine), number, devices)] if mine else []
        for d, order in zip(devices, orders, strict=True):
            own = (op._replace(micro_batch=g + width * op.micro_batch) for op in order)
            listed[d] = [op for op in own if op.micro_batch < batches]
    return found, listed


def alike(problem: Problem, groups: Groups) -> list[tuple[int, ...]]:
    """Devices that run the same in equal groups; every device alone where there are none."""
    return list(zip(*(groups or (tuple(range(len(problem.cluster))),)), strict=True))


def parts(plan: Plan, groups: Groups) -> list[Plan] | None:
    """The plan's routes group by group, in the numbers of one group's devices; None where a route leaves its group."""
    home = {d: (g, k) for g, devices in enumerate(groups) for k, d in enumerate(devices)}
    found: dict[int, list[Pipeline]] = {}
    for pipeline in plan.pipelines:
        members = {home[d][0] for d in (*pipeline.forward, *pipeline.backward)}
        if len(members) != 1:
            return None
        forward, backward = (tuple(home[d][1] for d in route) for route in (pipeline.forward, pipeline.backward))
        found.setdefault(members.pop(), []).append(Pipeline(forward, backward, pipeline.micro_batches))
    return [replace(plan, pipelines=tuple(pipelines)) for pipelines in found.values()]
