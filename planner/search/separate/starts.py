"""Decisions to begin with: named orders on mirrored and shifted devices, and forwards apart from backwards.

A named order says when its ops run; these times are the keys of the dispatcher, whatever devices its stages get:

    as it is    F 0 1 2 3   B 0 1 2 3        mirrored    F 0 1 2 3   B 3 2 1 0
    shifted     F 0 1 2 3   B 1 2 3 0        apart       F 0 0 1 1   B 3 3 2 2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ... import graph
from ...lower import Assembled
from ...plan import Kind
from ...simulate import simulate
from ..common import PLACE, SIZE, Order, Session, balanced, lacking, routes
from .case import Stages
from .tables import (
    AHEAD,
    CAP,
    FRONT,
    HALVES,
    KEEP,
    POLICY,
    QUARTERS,
    REAR,
    ROWS,
    TARGET,
    TURNS,
    WINDOW,
    Floats,
    Ints,
)

_SPREAD = (0b0000, 0b0001, 0b0101, 0b0111, 0b1111)
"""Turns of so many quarters."""
_ROWS = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.W: 2}


@dataclass(frozen=True, eq=False)
class Keys:
    """Stages, the devices of a route through them, and what the ops' keys add to their micro-batches' numbers.

    halves: by stage, whether backwards are split. timed: whether they are the times of an order.
    """

    stages: Stages
    route: Order
    extra: Floats
    halves: Ints
    timed: bool = False


def keys(session: Session, orders: list[Order]) -> list[Keys]:
    """Named orders with one route that have been simulated, the best of a route first; and plain ones for more cuts."""
    found: dict[tuple[Order, int], list[Keys]] = {}
    for one in sorted(session.seen, key=_rank):
        candidate = one.candidate
        forward = {(p.forward, p.backward) for p in candidate.pipelines}
        whole = all(policy == graph.KEEP for row in candidate.stash for policy in row)
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
    return Keys(plan.stages, plan.pipelines[0].forward, extra, halves, timed=True)


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


def decisions(given: Keys, devices: int, slots: int, choices: Sequence[int]) -> Iterator[Ints]:
    """Devices for the stages of an order, with caps: `slots` stashes on a device are shared out in several ways.

    Where stages have one device each and more stashes than that are alive, also with each of the stash choices.
    """
    batches, route = given.extra.shape[2], np.array(given.route)
    half = max(1, slots // 2)
    shares = {(1, 1, 0), (1, max(1, slots - 1), 0), (half, half, 0), (batches, batches, 0), (1, 1, 1)}
    for front, rear in _places(route, devices):
        apart = bool((front != rear).any())
        for cap, window, ahead in sorted(shares) if apart else [(batches, batches, 0)]:
            dec = np.zeros((ROWS, len(route)), dtype=np.int64)
            dec[FRONT], dec[REAR], dec[HALVES] = front, rear, given.halves
            dec[TURNS], dec[AHEAD] = (1 << QUARTERS) - 1, ahead
            dec[CAP], dec[WINDOW] = np.where(front == rear, batches, cap), np.where(front == rear, batches, window)
            yield dec
            if not apart:
                yield from _eased(given, dec, devices, slots, choices)


def _eased(given: Keys, dec: Ints, devices: int, slots: int, choices: Sequence[int]) -> Iterator[Ints]:
    """The decisions with a stash choice for as many micro-batches as a device does not hold, by quarters."""
    alive = _alive(given)
    room = np.maximum(1, slots // np.bincount(dec[FRONT], minlength=devices)[dec[FRONT]])
    quarters = -(-QUARTERS * np.maximum(0, alive - room) // alive)
    for policy in choices:
        for ahead in PLACE.ahead if policy != KEEP and quarters.any() else ():
            eased = dec.copy()
            eased[POLICY] = np.where(quarters > 0, policy, KEEP)
            eased[TARGET], eased[AHEAD] = devices - 1 - dec[FRONT], ahead
            eased[TURNS] = np.array(_SPREAD)[quarters]
            eased[CAP] = alive
            yield eased


def _alive(given: Keys) -> Ints:
    """The most stashes of every stage that are alive at once when ops run at the times that are their keys."""
    batches = given.extra.shape[2]
    numbers = np.arange(batches)
    found = []
    for s in range(len(given.stages)):
        begin, end = np.sort(given.extra[0, s] + numbers), np.sort(given.extra[1, s] + numbers)
        found.append(int((np.arange(1, batches + 1) - np.searchsorted(end, begin)).max()))
    plain = not given.timed
    return np.array([min(batches, len(given.stages) - s) if plain else max(1, n) for s, n in enumerate(found)])


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
