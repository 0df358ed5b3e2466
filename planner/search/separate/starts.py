"""Decisions to begin with: named orders on mirrored and shifted devices, and forwards apart from backwards.

A named order says when its ops run; these times are the keys of the dispatcher, whatever devices its stages get:

    as it is    F 0 1 2 3   B 0 1 2 3        mirrored    F 0 1 2 3   B 3 2 1 0
    shifted     F 0 1 2 3   B 1 2 3 0        apart       F 0 0 1 1   B 3 3 2 2

Where memory is tight the best plans change what becomes of stashes: they begin with their choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ... import graph
from ...graph import Candidate
from ...lower import Assembled
from ...plan import Kind, Plan
from ...simulate import simulate
from ..common import PLACE, SIZE, Order, Session, balanced, lacking, routes
from .case import Stages
from .tables import (
    AHEAD,
    AWAY,
    CAP,
    FRONT,
    HALVES,
    HOST,
    KEEP,
    POLICY,
    QUARTERS,
    REAR,
    RECOMPUTE,
    ROWS,
    TARGET,
    TURNS,
    WINDOW,
    B,
    Case,
    F,
    Floats,
    Ints,
    R,
)

_SPREAD = (0b0000, 0b0001, 0b0101, 0b0111, 0b1111)
"""Turns of so many quarters."""
_CODES = {graph.RECOMPUTE: RECOMPUTE, graph.SELECTIVE: RECOMPUTE, graph.OFFLOAD: HOST, graph.SHIP: AWAY}
"""How decisions say policies; what is made again in part is made again."""
_ROWS = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.W: 2}


@dataclass(frozen=True, eq=False)
class Keys:
    """Stages, the devices of a route through them, and what the ops' keys add to their micro-batches' numbers.

    halves: by stage, whether backwards are split. timed: whether they are the times of an order. stash: its stash
    choices, rows POLICY, TARGET and TURNS of decisions; None where all are kept. rear: backward devices, where these
    are others.
    """

    stages: Stages
    route: Order
    extra: Floats
    halves: Ints
    timed: bool = False
    stash: Ints | None = None
    rear: Order | None = None


def keys(session: Session, orders: list[Order]) -> list[Keys]:
    """The best plans that change what becomes of stashes; named orders with one route that have been simulated, the
    best of a route first; and plain ones for more cuts.
    """
    found: dict[tuple[Order, int], list[Keys]] = {}
    for one in sorted(session.seen, key=_rank):
        candidate = one.candidate
        whole = all(policy == graph.KEEP for row in candidate.stash for policy in row)
        if whole and _one_route(candidate) and len(one.ops) <= SIZE.keyed_ops:
            route = candidate.pipelines[0].forward
            mine = found.setdefault((route, hash(candidate.stages)), [])
            if len(mine) < PLACE.keyed:
                mine.append(_keys_of(one.plan))
    listed = [one for mine in zip(*_padded(list(found.values())), strict=True) for one in mine if one is not None]
    return [*_changed(session), *_plain(session, orders, listed), *listed[: PLACE.keyed_orders]]


def _changed(session: Session) -> list[Keys]:
    """Of the best plans that fit, some that change stashes as decisions can say, or have two devices a stage."""
    fitting = sorted((one for one in session.seen if not lacking(one)), key=_rank)
    listed: list[Plan | Assembled] = [*([] if session.best is None else [session.best]), *fitting]
    found: dict[object, Keys] = {}
    for one in listed:
        plan, ops = (one, sum(map(len, one.orders))) if isinstance(one, Plan) else (one.candidate, len(one.ops))
        if len(found) == PLACE.keyed:
            break
        if not _one_route(plan) or ops > SIZE.keyed_ops:
            continue
        route, stash = plan.pipelines[0], _choices(plan)
        key = plan.stages, route.forward, route.backward, b"" if stash is None else stash.tobytes()
        if key not in found and (stash is not None or route.forward != route.backward):
            found[key] = _keys_of(one if isinstance(one, Plan) else one.plan)
    return list(found.values())


def _one_route(of: Candidate | Plan) -> bool:
    """Whether all pipelines run on the same devices."""
    return len({(p.forward, p.backward) for p in of.pipelines}) == 1


def _padded(lists: list[list[Keys]]) -> list[list[Keys | None]]:
    longest = max(map(len, lists), default=0)
    return [[*mine, *[None] * (longest - len(mine))] for mine in lists]


def _rank(found: Assembled) -> tuple[bool, float]:
    return bool(lacking(found)), found.forecast.step_s


def _keys_of(plan: Plan) -> Keys:
    """The times of a plan's ops in micro-batches' numbers."""
    assert plan.forecast is not None
    batches, step_s = plan.problem.workload.micro_batches, plan.forecast.step_s or 1.0
    extra, count = np.zeros((3, len(plan.stages), batches)), dict[tuple[int, int], int]()
    halves = np.zeros(len(plan.stages), dtype=np.int64)
    timed = [one for device in simulate(plan).devices for one in device.ops if one.op.kind in _ROWS]
    for op, start_s, _ in sorted(timed, key=lambda one: one.start_s):
        row = _ROWS[op.kind]
        k = count.get((row, op.stage), 0)
        count[row, op.stage] = k + 1
        extra[row, op.stage, k] = start_s / step_s * batches - k
        halves[op.stage] |= op.kind is Kind.W
    front, rear = plan.pipelines[0].forward, plan.pipelines[0].backward
    return Keys(plan.stages, front, extra, halves, True, _choices(plan), None if rear == front else rear)


def _choices(plan: Candidate | Plan) -> Ints | None:
    """Its stash choices as decisions say them; None where all are kept, or some cannot be said."""
    rows = {m: row for pipeline, row in zip(plan.pipelines, plan.stash, strict=True) for m in pipeline.micro_batches}
    found = np.zeros((ROWS, len(plan.stages)), dtype=np.int64)
    for s in range(len(plan.stages)):
        changed = {m: row[s] for m, row in rows.items() if row[s] != graph.KEEP}
        names = set(changed.values())
        if len(names) > 1 or not {graph.stash_policy(name).name for name in names} <= set(_CODES):
            return None
        for name in names:
            found[POLICY, s] = _CODES[graph.stash_policy(name).name]
            found[TARGET, s] = graph.ship_target(name) or 0
            found[TURNS, s] = sum({1 << m % QUARTERS for m in changed})
    return found[[POLICY, TARGET, TURNS]] if found[POLICY].any() else None


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


def decisions(given: Keys, case: Case, slots: int, choices: Sequence[int]) -> Iterator[Ints]:
    """Devices for the stages of an order, with caps: `slots` stashes on a device are shared out in several ways.

    Where stages have one device each and more stashes than that are alive, also with each of the stash choices.
    """
    batches, route, devices = given.extra.shape[2], np.array(given.route), len(case.speed)
    half = max(1, slots // 2)
    shares = {(1, 1, 0), (1, max(1, slots - 1), 0), (half, half, 0), (batches, batches, 0), (1, 1, 1)}
    if given.stash is not None or given.rear is not None:
        yield from _as_planned(given)
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


def _as_planned(given: Keys) -> Iterator[Ints]:
    """The decisions of a plan: its devices and stash choices; when what leaves comes back, it does not say."""
    batches, rear = given.extra.shape[2], given.route if given.rear is None else given.rear
    leaves = given.rear is not None or (given.stash is not None and bool(np.isin(given.stash[0], (HOST, AWAY)).any()))
    for ahead in (0, *PLACE.ahead) if leaves else (0,):
        dec = np.zeros((ROWS, len(rear)), dtype=np.int64)
        dec[FRONT], dec[REAR], dec[HALVES] = np.array(given.route), np.array(rear), given.halves
        dec[CAP], dec[WINDOW], dec[AHEAD] = _alive(given), batches, ahead
        if given.stash is not None:
            dec[[POLICY, TARGET, TURNS]] = given.stash
        yield dec


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


def packed(given: Keys, case: Case, choices: Sequence[int], rng: np.random.Generator) -> Iterator[Ints]:
    """Decisions whose devices have about equal work, endless: the longest forwards and backwards first, each on the
    device that is done with it soonest, lengths changed at random.

    Every stage has one of the stash choices, drawn as well; to the host only what it can fetch.
    """
    stages = len(given.stages)
    while True:
        dec = np.zeros((ROWS, stages), dtype=np.int64)
        dec[TURNS], dec[HALVES] = (1 << QUARTERS) - 1, given.halves
        dec[CAP] = dec[WINDOW] = case.batches
        dec[POLICY] = rng.choice(choices, stages)
        back = case.seconds[B] + np.where(dec[POLICY] == RECOMPUTE, case.seconds[R], 0.0)
        work = np.concatenate([case.seconds[F], back])
        load = np.zeros(len(case.speed))
        for job in np.argsort(-work * rng.uniform(1 - PLACE.uneven, 1 + PLACE.uneven, len(work))):
            ends = (load + work[job]) / case.speed * rng.uniform(1, 1 + PLACE.uneven, len(load))
            d = int(ends.argmin())
            load[d] += work[job]
            dec[FRONT if job < stages else REAR, job % stages] = d
        dec[TARGET] = rng.integers(len(load), size=stages)
        dec[POLICY] = np.where(
            (dec[POLICY] == HOST) & (case.node[dec[FRONT]] != case.node[dec[REAR]]), KEEP, dec[POLICY]
        )
        yield dec
