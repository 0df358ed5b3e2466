"""Decisions to begin with: named orders on mirrored and shifted devices, and forwards apart from backwards.

A named order says when its ops run; these times are the keys of the dispatcher, whatever devices its stages get:

    as it is    F 0 1 2 3   B 0 1 2 3        mirrored    F 0 1 2 3   B 3 2 1 0
    shifted     F 0 1 2 3   B 1 2 3 0        apart       F 0 0 1 1   B 3 3 2 2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...graph import KEEP
from ...lower import Assembled
from ...plan import Kind
from ...simulate import simulate
from ..common import PLACE, SIZE, Order, Session, balanced, lacking, routes
from .case import Stages
from .tables import AHEAD, CAP, FRONT, HALVES, QUARTERS, REAR, ROWS, TURNS, WINDOW, Floats, Ints

_ROWS = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.W: 2}


@dataclass(frozen=True, eq=False)
class Keys:
    """Stages, the devices of a route through them, and what the ops' keys add to their micro-batches' numbers.

    halves: by stage, whether backwards are split.
    """

    stages: Stages
    route: Order
    extra: Floats
    halves: Ints


def keys(session: Session, orders: list[Order]) -> list[Keys]:
    """Named orders with one route that have been simulated, the best of a route first; and plain ones for more cuts."""
    found: dict[tuple[Order, int], list[Keys]] = {}
    for one in sorted(session.seen, key=_rank):
        candidate = one.candidate
        forward = {(p.forward, p.backward) for p in candidate.pipelines}
        whole = all(policy == KEEP for row in candidate.stash for policy in row)
        if len(forward) == 1 and whole and len(one.ops) <= SIZE.keyed_ops:
            route = candidate.pipelines[0].forward
            mine = found.setdefault((route, hash(candidate.stages)), [])
            if len(mine) < PLACE.keyed:
                mine.append(_keys_of(one))
    listed = [one for mine in zip(*_padded(list(found.values())), strict=True) for one in mine if one is not None]
    return [*_plain(session, orders, listed), *listed[: PLACE.keyed_orders]]


def _padded(lists: list[list[Keys]]) -> list[list[Keys | None]]:
    longest = max(map(len, lists), default=0)
    return [[*mine, *[None] * (longest - len(mine))] for mine in lists]


def _rank(found: Assembled) -> tuple[bool, float]:
    return bool(lacking(found)), found.forecast.step_s


def _keys_of(found: Assembled) -> Keys:
    """The times of a plan's ops in micro-batches' numbers."""
    plan = found.plan
    batches, step_s = plan.problem.workload.micro_batches, found.forecast.step_s or 1.0
    extra, count = np.zeros((3, len(plan.stages), batches)), dict[tuple[int, int], int]()
    halves = np.zeros(len(plan.stages), dtype=np.int64)
    timed = [one for device in simulate(plan).devices for one in device.ops if one.op.kind in _ROWS]
    for op, start_s, _ in sorted(timed, key=lambda one: one.start_s):
        row = _ROWS[op.kind]
        k = count.get((row, op.stage), 0)
        count[row, op.stage] = k + 1
        extra[row, op.stage, k] = start_s / step_s * batches - k
        halves[op.stage] |= op.kind is Kind.W
    return Keys(plan.stages, plan.pipelines[0].forward, extra, halves)


def _plain(session: Session, orders: list[Order], known: list[Keys]) -> Iterator[Keys]:
    """The oldest micro-batch first, on cuts into one stage a device and into more."""
    taken = list(dict.fromkeys((one.stages, one.route) for one in known))[: PLACE.keyed]
    for order in orders:
        for chunks in PLACE.chunks:
            if chunks == 1 or chunks * len(order) <= len(session.chain):
                route = routes(order, chunks)[0]
                cuts = balanced(session.chain, route)
                if cuts is not None:
                    taken.append((session.chain.stages(cuts), route))
    batches = session.problem.workload.micro_batches
    for stages, route in dict.fromkeys(taken):
        extra = np.zeros((3, len(stages), batches))
        extra[0] += PLACE.behind
        extra[2] += 1.0
        yield Keys(stages, route, extra, np.zeros(len(stages), dtype=np.int64))


def decisions(given: Keys, devices: int, slots: int) -> Iterator[Ints]:
    """Devices for the stages of an order, with caps: `slots` stashes on a device are shared out in several ways."""
    batches, route = given.extra.shape[2], np.array(given.route)
    for front, rear in _places(route, devices):
        apart = bool((front != rear).any())
        half = max(1, slots // 2)
        shares = {(1, 1, 0), (1, max(1, slots - 1), 0), (half, half, 0), (batches, batches, 0), (1, 1, 1)}
        for cap, window, ahead in sorted(shares) if apart else [(batches, batches, 0)]:
            dec = np.zeros((ROWS, len(route)), dtype=np.int64)
            dec[FRONT], dec[REAR], dec[HALVES] = front, rear, given.halves
            dec[TURNS] = (1 << QUARTERS) - 1
            dec[AHEAD] = ahead
            dec[CAP], dec[WINDOW] = np.where(front == rear, batches, cap), np.where(front == rear, batches, window)
            yield dec


def _places(route: Ints, devices: int) -> Iterator[tuple[Ints, Ints]]:
    """Forward and backward devices: as given, mirrored, shifted, and forwards apart from backwards."""
    stages = np.arange(len(route))
    yield route, route
    yield route, devices - 1 - route
    for by in range(1, devices):
        yield route, (route + by) % devices
        front = stages * by // len(route)
        back = stages * (devices - by) // len(route)
        yield front, by + back
        yield front, devices - 1 - back
