"""The order search at scale: structures, a race between them, and a race with few micro-batches first."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from ...operations import Candidate
from ...plan import Plan
from ..session import Session
from .arm import Arm, arms_of
from .race import Race
from .ready import ready
from .shapes import Order, policies, resized, structures, with_policy

MOST_OPS = 150_000
"""Ops of an order up to which it is annealed; beyond, the named orders stand."""
SHARES = (1.0, 0.5, 0.25)
"""Shares of a pipeline's stages whose stashes are recomputed or offloaded, in the structures tried first."""


def search_orders(session: Session, orders: list[Order], seconds: float, limit: float) -> None:
    """Improves session.best by annealing orders of many structures for `seconds`, or `limit` units of effort."""
    if not ready(seconds):
        return
    candidates = [c for c in _candidates(session, orders) if _ops(c) <= MOST_OPS]
    if not candidates:
        return
    effort = limit if math.isfinite(limit) else seconds * session.workers
    end = time.monotonic() + seconds
    copies = 2 if len(candidates) <= 16 else 1
    arms = [
        arm
        for n, candidate in enumerate(candidates)
        for arm in arms_of(candidate, session.space.split_backward, 31 * n + session.seed, copies)
    ]
    small = _few(session, arms)
    starts: list[Arm] = []
    if small:
        race = Race(session, small, 0.45 * effort, "order search, few micro-batches", offers=False)
        best = race.run(time.monotonic() + 0.45 * seconds)
        full = {arm.seed: arm for arm in arms}
        starts = [arm.stretched(full[arm.seed].candidate) for arm in best[:6]]
        starts = [arm for arm in starts if arm.order is not None]
        kept = {id(arm.candidate) for arm in starts}
        arms = starts + [arm for arm in arms if id(arm.candidate) in kept or not kept][: 6 if starts else None]
        effort *= 0.55
    for arm in arms:
        _seed(arm, session.best)
    Race(session, arms, effort, "order search").run(end)


def _candidates(session: Session, orders: list[Order]) -> Iterator[Candidate]:
    """Structures with stashes kept, and the simpler ones with other policies."""
    listed = list(structures(session.problem, session.space, session.chain, orders))
    yield from listed
    allowed = policies(session.problem, session.space)
    if not allowed or not _tight(session):
        return
    for candidate in listed:
        if len(candidate.stages) > 2 * len(orders[0]):
            continue
        for policy in allowed:
            for share in SHARES:
                yield with_policy(candidate, policy, share)


def _tight(session: Session) -> bool:
    """Whether memory may be what holds the step back."""
    return session.best is None or session.best_s > 1.02 * session.bound_s


def _ops(candidate: Candidate) -> int:
    return 3 * len(candidate.stages) * candidate.problem.workload.micro_batches


def _few(session: Session, arms: list[Arm]) -> list[Arm]:
    """The arms with fewer micro-batches, where those can be repeated; empty where that would save little."""
    batches, devices = session.problem.workload.micro_batches, len(session.problem.cluster)
    fewer = batches - 24 * ((batches - 2 * devices) // 24) if batches >= 2 * devices + 24 else batches
    if fewer == batches and batches - 12 >= 2 * devices:
        fewer = batches - 12
    if fewer > 0.7 * batches or batches * devices < 200:
        return []
    return [Arm(resized(arm.candidate, fewer), arm.split, arm.folded, arm.seed) for arm in arms]


def _seed(arm: Arm, best: Plan | None) -> None:
    """Starts an arm from the best plan when that has the arm's structure."""
    if best is None or arm.folded:
        return
    same = best.stages == arm.candidate.stages and best.stash == arm.candidate.stash
    if same and best.pipelines == arm.candidate.pipelines:
        arm.seed_with(best.orders)
