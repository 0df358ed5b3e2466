"""After the named schedules: exact search, order search at scale, and windows, each with its share of the effort."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from .. import bounds
from ..basics import OutOfTime, PlanError, until
from ..graph import KEEP, RECOMPUTE, SELECTIVE, Candidate
from ..lower import assemble
from ..plan import Op, Plan
from .common import BLOCK, COUNT, FLOW, HOPE, ROUND, SECONDS, SHARE, SIZE, TOLERANCE, Budget, PhaseShares, Session
from .exact import Effort, Hunt
from .exact import improve as improve_window
from .flow import Flows
from .named import Order, move_ends, own_orders, run_finer
from .orders import Arm, search_cuts, search_orders
from .periodic import Blocks
from .separate import search_separate


def improve(session: Session, orders: list[Order]) -> None:
    """Improves session.best until nothing searched can be better, or time or effort is used up."""
    hunt = session.rounds.hunts(lambda: Hunt(session, orders))
    assert isinstance(hunt, Hunt)
    session.report("exact search")
    try:
        if session.clock.fixed:
            _round(session, orders, hunt, session.clock.deadline)
            run_finer(session)
            move_ends(session)
        else:
            _rounds(session, orders, hunt)
    finally:
        hunt.note()


def _rounds(session: Session, orders: list[Order], hunt: Hunt) -> None:
    """Rounds that last longer and longer, with other random numbers, while there is time."""
    seconds = max(ROUND.seconds, ROUND.simulations * session.clock.longest_s)
    until = session.clock.deadline
    while not _done(session):
        before = session.remaining_s
        with session.clock.hurried(min(1.0, seconds / before)):
            _round(session, orders, hunt, until)
            run_finer(session)
            move_ends(session)
        if session.remaining_s > before - SECONDS.no_progress and _ends(session, hunt):
            hunt.run(session.remaining_s, until)
        if session.remaining_s > before - SECONDS.no_progress:
            return
        seconds *= ROUND.growth


def _round(session: Session, orders: list[Order], hunt: Hunt, until: float) -> None:
    """Each part gets its share of the round's time or effort; only exact search may take longer than the round."""
    small = hunt.ops <= SIZE.exact_first and (hunt.complete or session.two_devices)
    share = (SHARE.small if small else SHARE.medium) if hunt.solvable else SHARE.large
    exact, annealing, windows = share.exact, share.annealing, share.windows
    clock, fixed = session.clock, session.clock.fixed
    whole = clock.remaining_s if clock.effort is None else clock.effort
    turn = 0 if fixed else session.rounds.turn()
    if turn:
        _in_turn(session, orders, hunt, until, share, turn)
        return
    hunt.run(exact * whole, until, together_first=True)
    if session.separate and not session.done:
        _place(session, orders, exact)
    if _only_two_devices(session) and not _done(session):  # races and windows know one device a stage
        if _reordered(session):
            _race(session, orders, share, 1.0)
        hunt.run((1 - exact) * whole * (1.0 if fixed else SHARE.exact_again), until)
        search_separate(session, orders, session.clock.budget(1.0))
        return
    if not _done(session):
        _race(session, orders, share, 1 - exact)
    if not _done(session):
        hunt.run((1 - exact - annealing - windows) * whole, until)


def _race(
    session: Session, orders: list[Order], share: PhaseShares, left: float, cuts: float = SHARE.first_cuts
) -> None:
    """Annealing and windows; `left`: the share of the round that is left for them and what follows.

    cuts: of the annealing, the share of walks over cuts.
    """
    clock = session.clock
    whole = 1.0 if clock.fixed else left
    budget = clock.budget((1 - cuts) * share.annealing / whole)
    arms = search_orders(session, orders, budget.deadline - time.monotonic(), budget.effort)
    whole -= 0 if clock.fixed else (1 - cuts) * share.annealing
    if cuts and not _done(session):
        search_cuts(session, clock.budget(cuts * share.annealing / whole))
    whole -= 0 if clock.fixed else cuts * share.annealing
    _polish(session, _entries(session, arms), clock.budget(share.windows / whole))


@dataclass(frozen=True)
class _Part:
    """A part of a round: its name, its share of the round, and how it is run."""

    name: str
    share: float
    run: Callable[[], None]


def _in_turn(session: Session, orders: list[Order], hunt: Hunt, until: float, share: PhaseShares, turn: int) -> None:
    """The same parts in another order, time alone being short: what comes first may take all of a short round.

    What had its time and found nothing gets less in the next round, where others may find more.
    """
    parts = _parts(session, orders, hunt, until, share)
    first = turn % len(parts)
    parts = parts[first:] + parts[:first]
    for n, part in enumerate(parts):
        left = sum(other.share for other in parts[n:])
        if not _done(session) and part.share > 0:
            before_s, began = session.best_s, time.monotonic()
            with session.clock.hurried(part.share / left):
                part.run()
            found = session.best_s < before_s * (1 - TOLERANCE.same)
            if found or time.monotonic() - began >= SECONDS.tried:
                session.rounds.credit(part.name, found)


def _parts(session: Session, orders: list[Order], hunt: Hunt, until: float, share: PhaseShares) -> list[_Part]:
    """The parts of a round, with their shares."""
    clock = session.clock
    raced = share.annealing + share.windows
    most = clock.remaining_s * (1.0 if _ends(session, hunt) else 1 - raced)
    parts = [
        _Part("exact search", 1 - raced, lambda: hunt.run(min(most, clock.remaining_s), until, together_first=True))
    ]
    if session.separate:
        mine = SHARE.two_devices * (1 - share.exact)
        parts.append(_Part("two devices", mine, lambda: search_separate(session, orders, clock.budget(1.0))))
    if not _only_two_devices(session) or _reordered(session):
        parts.append(_Part("race", raced, lambda: _race(session, orders, share, raced, cuts=0.0)))
        parts.append(_Part("cuts", SHARE.cuts, lambda: search_cuts(session, clock.budget(1.0))))
    for name, begun in session.rounds.begun.items():
        if isinstance(begun, Blocks | Flows) and begun.promising:
            parts.append(_Part(name, BLOCK.again if isinstance(begun, Blocks) else FLOW.in_rounds, begun.run))
    return [replace(part, share=part.share * session.rounds.credits.get(part.name, 1.0)) for part in parts]


def _ends(session: Session, hunt: Hunt) -> bool:
    """Whether what others leave of the time is the exact search's: it may end, or nobody else has a use for it."""
    return hunt.complete or session.clock.last


def _done(session: Session) -> bool:
    return session.done or (session.proof.hopeless and not session.separate)


def _only_two_devices(session: Session) -> bool:
    """Whether nothing but plans with two devices a stage can still be shorter, or fit."""
    return session.only_two_devices or (session.proof.hopeless and session.separate)


def _reordered(session: Session) -> bool:
    """Whether orders of the best plan may be shorter although none of the shapes searched is: where its stages have
    replicas each in its own number, bounds of shapes do not speak of it.
    """
    plan = session.best
    if plan is None or any(pipeline.forward != pipeline.backward for pipeline in plan.pipelines):
        return False
    if len({len({pipeline.forward[s] for pipeline in plan.pipelines}) for s in range(len(plan.stages))}) == 1:
        return False
    candidate = Candidate(session.problem, plan.stages, plan.pipelines, plan.stash)
    least_s = bounds.candidate(candidate, None, session.space.split_backward)
    return least_s < session.incumbent.aim_s * (1 - TOLERANCE.same)


def _place(session: Session, orders: list[Order], exact: float) -> None:
    """Forward and backward devices at any size, with a share of what the first exact search left."""
    share = SHARE.only_two_devices if _only_two_devices(session) else SHARE.two_devices
    clock = session.clock
    search_separate(session, orders, clock.budget(share * (1 - exact) if clock.fixed else share))
    clock.spend(share)


# ------------------------------------------------------------------ windows


@dataclass
class Polished:
    """An order under improvement by windows; no order of its candidate takes less than bound_s."""

    candidate: Candidate
    orders: list[list[Op]] | tuple[tuple[Op, ...], ...]
    step_s: float
    bound_s: float


def _entry(session: Session, candidate: Candidate, orders: list[list[Op]], step_s: float) -> list[Polished]:
    """The order as an entry, where windows can handle it."""
    policies = {policy for row in candidate.stash for policy in row}
    separate = any(pipeline.forward != pipeline.backward for pipeline in candidate.pipelines)
    if sum(map(len, orders)) > SIZE.window_plan_ops or not policies <= {KEEP, RECOMPUTE, SELECTIVE} or separate:
        return []
    bound_s = bounds.candidate(candidate, None, session.space.split_backward)
    return [Polished(candidate, orders, step_s, bound_s)]


def _entries(session: Session, arms: list[Arm]) -> list[Polished]:
    """The best plan and the best arms of the race."""
    found: list[Polished] = []
    plan = session.best
    if plan is not None:
        same = Candidate(session.problem, plan.stages, plan.pipelines, plan.stash)
        found += _entry(session, same, own_orders(plan), session.best_s)
    for arm in arms[: COUNT.polished]:
        if arm.order is not None and arm.seconds > session.best_s and not any(arm.lowered):
            found += _entry(session, arm.candidate, arm.ops_by_device(), arm.seconds)
    return found


def _polish(session: Session, entries: list[Polished], budget: Budget) -> None:
    """CP-SAT on time slices of good orders, one slice a worker at a time, the best order most often."""
    rng, used, stop = random.Random(session.seed + session.rounds.race()), 0.0, threading.Event()
    meter = session.clock.meter
    with ThreadPoolExecutor(session.workers) as pool:
        while not _done(session) and used < budget.effort and time.monotonic() < budget.deadline and meter.go():
            entries.sort(key=lambda e: e.step_s)
            entries[:] = [e for e in entries if e.bound_s < session.incumbent.aim_s * (1 - TOLERANCE.same)]
            if not entries:
                return
            fixed = session.clock.fixed
            seconds = min(
                math.inf if fixed else SECONDS.window, budget.deadline - time.monotonic(), session.remaining_s
            )
            allowed = min(SECONDS.window_effort, budget.effort - used) if fixed else SECONDS.window
            chosen = [
                entries[0] if rng.random() < HOPE.best_window else rng.choice(entries) for _ in range(session.workers)
            ]
            slices = [_slice(entry, rng) for entry in chosen]
            try:
                results = list(pool.map(partial(_window, seconds, allowed, stop), chosen, slices))
            except KeyboardInterrupt:
                stop.set()
                session.clock.interrupt()
                return
            for entry, (better, spent) in zip(chosen, results, strict=True):
                used += spent
                meter.count(spent)
                if better is not None:
                    _take(session, entry, better)
            session.report("windows")


def _slice(entry: Polished, rng: random.Random) -> tuple[float, float, int]:
    """Begin and length of a time slice of an order (seconds), and a seed."""
    step_s, count = entry.step_s, sum(map(len, entry.orders))
    width = step_s * min(1.0, SIZE.window_ops * rng.choice(SIZE.window_widths) / count)
    inside = rng.uniform(0, step_s - width)
    return rng.choice((0.0, step_s - width, inside, inside, inside)), width, rng.randrange(2**30)


def _take(session: Session, entry: Polished, better: Plan) -> None:
    """Keeps an order that is no longer than the entry's and fits."""
    assert better.forecast is not None
    if better.forecast.step_s <= entry.step_s and session.offer(better, "windows"):
        entry.orders, entry.step_s = own_orders(better), better.forecast.step_s


def _window(
    seconds: float, allowed: float, stop: threading.Event, entry: Polished, place: tuple[float, float, int]
) -> tuple[Plan | None, float]:
    """An order at least as good that differs in one slice, or None; and the deterministic time used."""
    low, width, seed = place
    try:
        with until(time.monotonic() + seconds + SECONDS.grace):
            return _found(Effort(seconds, allowed, 1, seed, stop), entry, low, width)
    except (PlanError, OutOfTime):
        return None, SECONDS.solve


def _found(effort: Effort, entry: Polished, low: float, width: float) -> tuple[Plan | None, float]:
    found, outcome = improve_window(entry.candidate, entry.orders, low, low + width, effort, sideways=True)
    better = None if found is None else assemble(entry.candidate, found, "search")
    return better, max(outcome.effort, SECONDS.solve)
