"""Plans that need least memory: one micro-batch at a time, each stash kept, recomputed or offloaded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..bounds.layers import Layers
from ..errors import PlanError
from ..lower import assemble
from ..operations import KEEP, OFFLOAD, RECOMPUTE, Candidate
from ..partition.chain import Cuts, cut, lightest
from ..plan import Kind, Op, Pipeline, Plan
from .fit import fits
from .orders.shapes import MOST_CHUNKS, Order, balanced, policies, resized, routes
from .session import Session


def run_sparing(session: Session, order: Order) -> None:
    """Where there is no plan yet, offers the first one that fits: routes with few stages and kept stashes first.

    Each is tried with two micro-batches, which need as much memory as any number, before all are placed.
    """
    for candidate in _candidates(session, order):
        if session.over or session.best is not None:
            return
        few = _plan(session, resized(candidate, min(2, session.problem.workload.micro_batches)))
        if few is None or not fits(few):
            continue
        found = _plan(session, candidate)
        if found is not None:
            session.offer(found, "one in flight")


def _candidates(session: Session, order: Order) -> Iterator[Candidate]:
    batches = tuple(range(session.problem.workload.micro_batches))
    for chunks in range(1, (MOST_CHUNKS if len(order) > 1 else 1) + 1):
        for route in routes(order, chunks):
            for c in _cuts(session, route):
                for policy in (KEEP, *policies(session.problem, session.space)):
                    stages = session.chain.stages(c)
                    yield Candidate(
                        session.problem, stages, (Pipeline(route, route, batches),), ((policy,) * len(stages),)
                    )


def _cuts(session: Session, route: Order) -> list[Cuts]:
    if len(route) > len(session.chain):
        return []
    least = lightest(session.chain, route, [1] * len(route))
    found = [least[0] if least else None, balanced(session.chain, route), cut(session.chain, route, [0] * len(route))]
    return list(dict.fromkeys(c for c in found if c is not None))


def _plan(session: Session, candidate: Candidate) -> Plan | None:
    """One micro-batch after the other through all stages and back; None where the orders do not run."""
    orders: list[list[Op]] = [[] for _ in session.problem.cluster.devices]
    route, policy = candidate.pipelines[0].forward, candidate.stash[0][0]
    for m in candidate.pipelines[0].micro_batches:
        for s, device in enumerate(route):
            orders[device].append(Op(Kind.F, s, m))
            if policy == OFFLOAD:
                orders[device].append(Op(Kind.FREE, s, m))
        for s, device in reversed(list(enumerate(route))):
            if policy == RECOMPUTE:
                orders[device].append(Op(Kind.R, s, m))
            orders[device].append(Op(Kind.B, s, m))
    try:
        return assemble(candidate, orders, "one in flight")
    except PlanError:
        return None


def overfull(session: Session) -> bool:
    """Whether one micro-batch's stashes, all kept at once where the layers are a chain, fit no placement of layers.

    Where stages may have two devices, only all devices together count.
    """
    layers = Layers(session.problem, session.space)
    need = np.sort(layers.static + layers.stash)
    most = np.searchsorted(np.cumsum(need), layers.limits, "right").sum()
    return layers.straight and bool(need.sum() > layers.limits.sum() or (not session.apart and most < len(need)))
