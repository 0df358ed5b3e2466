"""Plans that need least memory: one micro-batch at a time, each stash kept, recomputed or offloaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from ... import bounds
from ...basics import PlanError
from ...bounds import Layers
from ...graph import KEEP, Candidate, stash_policy
from ...lower import assemble
from ...partition import Chain, Cuts, cut, lightest
from ...plan import Kind, Op, Pipeline, Plan, Problem
from ...problem import SearchSpace
from ..common import SIZE, Order, Session, balanced, fits, policies, resized, routes, unaddressed, unknown
from .portfolio import pieces


def run_least_memory(session: Session, order: Order) -> Iterator[None]:
    """Where there is no plan yet, offers the first one that fits: routes with few stages and kept stashes first.

    Each is tried with two micro-batches, which need as much memory as any number, before all are placed; those of which
    no order fits are left out.
    """
    for candidate in _candidates(session, order):
        if session.best is not None:
            return
        yield
        small = resized(candidate, min(2, session.problem.workload.micro_batches))
        if math.isinf(bounds.candidate(small)):
            continue
        two = _plan(session, small)
        if two is None or not fits(two):
            continue
        found = _plan(session, candidate)
        if found is not None:
            session.offer(found, "one in flight")


def _candidates(session: Session, order: Order) -> Iterator[Candidate]:
    """Every route on the cuts that are found at once, then on those that take long to find."""
    batches = tuple(range(session.problem.workload.micro_batches))
    every = [route for n in range(1, SIZE.chunks + 1) for route in routes(order, n)]
    most = len(session.chain) // len(order)
    every += [tuple(d for d in order for _ in range(n)) for n in (*pieces(most), most)]
    every = [route for route in dict.fromkeys(every) if len(route) <= len(session.chain)]
    tried: dict[Order, list[Cuts]] = {route: [] for route in every}
    for cuts in (_cuts_at_once, _balanced):
        for route in every:
            for c in cuts(session.chain, route):
                if c is None or c in tried[route]:
                    continue
                tried[route].append(c)
                for policy in (KEEP, *unaddressed(session.problem, session.space)):
                    stages = session.chain.stages(c)
                    yield Candidate(
                        session.problem, stages, (Pipeline(route, route, batches),), ((policy,) * len(stages),)
                    )


def _cuts_at_once(chain: Chain, route: Order) -> Iterator[Cuts | None]:
    least = lightest(chain, route, [1] * len(route))
    yield None if least is None else least[0]
    yield cut(chain, route, [0] * len(route))


def _balanced(chain: Chain, route: Order) -> Iterator[Cuts | None]:
    yield balanced(chain, route)


def _plan(session: Session, candidate: Candidate) -> Plan | None:
    """One micro-batch after the other through all stages and back; None where the orders do not run."""
    orders: list[list[Op]] = [[] for _ in session.problem.cluster.devices]
    route, policy = candidate.pipelines[0].forward, candidate.stash[0][0]
    for m in candidate.pipelines[0].micro_batches:
        for s, device in enumerate(route):
            orders[device].append(Op(Kind.F, s, m))
            if stash_policy(policy).hosted:
                orders[device].append(Op(Kind.FREE, s, m))
        for s, device in reversed(list(enumerate(route))):
            if stash_policy(policy).remade:
                orders[device].append(Op(Kind.R, s, m))
            orders[device].append(Op(Kind.B, s, m))
    try:
        return assemble(candidate, orders, "search")
    except PlanError:
        return None


def overfull(problem: Problem, space: SearchSpace, kept: bool) -> bool:
    """Whether the layers fit no placement, whatever the order; where they are a chain. `kept`: stashes stay on devices.

    A device holds the parameters of the layers whose backwards it runs, and the stash of a layer while one of these
    runs. If all stashes are kept, all of one micro-batch are alive before its first backward: each on a device of its
    layer, or where stages may have two devices, and ship their stashes, on any.
    """
    layers = Layers(problem, space)
    if not layers.straight:
        return False
    if kept and space.separate_backward and (layers.static + layers.stash).sum() > layers.limits.sum():
        return True
    if len(layers.limits) ** layers.count <= SIZE.packed_placements:
        return not _placeable(problem, layers, kept and not space.separate_backward)
    return not _packs(layers, kept and not space.separate_backward)


def overfull_here(session: Session) -> bool:
    """The same for what a session searches."""
    if unknown(session.problem, session.space):
        return False
    problem, space = session.problem, replace(session.space, separate_backward=session.ships)
    return overfull(problem, space, not policies(problem, session.space))


def _placeable(problem: Problem, layers: Layers, kept: bool) -> bool:
    """Whether some placement of the layers leaves room for their stashes, all at once or one at a time; tries them all.

    Tied layers on one device share one copy.
    """
    chain, devices = Chain.of(problem), range(len(layers.limits))
    places = np.array(list(product(devices, repeat=layers.count)))
    possible = np.ones(len(places), dtype=bool)
    for device in devices:
        here = places == device
        static = here @ layers.light
        for (size, _), tie in zip(chain.copies, chain.costs.ties, strict=True):
            static -= size * np.maximum(here[:, list(tie.stages)].sum(axis=1) - 1, 0)
        stash = here @ layers.stash if kept else (here * layers.stash).max(axis=1)
        possible &= ~here.any(axis=1) | (static + stash <= chain.limit(device))
    return bool(possible.any())


def _packs(layers: Layers, kept: bool) -> bool:
    """Whether layers can be packed into devices; by CP-SAT, and True where that is not decided."""
    whole = layers.static + layers.stash
    if (whole if kept else layers.static).sum() > layers.limits.sum():
        return False
    sizes, counts = np.unique(np.stack([layers.light, layers.stash]), axis=1, return_counts=True)
    if len(counts) > SIZE.packed_sizes or whole.sum() < SIZE.roomy * layers.limits.sum():
        return True
    from ortools.sat.python import cp_model  # loaded when needed

    model = cp_model.CpModel()
    unit = max(
        1, int(layers.limits.max()) >> 30
    )  # sizes rounded down, limits up: what cannot be packed so cannot at all
    static, stash = (sizes // unit).astype(int).tolist()
    placed = [[model.new_int_var(0, int(n), "") for n in counts] for _ in layers.limits]
    for k, n in enumerate(counts):
        model.add(sum(row[k] for row in placed) == int(n))
    for row, limit in zip(placed, layers.limits.tolist(), strict=True):
        room = int(limit // unit) + (unit > 1)
        held = sum(size * x for size, x in zip(static, row, strict=True))
        if kept:
            model.add(held + sum(size * x for size, x in zip(stash, row, strict=True)) <= room)
            continue
        for size, x, n in zip(stash, row, counts, strict=True):
            some = model.new_bool_var("")
            model.add(x <= int(n) * some)
            model.add(held + size * some <= room)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False  # Ctrl-C is for the search
    solver.parameters.max_deterministic_time = SIZE.packing_effort
    solver.parameters.presolve_inclusion_work_limit = 0
    return bool(solver.solve(model) != cp_model.INFEASIBLE)
