"""Named orders whose stashes are shipped, copied to the host or made again where their devices do not hold them.

Orders are taken by what they take with every stash kept, which none of them comes below: the first ones are fitted, and
those that could not be better any more are left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ... import bounds
from ...basics import PlanError, check_time
from ...forecast import Timeline
from ...graph import POLICIES, SHIP, Candidate, stash_policy, static_bytes
from ...lower import Assembled, assembled, simulated
from ...partition import QUARTERS, Cuts, cut
from ...plan import Op
from ...schedules import Layout, capped
from ..common import (
    COUNT,
    SHARE,
    SIZE,
    TOLERANCE,
    Session,
    balanced,
    lacking,
    limits,
    missing,
    pays,
    policies,
    registered,
    subsets,
)
from .fitted import woven
from .fullest import in_flight
from .halves import not_split, whole_backwards
from .portfolio import Order, busiest_s, caps, place, relievable
from .relief import Relief, with_quarters
from .stash_choices import with_recomputation


@dataclass(frozen=True, eq=False)
class Kept:
    """An order with every stash kept, simulated."""

    candidate: Candidate
    orders: list[list[Op]]
    timeline: Timeline
    name: str


def run_relieved(session: Session, order: Order) -> Iterator[None]:
    """Every named order, and 1F1B with fewer micro-batches in flight, made to fit by what its stashes may become.

    Orders are simulated in a share of the time and fitted, then others. Yields after every one of either.
    """
    techniques = Techniques(ways(session))
    if not techniques.every:
        return
    for some in (slice(0, 1), slice(1, None)):
        left = _simulated(session, order, some)
        while True:
            kept: list[Kept] = []
            least_s = (1 - SHARE.kept_first) * session.remaining_s
            for one in left:
                if not (kept or some.start):  # at once: simulating all may take all the time there is
                    _fit(session, one, techniques.every[0])
                kept.append(one)
                yield
                if not session.clock.fixed and session.remaining_s < least_s:
                    break
            yield from _fit_all(session, sorted(kept, key=lambda one: one.timeline.step_s), techniques)
            if not kept:
                break


class Techniques:
    """Sets of policies that orders are fitted by: first, for every order, those that did best on the orders before."""

    def __init__(self, every: list[tuple[str, ...]]) -> None:
        self.every = every
        self._best = dict.fromkeys(every, 0)
        self._orders = 0

    def first(self) -> list[tuple[str, ...]]:
        """What is tried on an order at once: all sets on the first orders, then those that won most."""
        ranked = sorted(self.every, key=lambda some: -self._best[some])
        return ranked if self._orders < COUNT.compared else ranked[: COUNT.techniques]

    def note(self, steps: Mapping[tuple[str, ...], float]) -> None:
        """What an order takes by some of the sets, in seconds; infinite where it does not fit."""
        self._orders += 1
        least_s = min(steps.values(), default=math.inf)
        for some, step_s in steps.items():
            self._best[some] += math.isfinite(least_s) and step_s <= least_s * (1 + TOLERANCE.same)


def _fit_all(session: Session, kept: list[Kept], techniques: Techniques) -> Iterator[None]:
    """Fits orders that come by their step with all stashes kept; what did best before first, then by all else."""
    short: list[tuple[Kept, Candidate]] = []
    later: list[tuple[Kept, list[tuple[str, ...]]]] = []
    for one in kept:
        if session.proven or one.timeline.step_s >= session.best_s:
            break
        first = techniques.first()
        techniques.note(_fit_each(session, one, first, short))
        later.append((one, [some for some in techniques.every if some not in first]))
        yield
    for one, others in later:
        _fit_each(session, one, others, short)
        yield
    for one in kept:
        for policy in techniques.every[0]:
            _lead(session, one, policy)
            yield
    for one, candidate in short:
        if session.proven or one.timeline.step_s >= session.best_s:
            return
        _wait(session, one, candidate)
        yield


def _fit_each(
    session: Session, one: Kept, techniques: Iterable[tuple[str, ...]], short: list[tuple[Kept, Candidate]]
) -> dict[tuple[str, ...], float]:
    """Fits an order by every one of these sets: its steps in seconds. `short` gets what does not fit."""
    steps: dict[tuple[str, ...], float] = {}
    for some in techniques:
        if session.done or one.timeline.step_s >= session.best_s:
            break
        steps[some], candidate = _fit(session, one, some)
        short += [] if candidate is None else [(one, candidate)]
    return steps


def try_relieved(session: Session, layout: Layout, cuts: Cuts, among: Sequence[tuple[str, ...]] | None = None) -> float:
    """A placed layout on this cut, made to fit by what its stashes may become; `among`: by these sets of policies.

    Returns the least step in seconds, or, where it cannot be the best, what it takes at the least; infinite where no
    plan fits.
    """
    one, least_s = _kept(session, layout, cuts), math.inf
    if one is None:
        return math.inf
    for allowed in ways(session) if among is None else among:
        if session.done:
            break
        if one.timeline.step_s >= session.incumbent.worth_s:
            return min(least_s, one.timeline.step_s)
        least_s = min(least_s, _fit(session, one, allowed)[0])
    return least_s


def _lead(session: Session, one: Kept, policy: str) -> None:
    """All stashes of the leading stages: what copies and waits do to each other is not foreseen, and may be less."""
    stages = len(one.candidate.stages)
    for quarter in range(QUARTERS, 0, -1) if not POLICIES[policy].names_device else ():
        if session.done or one.timeline.step_s >= session.best_s:
            return
        units = [(p, s) for p in range(len(one.candidate.pipelines)) for s in range(-(-stages * quarter // QUARTERS))]
        candidate = with_quarters(one.candidate, {unit: [policy] * QUARTERS for unit in units})
        found = _lowered(session, candidate, with_recomputation(candidate, one.orders), one.name)
        if found is not None and found.forecast.step_s < session.best_s and not lacking(found):
            session.offer(found.plan, one.name)


def ways(session: Session) -> list[tuple[str, ...]]:
    """Sets of policies beside keeping, the largest first: the cheapest choices of more policies may be worse in the end
    than those of fewer, and what a flag forbids must not be missed.
    """
    problem, space = session.problem, session.space
    ships = session.ships or (space.schedule != "search" and pays(problem, space))
    allowed = (*policies(problem, space), *([SHIP] if ships else []), *registered(problem, space))
    return list(subsets(allowed))


def _simulated(session: Session, order: Order, some: slice) -> Iterator[Kept]:
    """Every order on some of its cuts."""
    simulated = 0
    for layout in _layouts(session, len(order)):
        count = 2 * session.problem.workload.micro_batches * layout.stages
        if session.proven or simulated + count > SIZE.remade_ops:
            return
        if layout.stages > len(session.chain):
            continue
        simulated += count
        placed = place(layout, order, len(session.problem.cluster))
        listed = [cuts for cuts in _cuts(session, placed) if _holds_one(session, placed, cuts)]
        for cuts in listed[some] if count <= SIZE.one_cut or not some.start else ():
            found = _kept(session, placed, cuts)
            if found is not None:
                yield found


def _layouts(session: Session, devices: int) -> Iterator[Layout]:
    batches = session.problem.workload.micro_batches
    yield from relievable(session.space, devices, batches, len(session.chain))
    if session.space.schedule == "search":
        for most in caps(devices, 2 * batches * devices > SIZE.one_cut):
            yield capped(devices, batches, most)


def _cuts(session: Session, layout: Layout) -> Iterator[Cuts]:
    """Equal seconds, of stages or devices, and equal seconds where every stage and its mirror share their room."""
    route, flights = layout.pipelines[0].forward, in_flight(layout)
    shared = [(a + b + 1) // 2 for a, b in zip(flights, reversed(flights), strict=True)]
    share = len(set(route)) / len(route)
    found = [balanced(session.chain, route), cut(session.chain, route, [0] * layout.stages, buffers=0)]
    found.append(cut(session.chain, route, shared, buffers=2, share=share))
    yield from dict.fromkeys(cuts for cuts in found if cuts is not None)


def _holds_one(session: Session, layout: Layout, cuts: Cuts) -> bool:
    """Whether every device can hold what stays and one stash of each of its stages: a backward needs all of it."""
    plain = Candidate(session.problem, session.chain.stages(cuts), layout.pipelines)
    stash = plain.costs.stash_bytes.tolist()
    room = [
        most - sum(parts.values())
        for most, parts in zip(limits(session.problem), static_bytes(plain, plain.costs), strict=True)
    ]
    return all(stash[s] <= room[d] for pipeline in layout.pipelines for s, d in enumerate(pipeline.backward))


def _kept(session: Session, layout: Layout, cuts: Cuts) -> Kept | None:
    """A placed layout with its stashes kept, simulated; None where it cannot be the best."""
    check_time()
    plain = Candidate(session.problem, session.chain.stages(cuts), layout.pipelines)
    whole = not_split(session.space, plain)
    orders = [whole_backwards(order, whole) for order in layout.orders]
    if busiest_s(plain) >= session.incumbent.worth_s or _least_s(session, plain) >= session.best_s:
        return None
    memory, key = session.rounds.simulated, (layout.name, layout.pipelines, cuts, session.space.split_backward)
    if key in memory.known:  # by another search of the same problem, whatever it allows
        known = memory.known[key]
        assert known is None or isinstance(known, Kept)
        return known
    found = _simulated_kept(session, plain, orders, layout.name)
    memory.keep(key, found, 2 * session.problem.workload.micro_batches * layout.stages)
    return found


def _simulated_kept(session: Session, plain: Candidate, orders: list[list[Op]], name: str) -> Kept | None:
    """An order with every stash kept, simulated; None where it does not run."""
    try:
        with session.clock.simulating():
            return Kept(plain, orders, simulated(plain, orders), name)
    except PlanError:
        return None


def _least_s(session: Session, candidate: Candidate) -> float:
    """No order of the candidate takes less, whatever becomes of its stashes."""
    shares = tuple(len(pipeline.micro_batches) for pipeline in candidate.pipelines)
    return bounds.whatever_stashes(candidate, shares, session.space.split_backward)


def _fit(session: Session, one: Kept, allowed: Collection[str]) -> tuple[float, Candidate | None]:
    """Changes what does not fit, with less memory each time it still does not.

    What is on its way stays for longer than foreseen where links are busy. Where more of it does not help, what a
    device lacks is left to stashes that are made again. Returns its step in seconds; infinite, and the last candidate,
    where none fits.
    """
    devices, before, lacked = range(len(session.problem.cluster)), None, [0] * len(session.problem.cluster)
    less, here = lacked.copy(), lacked.copy()
    for _ in range(COUNT.fitted):
        if session.done:
            return math.inf, None
        check_time()
        relief = _relief(one, allowed, less, here)
        quarters = relief.quarters
        if not quarters or quarters == before:
            break
        before, candidate = quarters, with_quarters(one.candidate, quarters)
        found = _lowered(session, candidate, with_recomputation(candidate, one.orders), one.name)
        if found is None:
            return math.inf, None
        over = missing(found)
        if not any(over):
            if found.forecast.step_s < session.best_s:
                session.offer(found.plan, one.name)
            return found.forecast.step_s, None
        if relief.short:
            break
        for d in devices:
            (here if over[d] >= lacked[d] > 0 else less)[d] += over[d]
        lacked = over
    return math.inf, with_quarters(one.candidate, before) if before else None


def _relief(one: Kept, allowed: Collection[str], less: Sequence[int], here: Sequence[int]) -> Relief:
    """What is chosen with so many bytes less. `here`: what is left to stashes that stay, where these suffice."""
    relief = Relief(one.candidate, one.timeline, allowed, less)
    relief.choose()
    if any(here):
        relief.choose_here(here)
        if relief.short:
            relief = Relief(one.candidate, one.timeline, allowed, [a + b for a, b in zip(less, here, strict=True)])
            relief.choose()
    return relief


def _lowered(session: Session, candidate: Candidate, orders: Sequence[Sequence[Op]], name: str) -> Assembled | None:
    """The order with copies where they delay nothing; None where it does not run."""
    try:
        with session.clock.simulating():
            found = assembled(candidate, orders, name)
    except PlanError:
        return None
    session.remember(found)
    return found


def _wait(session: Session, one: Kept, candidate: Candidate) -> None:
    """Where stashes go to the host alone: forwards wait until those before them have left."""
    used = {stash_policy(policy) for row in candidate.stash for policy in row}
    if not any(row.hosted for row in used) or any(row.shipped for row in used):
        return
    orders, less = with_recomputation(candidate, one.orders), [0] * len(session.problem.cluster)
    for _ in range(COUNT.fitted):
        waiting = woven(session, candidate, orders, less)
        found = None if waiting is None else _lowered(session, candidate, waiting, one.name)
        if found is None:
            return
        over = missing(found)
        if not any(over):
            if found.forecast.step_s < session.best_s:
                session.offer(found.plan, one.name)
            return
        less = [a + b for a, b in zip(less, over, strict=True)]
