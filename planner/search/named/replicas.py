"""Replicas of single stages: consecutive stages with different numbers of devices, micro-batches dealt out round robin.

The stages are those of PipeDream's recursion (partition/replicated.py) for every number of stages; orders are listed on
the stages' own times, backwards whole or in halves. Equal groups of devices are one case; `widths.py` searches that one
more closely.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from ... import bounds
from ...basics import OutOfTime, PlanError, check_time, until
from ...graph import KEEP, Candidate
from ...lower import Assembled
from ...partition import Blocks, Floats, OnBlocks, choices, cut_replicated, deal, in_flight
from ...plan import Pipeline, Problem
from ...problem import SearchSpace
from ..common import COUNT, HOPE, SHARE, SIZE, Session, missing, unaddressed
from .fitted import assembled_with
from .halves import not_split
from .listed import listed
from .portfolio import Order, busiest_s, device_orders
from .stash_choices import lightened, with_choices

PHASE = "replicas of stages"


def run_replicas(session: Session) -> None:
    """Stages with replicas of their own on the devices in every order, what is expected to be shortest first.

    Called again, it goes on where it ended for lack of time.
    """
    if session.done or session.rounds.tried or not replicable(session.problem, session.space):
        return
    with suppress(OutOfTime), session.part(session, SHARE.spreads, 0.0), until(session.clock.deadline):
        _go_on(session)
    check_time()


def _go_on(session: Session) -> None:
    listing = session.rounds.goes_on(PHASE, lambda: _Listing(session))
    assert isinstance(listing, _Listing)
    for tried in session.rounds.to_try(lambda: list(_tries(session, listing.all(session)))):
        tried()
        if session.done:
            return


class _Listing:
    """Spreads of every menu on every order of devices; where time ends it goes on with those it was at."""

    def __init__(self, session: Session) -> None:
        self._left = [*product(_menus(session), device_rounds(session.problem))][::-1]
        self._found: dict[tuple[str, ...], list[Spread]] = {}

    def all(self, session: Session) -> list[Spread]:
        """The most promising of every menu, each once, the most promising of all first."""
        while self._left:
            menu, order = self._left[-1]
            self._found.setdefault(menu, []).extend([*spreads(session, order, menu)])
            self._left.pop()
        found: dict[tuple[Blocks, Order], Spread] = {}
        for every in self._found.values():
            for one in sorted(every, key=lambda one: one.expected_s)[: COUNT.spreads]:
                found.setdefault((one.blocks, one.order), one)
        return sorted(found.values(), key=lambda one: one.expected_s)


def _tries(session: Session, likely: Sequence[Spread]) -> Iterator[Callable[[], None]]:
    """What is still to be tried, what promises most first: a spread's next way a little less than the one before."""
    listed = [
        (spread.expected_s * HOPE.next_way**k, partial(try_spread, session, spread, *way))
        for spread in likely
        for k, way in enumerate(_ways(session, spread))
    ]
    return (tried for _, tried in sorted(listed, key=lambda one: one[0]))


def _menus(session: Session) -> Iterator[tuple[str, ...]]:
    """What stashes may become, beside being kept: all that is allowed, and parts of it down to nothing.

    What the recursion expects of recomputing and copying is a guess, and its best stages with them may be worse than
    its best ones without.
    """
    allowed = unaddressed(session.problem, session.space)
    for count in range(len(allowed), -1, -1):
        yield from combinations(allowed, count)


def replicable(problem: Problem, space: SearchSpace) -> bool:
    """Whether a space has plans in which some stage has replicas of its own."""
    routes = space.pipelines is None or space.pipelines > 1
    several = min(len(problem.cluster), problem.workload.micro_batches) > 1
    return space.schedule == "search" and space.replicas is None and routes and several


def device_rounds(problem: Problem) -> list[Order]:
    """Devices in the orders in which neighbours are replicas: those of stages, and node by node in turns."""
    devices = problem.cluster.devices
    found = device_orders(problem, len(devices))
    inside: dict[int, int] = {}
    turn = [inside.setdefault(d.node, 0) or 0 for d in devices]
    for d in devices:
        turn[d.index] = inside[d.node]
        inside[d.node] += 1
    found += [tuple(sorted(order, key=lambda d: turn[d])) for order in found]
    return list(dict.fromkeys(found))


def widths_of(devices: int, most: int, routes: int | None) -> Iterator[list[int]]:
    """Numbers of replicas to choose from: all, or a few where there are many; with so many routes at most, divisors.

    Every stage's number divides the number of routes.
    """
    most = min(most, devices)
    if routes is not None and routes < devices:
        for number in range(min(routes, most), 1, -1)[: COUNT.route_numbers]:
            yield [w for w in range(1, number + 1) if number % w == 0]
        return
    every = list(range(1, most + 1))
    if most > SIZE.every_width:
        steps = np.unique(np.geomspace(1, most, SIZE.every_width).astype(int)).tolist()
        every = sorted({*steps, most, devices // 2, devices - 1} & set(every))
    yield every


@dataclass(frozen=True)
class Spread:
    """Stages on blocks of an order of devices, and what a step of theirs is expected to take.

    flights: of every stage the number in flight on a replica with which it is expected to take least.
    """

    problem: Problem
    stages: tuple[tuple[str, ...], ...]
    blocks: Blocks
    order: Order
    flights: tuple[int, ...]
    expected_s: float
    _least: dict[tuple[bool, bool], float] = field(default_factory=dict)

    @cached_property
    def candidate(self) -> Candidate:
        """The candidate with every stash kept."""
        dealt = deal(self.blocks, self.order, self.problem.workload.micro_batches)
        pipelines = tuple(Pipeline(devices, devices, tuple(ms)) for devices, ms in dealt.items())
        return Candidate(self.problem, self.stages, pipelines)

    def least_s(self, split: bool, kept: bool) -> float:
        """No order of the candidate takes less; kept: where every stash is, else whatever becomes of them."""
        if (split, kept) not in self._least:
            shares = tuple(len(pipeline.micro_batches) for pipeline in self.candidate.pipelines)
            least_s = bounds.candidate if kept else bounds.whatever_stashes
            self._least[split, kept] = least_s(self.candidate, shares, split)
        return self._least[split, kept]

    @property
    def name(self) -> str:
        """In words, for those who ask what was looked at."""
        return f"stages with {'-'.join(str(block.width) for block in self.blocks)} replicas"


def spreads(session: Session, order: Order, menu: Collection[str]) -> Iterator[Spread]:
    """The best stages of every number of them, with as many in flight as fit where stashes are kept or as `menu`."""
    problem, chain = session.problem, session.chain
    on = OnBlocks(chain, order)
    batches, devices = problem.workload.micro_batches, len(order)
    options = [c for c in choices((KEEP, *menu)) if c.share in (0, 1)]
    size = len(chain) + 1
    path_s = float(on.forward_s[0, -1] + on.backward_s[0, -1]) / max(chain.speed(d) for d in order)
    nothing = np.zeros_like(on.own_bytes)
    flights: dict[tuple[int, int], NDArray[np.int64]] = {}

    def table(at: int, width: int) -> Floats:
        turns = -(-batches // width)
        after = on.reduce_s(at, width) + on.step_s(at, width) - on.backward_s[0][:, None] / on.speed(at, width)
        best = np.full_like(on.own_bytes, np.inf)
        flights[at, width] = np.ones(best.shape, dtype=np.int64)
        for flying in reversed(on.numbers_in_flight(at, width, turns)):
            busy = on.busy_s(at, width, flying, options, nothing)
            finite = np.maximum(np.where(np.isfinite(busy), busy, 0.0), on.links_s(at, width))
            seconds = (turns - 1) * np.maximum(finite, on.stay_s() / flying) + np.maximum(after, 0.0)
            seconds = np.where(np.isfinite(busy), seconds, np.inf)
            flights[at, width][seconds < best] = flying
            best = np.minimum(best, seconds)
        return best

    for widths in widths_of(devices, batches, session.space.pipelines):
        most = most_stages(size, devices, len(widths))
        for cost, blocks in cut_replicated(table, size, devices, widths, most).values():
            if any(block.width > 1 for block in blocks):
                names = chain.stages(tuple(block.first for block in blocks[1:]))
                flying = tuple(int(flights[b.at, b.width][b.first, b.end]) for b in blocks)
                yield Spread(problem, names, blocks, order, flying, path_s + cost)


def most_stages(size: int, devices: int, widths: int) -> int:
    """Stages up to which the recursion is affordable."""
    return max(2, int(SIZE.recursion / (size * size * devices * widths)))


def try_spread(session: Session, spread: Spread, most: Sequence[int], split: Sequence[bool]) -> None:
    """Simulates a spread's order with so many micro-batches in flight, made to fit; offers what is shorter."""
    candidate = spread.candidate
    ops = 2 * session.problem.workload.micro_batches * len(candidate.stages)
    if ops > SIZE.listed_ops or spread.expected_s > HOPE.spread * session.best_s:
        return
    if busiest_s(candidate) >= session.incumbent.worth_s:
        return
    kept = not unaddressed(session.problem, session.space)
    least_s = spread.least_s(session.space.split_backward, kept)
    step_s = _tried(session, spread, most, split) if least_s < session.best_s else None
    session.ledger.note(spread.name, least_s, step_s)


def _ways(session: Session, spread: Spread) -> Iterator[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Numbers in flight and which backwards are split: as the recursion has them, as many as keep all busy, more, and
    fewer where memory binds."""
    whole = not_split(session.space, spread.candidate)
    stages = range(len(spread.blocks))
    full = in_flight(spread.blocks)
    turns = [-(-session.problem.workload.micro_batches // block.width) for block in spread.blocks]
    halves = [s not in whole for s in stages]
    less = [[-(-n * part // 4) for n in full] for part in (3, 2)]
    numbers = [spread.flights, full, [2 * n for n in full], turns, [n + 1 for n in full], *less, [1 for _ in full]]
    capped = [tuple(min(n, most) for n, most in zip(flights, turns, strict=True)) for flights in numbers]
    for flights in dict.fromkeys(capped):
        for split in dict.fromkeys((tuple(halves), (False,) * len(halves))):
            yield flights, split


def _tried(session: Session, spread: Spread, most: Sequence[int], split: Sequence[bool]) -> float | None:
    """The step of the spread's plan under one way, offered where it is the shortest; None where it does not fit."""
    allowed = unaddressed(session.problem, session.space)
    less = [0] * len(session.problem.cluster)
    for _ in range(COUNT.fitted if allowed else 1):
        check_time()
        found = _made(session, spread, most, split, allowed, less)
        if found is None:
            return None
        over = missing(found)
        if not any(over):
            if found.forecast.step_s < session.best_s:
                session.offer(found.plan, PHASE)
            return found.forecast.step_s
        less = [a + b for a, b in zip(less, over, strict=True)]
    return None


def _made(
    session: Session,
    spread: Spread,
    most: Sequence[int],
    split: Sequence[bool],
    allowed: Collection[str],
    less: Sequence[int],
) -> Assembled | None:
    """The plan with the cheapest stash choices that fit; None where there are none."""
    candidate = spread.candidate
    lists = listed(candidate, most, split)
    if allowed:
        chosen = lightened(candidate, lists, allowed, less, session.incumbent.worth_s)
        if chosen is None or chosen[1] >= session.incumbent.worth_s:
            return None
        candidate = with_choices(candidate, chosen[0])
    try:
        with session.clock.simulating():
            return assembled_with(session, candidate, lists, "search", less)
    except PlanError:
        return None
