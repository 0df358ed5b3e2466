"""Problems with ties, layers that cost nothing, nodes and updates that take time; plans of schedules, and of none with
a flush: what random structures in random orders hardly ever are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from instances import POLICIES
from random_plans import Greedy, tied
from whole_space import candidates, row

from contraflow.planner import check
from contraflow.planner.basics.errors import InputError, PlanError
from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition.chain import compositions
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.schedules import ASYNCHRONOUS, Layout, build, unsplit, variants

ALIKE = tuple(name for name, layout in ((n, build(n, 2, 8)) for n in ASYNCHRONOUS) if not layout.ahead)
"""Named schedules without a flush whose stages run forward and backward on one device."""


def varied(problem: Problem, rng: random.Random) -> Problem:
    """The problem with some of: tied layers, layers that take no time, nodes on slow links, updates that take time."""
    model, cluster, workload = problem.model, problem.cluster, problem.workload
    if rng.random() < 0.4:
        free = rng.randrange(len(model.layers))
        layers = [
            replace(x, forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
            if k == free or rng.random() < 0.2
            else x
            for k, x in enumerate(model.layers)
        ]
        model = replace(model, layers=tuple(layers))
    if rng.random() < 0.4:
        cluster = _noded(cluster, rng)
    if rng.random() < 0.4:
        nodes = tuple(replace(n, device=replace(n.device, memory_bandwidth=20.0)) for n in cluster.nodes)
        cluster = replace(cluster, nodes=nodes)
    found = Problem(model, cluster, replace(workload, optimizer=rng.choice(["sgd", "adam"])))
    if rng.random() < 0.4:
        one = Candidate(found, tuple((x.name,) for x in model.layers), ())
        found = tied(one, rng.randrange(1 << 30)).problem
    return found


def _noded(cluster: Cluster, rng: random.Random) -> Cluster:
    """The same devices, each in a node of its own or all but one in one, between which messages take long."""
    kinds = [device.kind for device in cluster.devices]
    link, host = rng.choice([Link(), Link(8.0, 0.1)]), rng.choice([Link(), Link(6.0), Link(3.0, 0.2)])
    nodes = [NodeGroup(1, 1, kind, link, None, host) for kind in kinds]
    if len(set(kinds[1:])) == 1 and rng.random() < 0.5:
        nodes = [nodes[0], NodeGroup(1, len(kinds) - 1, kinds[1], link, None, host)]
    return Cluster(tuple(nodes), rng.choice([Link(2.0, 0.3), Link(latency_s=0.7), Link(1.0)]))


# ------------------------------------------------------------------ plans of schedules


def shaped(problem: Problem, rng: random.Random, count: int) -> list[Plan]:
    """Plans of named schedules on random cuts and devices, with stash policies of any kind, or as BPipe has them."""
    layers, devices, batches = len(problem.model.layers), len(problem.cluster), problem.workload.micro_batches
    layouts = [layout for used in range(1, devices + 1) for _, layout in variants(used, batches, layers)]
    found = []
    for layout in [rng.choice(layouts) for _ in range(count)] if layouts else []:
        order = rng.sample(range(devices), len(layout.orders))
        plan = _assembled(problem, _moved(layout, order, devices), rng.choice(_cuts(problem, layout.stages)), rng)
        found += [] if plan is None else [plan]
    return found


def _moved(layout: Layout, order: Sequence[int], devices: int) -> Layout:
    """The layout on these devices."""
    pipelines = tuple(
        Pipeline(tuple(order[d] for d in p.forward), tuple(order[d] for d in p.backward), p.micro_batches)
        for p in layout.pipelines
    )
    orders: list[tuple[Op, ...]] = [()] * devices
    for d, listed in zip(order, layout.orders, strict=True):
        orders[d] = listed
    return replace(layout, pipelines=pipelines, orders=tuple(orders))


def _cuts(problem: Problem, stages: int) -> list[tuple[tuple[str, ...], ...]]:
    names = [layer.name for layer in problem.model.layers]
    cuts = [(0, *cut, len(names)) for cut in compositions(len(names), stages, 10_000) or []]
    return [tuple(tuple(names[a:b]) for a, b in zip(ends, ends[1:], strict=False)) for ends in cuts]


def _assembled(
    problem: Problem, layout: Layout, stages: tuple[tuple[str, ...], ...], rng: random.Random
) -> Plan | None:
    whole = Candidate(problem, stages, layout.pipelines)
    if not all(whole.costs.separable):
        layout = unsplit(layout)
    kind = rng.choice(["keep", "bpipe", "any", "any"])
    rows = {}
    for p in layout.pipelines:
        chosen = ("keep",) * layout.stages
        if kind == "bpipe" and p.forward == p.backward:
            chosen = _balanced(p.forward)
        elif kind == "any":
            chosen = row((p.forward, p.backward), problem.cluster, rng)
        rows |= dict.fromkeys(p.micro_batches, chosen)
    try:
        candidate = regroup(problem, stages, layout.pipelines, rows)
        plan = assemble(candidate, [_remade(order, rows) for order in layout.orders], layout.name)
    except PlanError:
        return None
    return plan if check(plan) == [] else None


def _balanced(route: Sequence[int]) -> tuple[str, ...]:
    """The first half of the stages lends its stashes to the devices of the other half (Kim et al., BPipe, 2023)."""
    half = len(route) // 2
    return tuple(
        f"ship>{there}" if s < half and there != here else "keep"
        for s, (here, there) in enumerate(zip(route, reversed(route), strict=True))
    )


def _remade(order: Sequence[Op], rows: dict[int, tuple[str, ...]]) -> list[Op]:
    """The order with the recomputations that these policies need."""
    return [
        made
        for op in order
        for made in (
            [op._replace(kind=Kind.R), op]
            if op.kind in (Kind.B, Kind.I) and rows[op.micro_batch][op.stage] == "recompute"
            else [op]
        )
    ]


# ------------------------------------------------------------------ plans without a flush


def endless(problem: Problem, rng: random.Random) -> Problem:
    """The problem with enough micro-batches for a steady state, in updates of some of them."""
    update = rng.choice([None, 1, 2, 3, len(problem.cluster)])
    count = (update or rng.choice([1, len(problem.cluster)])) * rng.randint(4, 8)
    return replace(problem, workload=replace(problem.workload, micro_batches=count, update_every=update))


def steady(problem: Problem, rng: random.Random, count: int) -> list[Plan]:
    """Plans without a flush: random structures in random orders, and named schedules on all kinds of cuts."""
    found = list(in_random_orders(problem, rng, count))
    for name in ALIKE:
        found += list(named_steady(problem, name))[:count]
    return found


def in_random_orders(problem: Problem, rng: random.Random, count: int) -> Iterator[Plan]:
    """Plans without a flush: so many random structures, those of them that run."""
    for candidate in candidates(problem, rng, count):
        moved = replace(candidate, weights=rng.choice(POLICIES))
        try:
            plan = assemble(moved, in_turn(Greedy(moved, rng, rng.random() < 0.3).orders()))
        except InputError:
            continue
        if check(plan) == []:
            yield plan


def named_steady(problem: Problem, name: str) -> Iterator[Plan]:
    """A named schedule without a flush on every cut into as many stages as devices, stashes kept."""
    devices = len(problem.cluster)
    layout = build(name, min(devices, len(problem.model.layers)), problem.workload.micro_batches)
    placed = _moved(layout, range(len(layout.orders)), devices)
    for stages in _cuts(problem, layout.stages):
        try:
            plan = assemble(Candidate(problem, stages, placed.pipelines, (), layout.weights), placed.orders, name)
        except InputError:
            return
        if check(plan) == []:
            yield plan


def in_turn(orders: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """The same lists, but every stage's ops of a kind come in the order of micro-batches on their device."""
    found = []
    for order in orders:
        batches: dict[tuple[Kind, int], list[int]] = {}
        for op in order:
            batches.setdefault((op.kind, op.stage), []).append(op.micro_batch)
        left = {key: iter(sorted(numbers)) for key, numbers in batches.items()}
        found.append([op._replace(micro_batch=next(left[op.kind, op.stage])) for op in order])
    return found
