"""Plans whose stages run forward and backward on different devices: what their execution tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from instances import by_orders
from runs import linked, profiled

from contraflow.planner.check import check
from contraflow.planner.graph import RECOMPUTE
from contraflow.planner.plan import Kind, Op, Pipeline, Plan
from contraflow.planner.problem.workload import Workload


class Routes(NamedTuple):
    """Forward and backward devices of every stage, by pipeline; micro-batches take them in turns."""

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]


SWAPPED = Routes(((0, 1),), ((1, 0),))
LAST_AT_HOME = Routes(((0, 1),), ((2, 1),))
NODES_OF_THEIR_OWN = Routes(((0, 1),), ((2, 3),))
MIXED = Routes(((0, 1), (0, 1)), ((1, 1), (0, 0)))
"""Two pipelines; every stage has two owners, and some micro-batches stay where they are."""
BOTH_WAYS = Routes(((0, 1), (1, 0)), ((1, 1), (0, 0)))
ONE_STAGE_REPLICATED = Routes(((0, 1), (0, 2), (0, 2)), ((0, 1), (0, 2), (0, 2)))
"""Stage 1 has replicas with unequal shares of the micro-batches, stage 0 has none."""


def made(
    model: str,
    routes: Routes,
    policies: Sequence[str],
    micro_batches: int = 4,
    lead: int = 2,
    halves: bool = False,
    optimizer: str = "momentum",
) -> Plan:
    """Layers dealt out evenly; `lead` micro-batches run forward before the first runs backward.

    `policies`: by stage.
    """
    graph = profiled(model, torch.float32)
    devices = 1 + max(d for routes_of in routes for route in routes_of for d in route)
    ways = len(routes.forward)
    pipelines = tuple(
        Pipeline(routes.forward[k], routes.backward[k], tuple(range(k, micro_batches, ways))) for k in range(ways)
    )
    orders: list[list[Op]] = [[] for _ in range(devices)]

    def forward(m: int) -> None:
        for s, device in enumerate(routes.forward[m % ways]):
            orders[device].append(Op(Kind.F, s, m))

    def backward(m: int) -> None:
        for s, device in reversed(list(enumerate(routes.backward[m % ways]))):
            if policies[s] == RECOMPUTE:
                orders[device].append(Op(Kind.R, s, m))
            orders[device] += [Op(Kind.I, s, m), Op(Kind.W, s, m)] if halves else [Op(Kind.B, s, m)]

    for m in range(micro_batches + lead):
        if m < micro_batches:
            forward(m)
        if m >= lead:
            backward(m - lead)
    stash = (tuple(policies),) * ways
    plan = by_orders(graph, pipelines, orders, Workload(micro_batches, optimizer), linked(devices), stash)
    assert check(plan) == []
    return plan
