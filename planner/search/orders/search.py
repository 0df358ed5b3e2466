"""The order search at scale: structures, a race between them, and a race with few micro-batches first."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from ...graph import OFFLOAD, RECOMPUTE, Candidate
from ..common import (
    ANNEALING,
    COUNT,
    HOPE,
    RACE,
    ROUND,
    SECONDS,
    SHARE,
    SIZE,
    Order,
    Session,
    nearby_cuts,
    policies,
    resized,
    routes,
    structures,
    with_policy,
)
from .arm import Arm, arms_of, bound
from .descent import keep_what_fits
from .known import best_known, on_other_routes, ops_of
from .race import Race
from .ready import KERNELS


def search_orders(session: Session, orders: list[Order], seconds: float, limit: float) -> list[Arm]:
    """Improves session.best by annealing orders of many structures for `seconds`, or `limit` units of effort.

    Every race of a session has random numbers of its own. One that is cut short goes on in the next call: starts that
    get a tenth of a second again and again lead nowhere. Returns the arms that may still be improved, best first.
    """
    if limit < RACE.least_effort or seconds < RACE.least or not KERNELS.ready(session.clock, seconds):
        return []
    end, race, found = time.monotonic() + seconds, session.rounds.paused, list[Arm]()
    if isinstance(race, Race):
        race.join(best_known(session) if session.best is not race.best else [])
        found = _raced(session, race, end)
        if not race.ended:
            return found
    while not session.over and end - time.monotonic() >= RACE.least:
        race = _race(session, orders, end, limit)
        if race is None:
            break
        found = _raced(session, race, end)
        if session.clock.fixed or not race.ended or race.used_s < SECONDS.tick:
            break  # the effort is spent, time is up, or there was nothing to do
    return found


def _raced(session: Session, race: Race, end: float) -> list[Arm]:
    """What a race comes to by `end`; it is kept for the next call where it has not ended."""
    found = race.run(end)
    session.rounds.end_race(found, None if race.ended or session.clock.fixed else race)
    return found


def _race(session: Session, orders: list[Order], end: float, limit: float) -> Race | None:
    """A race of all structures, or of those that did best with few micro-batches; None where there are none."""
    if RECOMPUTE in policies(session.problem, session.space):
        for _ in keep_what_fits(session):
            if session.over:
                return None
    candidates = [c for c in _candidates(session, orders) if ops_of(c) <= SIZE.annealed_ops]
    if not candidates:
        return None
    number, seconds = session.rounds.race(), end - time.monotonic()
    effort = limit if math.isfinite(limit) else seconds * session.workers
    candidates = list(_on_other_cuts(session, candidates, number))
    arms = [
        arm
        for n, candidate in enumerate(candidates)
        for arm in arms_of(candidate, session.space.split_backward, 31 * n + session.seed + 7919 * number)
    ]
    small = _fewer(session, arms)
    if small:
        race = Race(
            session, list(small.values()), SHARE.fewer_first * effort, "order search, few micro-batches", offers=False
        )
        best = race.run(end - (1 - SHARE.fewer_first) * seconds)
        full = {(id(arm.candidate), arm.split, arm.folded): arms[n] for n, arm in small.items()}
        starts = [arm.stretched(full[id(arm.candidate), arm.split, arm.folded]) for arm in best[: RACE.stretched]]
        arms = [arm for arm in starts if arm.order is not None] or arms
        effort *= 1 - SHARE.fewer_first
    arms += [*best_known(session, COUNT.next_best), *on_other_routes(session)]
    arms += [arm for arm in session.rounds.arms if isinstance(arm, Arm)]
    return Race(session, arms, effort, "order search", horizon_s=_horizon_s(session, arms, end - time.monotonic()))


def _horizon_s(session: Session, arms: list[Arm], seconds: float) -> float:
    """How long a race takes that has so many seconds of this call: no longer than its orders can use."""
    least_s = RACE.whole * ROUND.growth ** min(RACE.doublings, session.rounds.races - 1)
    least_s = min(least_s, RACE.of_call * session.clock.call_remaining_s)
    most_s = max(RACE.whole, RACE.an_op * max((arm.ops for arm in arms), default=0))
    return min(most_s, max(seconds, least_s))


def _on_other_cuts(session: Session, candidates: list[Candidate], number: int) -> Iterator[Candidate]:
    """The structures of a race, a few of them also on a cut nearby; of many, every other one, from the second race on.

    Where devices have several stages, many cuts are as even as the best one, and orders differ more than cuts: each
    race has others, the most even first. number: how many races there were.
    """
    few = len(candidates) <= SIZE.two_cuts
    for n, candidate in enumerate(candidates):
        elsewhere = few or (number > 0 and (n + number) % 2 == 1)
        cuts = nearby_cuts(candidate, session.incumbent.aim_s) if elsewhere else []
        if few or not cuts:
            yield candidate
        if cuts:
            yield replace(candidate, stages=cuts[number % len(cuts)])


def _candidates(session: Session, orders: list[Order]) -> Iterator[Candidate]:
    """Structures with stashes kept, and the simpler ones with stashes offloaded."""
    listed = list(structures(session.problem, session.space, session.chain, orders))
    yield from listed
    if OFFLOAD not in policies(session.problem, session.space) or not _tight(session):
        return
    for candidate in listed:
        back_and_forth = routes(orders[0], len(candidate.stages) // len(orders[0]))[0]
        if len(candidate.stages) <= 2 * len(orders[0]) and candidate.pipelines[0].forward == back_and_forth:
            for share in ANNEALING.offloaded:
                yield with_policy(candidate, OFFLOAD, share)


def _tight(session: Session) -> bool:
    """Whether memory may be what holds the step back."""
    return session.best is None or session.best_s > HOPE.held_back * session.bound_s


def _fewer(session: Session, arms: list[Arm]) -> dict[int, Arm]:
    """By number, the arms with fewer micro-batches; empty where that would save little.

    The number left out has many divisors, so that windows of several micro-batches can be repeated.
    """
    batches, devices = session.problem.workload.micro_batches, len(session.problem.cluster)
    spare = batches - 2 * devices
    whole, half = SIZE.repeated, SIZE.repeated // 2
    left_out = spare // whole * whole if spare >= whole else half * (spare >= half)
    if left_out < SIZE.left_out * batches or batches * devices < SIZE.fewer_first:
        return {}
    smaller: dict[int, Candidate] = {}
    return {
        n: Arm(
            smaller.setdefault(id(arm.candidate), resized(arm.candidate, batches - left_out)),
            arm.split, arm.folded, arm.seed,
            bound_s=bound(smaller[id(arm.candidate)], arm.split),
        )
        for n, arm in enumerate(arms)
    }  # fmt: skip
