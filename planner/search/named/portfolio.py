"""The portfolio: every named schedule and capped 1F1B, each on its best cuts, all simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from ... import bounds
from ...basics import PerCall, PerObject, PlanError, ScheduleError, check_time
from ...graph import KEEP, Candidate, stash_policy
from ...lower import Assembled, assembled
from ...partition import Cuts, lightest
from ...plan import Op, Pipeline, Problem
from ...problem import SearchSpace
from ...schedules import Layout, build, capped, in_pieces, variants, whole_laps
from ..common import COUNT, HOPE, SIZE, Groups, Session, lacking, remaking
from .costed import adapts, made_for, rooms_of
from .finer import longest_sum_s, offer_finer
from .fullest import of_layout
from .halves import not_split, remade, whole_backwards
from .likely_cuts import cuts_for
from .on_groups import on_groups, unordered

Order = tuple[int, ...]


def device_orders(problem: Problem, stages: int) -> list[Order]:
    """Devices for stages 0, 1, ...: the cluster's order; on unequal devices also by speed and by memory."""
    devices = problem.cluster.devices
    given = tuple(range(stages))
    if all(device.kind == devices[0].kind for device in devices):
        return [given]
    by_speed = sorted(range(len(devices)), key=lambda d: -devices[d].kind.speed)
    by_memory = sorted(range(len(devices)), key=lambda d: -devices[d].kind.memory_bytes)
    fastest = tuple(sorted(by_speed[:stages]))
    chosen = (given, fastest, tuple(by_speed[:stages]), tuple(by_memory[:stages]))
    return list(dict.fromkeys(order for found in chosen for order in (found, found[::-1])))


def place(layout: Layout, order: Order, devices: int) -> Layout:
    """The layout with its device d moved to order[d], in a cluster of so many devices. Remembered while it lives."""
    if order == tuple(range(devices)) and len(layout.orders) == devices:
        return layout
    return _moved.get(layout, (order, devices), lambda: _place(layout, order, devices))


_moved: PerObject[Layout] = PerObject()


def _place(layout: Layout, order: Order, devices: int) -> Layout:
    pipelines = tuple(
        Pipeline(tuple(order[d] for d in p.forward), tuple(order[d] for d in p.backward), p.micro_batches)
        for p in layout.pipelines
    )
    orders: list[tuple[Op, ...]] = [()] * devices
    for d, listed in enumerate(layout.orders):
        orders[order[d]] = listed
    return replace(layout, pipelines=pipelines, orders=tuple(orders))


# ------------------------------------------------------------------ simulation


class Tried(NamedTuple):
    """How many plans were simulated, and the least step of those that fit, in seconds; infinite without."""

    simulated: int
    step_s: float


def try_layout(
    session: Session, layout: Layout, cuts: Iterable[Cuts], phase: str, policy: str = KEEP, groups: Groups = ()
) -> Tried:
    """Simulates a placed layout on these cuts and offers what fits; cuts whose bound is no better are left out.

    `policy`: "keep", or one that makes stashes again. `groups`: equal ones, of whose first the layout is, and which all
    run it.
    """
    simulated, least_s = 0, math.inf
    routes = on_groups(session.problem, groups, unordered(layout)).pipelines if groups else layout.pipelines
    rows = tuple((policy,) * layout.stages for _ in routes)
    shares = tuple(len(route.micro_batches) for route in routes)
    adapting = policy == KEEP and adapts(layout)
    for c in cuts:
        if session.done:
            break
        check_time()
        candidate = Candidate(session.problem, session.chain.stages(c), routes, rows)
        if busiest_s(candidate) >= session.incumbent.worth_s:
            continue
        asked = not session.seen or session.space.schedule != "search"
        if not (asked or layout.takes_all_room or holds(candidate, layout, policy, not adapting, groups)):
            continue
        if session.space.schedule != "search" and session.rounds.tried_before(layout.name, routes, c, policy):
            continue
        saved_s = _saved_s(session, candidate, groups)
        if bounds.candidate(candidate, shares, session.space.split_backward) >= session.best_s + saved_s:
            continue
        for found in _ordered(session, candidate, layout, policy, groups, asked, saved_s):
            simulated += 1
            session.remember(found)
            if lacking(found):
                continue
            least_s = min(least_s, found.forecast.step_s)
            near = saved_s > 0 and found.forecast.step_s < session.best_s + saved_s
            session.offer(found.plan, phase)
            if near:
                offer_finer(session, found.plan, 2)
    return Tried(simulated, least_s)


def _saved_s(session: Session, candidate: Candidate, groups: Groups) -> float:
    """Seconds by which a plan on equal groups, or on one of them, may be shorter with its stages in halves: its sums
    are then beside its backwards.
    """
    if session.space.schedule != "search" or not (groups or candidate.problem.workload.groups > 1):
        return 0.0
    return HOPE.finer * longest_sum_s(candidate)


def _ordered(
    session: Session,
    candidate: Candidate,
    layout: Layout,
    policy: str,
    groups: Groups,
    asked: bool,
    saved_s: float,
) -> Iterator[Assembled]:
    """A candidate under orders made for it where these depend on costs, and under the layout's own.

    Those too where replicas share links, of which orders made for costs know nothing. `saved_s`: by which they may be
    shorter later on.
    """
    whole, found = not_split(session.space, candidate), None
    if policy == KEEP and adapts(layout):
        blocks = session.space.schedule != "search" or layout.takes_all_room
        with session.clock.simulating():
            found = made_for(candidate, layout, whole, groups, blocks, session.incumbent.worth_s + saved_s)
        if found is not None:
            yield found
        own = groups and not layout.takes_all_room and holds(candidate, layout, policy, groups=groups)
        if not (own or (asked and found is None)):
            return
    with session.clock.simulating():
        found = as_named(candidate, layout, whole, policy, groups)
    if found is not None:
        yield found


def as_named(
    candidate: Candidate, layout: Layout, whole: frozenset[int], policy: str, groups: Groups = ()
) -> Assembled | None:
    """A layout's own orders on a candidate, backwards of the stages `whole` not split; None where they do not run."""
    layout = on_groups(candidate.problem, groups, layout) if groups else layout
    orders = [whole_backwards(order, whole) for order in layout.orders]
    try:
        return assembled(candidate, list(map(remade, orders)) if stash_policy(policy).remade else orders, layout.name)
    except PlanError:
        return None


def holds(candidate: Candidate, layout: Layout, policy: str, later: bool = True, groups: Groups = ()) -> bool:
    """Whether every device has room for the stashes of a layout when most are alive; necessary, and cheap.

    `later`: with what waits for its W. `groups`: equal ones, of whose first the layout is.
    """
    costs, whole = candidate.costs, not_split(SearchSpace(), candidate)
    left = stash_policy(policy).held_bytes(costs)[0][2]
    kept = np.minimum(left, costs.stash_bytes)
    waits = [later and s not in whole for s in range(layout.stages)]
    pending = np.where(waits, costs.weight_stash_bytes, 0)
    rooms = rooms_of(candidate, groups)
    for room, device in zip(rooms, of_layout(layout), strict=True):
        stages = [s for _, s in device.units]
        if stages and device.bytes(kept[stages], pending[stages]) > room:
            return False
    return True


def busiest_s(candidate: Candidate) -> float:
    """Seconds of the forwards and backwards of the busiest device."""
    costs, devices = candidate.costs, candidate.problem.cluster.devices
    work = (costs.forward_s + costs.backward_s).tolist()
    found = [0.0] * len(devices)
    for pipeline in candidate.pipelines:
        for s, device in enumerate(pipeline.forward):
            found[device] += len(pipeline.micro_batches) * work[s] / devices[device].kind.speed
    return max(found)


def named_layouts(space: SearchSpace, devices: int, micro_batches: int, layers: int) -> Iterator[Layout]:
    """The variants of the named schedule, or of all when the space is searched.

    A named schedule brings its own number of pipelines; a limit above it allows its variants with more.

    Raises ScheduleError when the named schedule does not exist for these numbers.
    """
    name, most = space.schedule, space.pipelines
    if name == "search":
        for _, layout in variants(devices, micro_batches, layers if devices > 1 else 1):
            check_time()
            if most is None or len(layout.pipelines) <= most:
                yield layout
        return
    numbers = devices, micro_batches, layers
    yield from _layouts.get(variants, (name, most, *numbers), lambda: _of_name(space, *numbers))


def relievable(space: SearchSpace, devices: int, micro_batches: int, layers: int) -> Iterator[Layout]:
    """The same, of which some stashes do not stay: then also stages in pieces, whose backwards need less at a time."""
    yield from named_layouts(space, devices, micro_batches, layers)
    if space.schedule == "search":
        whole = whole_laps(devices, micro_batches, 1)
        yield from (in_pieces(whole, count) for count in pieces(layers // devices))


def pieces(most: int) -> Iterator[int]:
    """Numbers of pieces of a stage, the most that are tried among them."""
    return iter(sorted({*depths(most), min(most, COUNT.deepest)} - {0, 1}))


def depths(most: int) -> Iterator[int]:
    """Stages a device, or pieces of a stage: all small numbers, then each a quarter more."""
    depth = 1
    while depth <= min(most, COUNT.deepest):
        yield depth
        depth = max(depth + 1, depth * 5 // 4)


_layouts: PerCall[list[Layout]] = PerCall()


def _of_name(space: SearchSpace, devices: int, micro_batches: int, layers: int) -> list[Layout]:
    """Of one named schedule."""
    name, most, mine = space.schedule, space.pipelines, list[Layout]()
    for _, layout in variants(devices, micro_batches, layers, name):
        check_time()
        mine.append(layout)
    own = min((len(x.pipelines) for x in mine), default=1)
    allowed = [x for x in mine if len(x.pipelines) <= (own if most is None else max(own, most))]
    if not allowed:
        allowed = [build(name, devices, micro_batches)]
        if most is None and allowed[0].stages > layers:
            where = f"{devices} device{'' if devices == 1 else 's'}"
            raise ScheduleError(f"{name} has {allowed[0].stages} stages on {where}, there are {layers} layers to cut")
    return allowed


def run_remade(session: Session, order: Order) -> Iterator[None]:
    """The named schedules with every stash recomputed, where memory may be what holds the step back."""
    batches = session.problem.workload.micro_batches
    again = remaking(session.problem, session.space)
    if not again or session.best_s <= HOPE.held_back * session.bound_s:
        return
    simulated = 0
    for layout in relievable(session.space, len(order), batches, len(session.chain)):
        count = 2 * batches * layout.stages
        placed = place(layout, order, len(session.problem.cluster))
        for policy in again:
            if session.proven or simulated + count > SIZE.remade_ops:
                return
            simulated += count
            tried = islice(cuts_for(session, placed, 0), 1 if count > SIZE.one_cut else 2)
            try_layout(session, placed, tried, layout.name, policy)
            yield


def run_named(session: Session, order: Order) -> Iterator[None]:
    """Every named schedule of the space with its stages on these devices, on one cut each."""
    for placed, cuts in _placed(session, order):
        if session.proven:
            return
        try_layout(session, placed, islice(cuts, 1), placed.name)
        yield


def run_other_cuts(session: Session, order: Order) -> Iterator[None]:
    """The same on their other cuts; of large problems, only as long as there is no plan."""
    for placed, cuts in _placed(session, order):
        if session.proven:
            return
        if session.best is None or 2 * session.problem.workload.micro_batches * placed.stages <= SIZE.one_cut:
            for one in islice(cuts, 1, None):
                try_layout(session, placed, [one], placed.name)
                yield


def _placed(session: Session, order: Order) -> Iterator[tuple[Layout, Iterator[Cuts]]]:
    """Named schedules of the space on these devices, and their cuts; of large ones no more than their first cuts is
    kept.
    """
    count, batches = len(order), session.problem.workload.micro_batches
    routed: dict[tuple[Pipeline, ...], list[Iterable[Cuts]]] = {}
    for layout in named_layouts(session.space, count, batches, len(session.chain)):
        if layout.stages <= len(session.chain):
            placed = place(layout, order, len(session.problem.cluster))
            large = 2 * batches * layout.stages > SIZE.one_cut
            cuts = cuts_for(session, placed, 0 if large else SIZE.listed_cuts)
            alike, first = routed.setdefault(placed.pipelines, []), list[Cuts]()
            alike.append(first if large else _FirstCut(session, placed))
            cuts = _noted(cuts, first)
            yield placed, _with_cuts_of(alike, cuts) if placed.takes_all_room else cuts


@dataclass(frozen=True)
class _FirstCut:
    """The cut that suits what a layout holds, made when it is asked for."""

    session: Session
    layout: Layout

    def __iter__(self) -> Iterator[Cuts]:
        return islice(cuts_for(self.session, self.layout, 0), 1)


def _noted(cuts: Iterator[Cuts], first: list[Cuts]) -> Iterator[Cuts]:
    """The cuts; the first one is added to a list."""
    for one in cuts:
        if not first:
            first.append(one)
        yield one


def _with_cuts_of(alike: Iterable[Iterable[Cuts]], cuts: Iterator[Cuts]) -> Iterator[Cuts]:
    """The cuts, and after the first one those that suit what layouts of the same routes hold; each once."""
    others = chain.from_iterable(alike)
    seen: set[Cuts] = set()
    for one in chain(islice(cuts, 1), others, cuts):
        if one not in seen:
            seen.add(one)
            yield one


def caps(stages: int, large: bool) -> list[int]:
    """Caps on micro-batches in flight, from one below 1F1B's down to one; geometric for large problems."""
    if not large and stages <= SIZE.every_cap:
        return list(range(stages - 1, 0, -1))
    found = [stages - 1]
    while found[-1] > 1:
        found.append(max(1, found[-1] * 2 // 3))
    return [k for k in found if k >= 1]


def run_capped(session: Session, order: Order) -> Iterator[None]:
    """1F1B with fewer micro-batches in flight: a tight but feasible memory limit gets a plan down to one.

    Large problems, which begin with it, start with 1F1B itself and stop at the first cap that fits: with less memory
    comes more waiting.
    """
    count, batches = len(order), session.problem.workload.micro_batches
    large = 2 * batches * count > SIZE.one_cut
    for most in [*([count] if large else []), *caps(count, large)]:
        if session.proven or (large and session.best is not None):
            return
        layout = capped(count, batches, most)
        placed = place(layout, order, len(session.problem.cluster))
        cuts = cuts_for(session, placed, 0 if large else SIZE.listed_cuts)
        try_layout(session, placed, cuts, layout.name)
        yield


def run_at_once(session: Session, order: Order) -> Iterator[None]:
    """1F1B on the cut that suits it best, as a first answer."""
    layout = capped(len(order), session.problem.workload.micro_batches, len(order))
    placed = place(layout, order, len(session.problem.cluster))
    try_layout(session, placed, islice(cuts_for(session, placed, 0), 1), layout.name)
    yield


def run_lightest(session: Session, order: Order) -> Iterator[None]:
    """One micro-batch at a time on the lightest cut: the plan that needs least memory, as a first answer."""
    layout = capped(len(order), session.problem.workload.micro_batches, 1)
    found = lightest(session.chain, order, [1] * len(order))
    if found is not None:
        placed = place(layout, order, len(session.problem.cluster))
        try_layout(session, placed, [found[0]], "one in flight")
    yield
