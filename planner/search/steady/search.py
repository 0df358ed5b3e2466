"""The search without a flush: alternatives by their bounds, the best of them built and simulated."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ... import bounds
from ...basics import Aside, InputError, OutOfTime, PlanError, until
from ...bounds import possible
from ...check import check
from ...graph import KEEP, RECOMPUTE, Candidate, Versions, ship_target
from ...lower import Assembled, assemble
from ...partition import lightest
from ...plan import Plan
from ...problem import SearchSpace
from ...schedules import ALTERNATING, WEIGHTS
from ..common import (
    COUNT,
    HOPE,
    MIXTURE,
    ONE_ORDER,
    SECONDS,
    SHARE,
    SIZE,
    TOLERANCE,
    Clock,
    Considered,
    Lack,
    Proven,
    Result,
    Session,
    Stale,
    answered,
    in_words,
    shortages,
    told_of,
    unanswered,
)
from ..named import device_orders, overfull, own_orders, possible_orders
from .alternatives import Alternative, alternatives, orders
from .build import excess_for_long
from .drained import Begin, Drained
from .named_steady import plan_named
from .own_cuts import of_search, proven_apart, run_own_cuts
from .pool import Pool, Tried, alternating, neighbours
from .programme import PARTS, Margin, Stage
from .replicas import run_replicas

ALTERNATING_PLANS = (
    "plans with one stage a device, on all devices or alike on equal groups of them, that alternate forwards and whole "
    "backwards with a fixed number of micro-batches in flight, at most a run without one update, treat stashes of a "
    "stage alike, and fit the memory in their steady state"
)


class Steady:
    """A session's search without a flush, and what is known of the alternatives."""

    def __init__(self, session: Session, begin: Begin) -> None:
        self.session, self.problem, self.space = session, session.problem, session.space
        self.clock, self.incumbent = session.clock, session.incumbent
        self.pool = Pool()
        self.every = [replace(a, deadline=self.clock.deadline) for a in alternatives(self.problem, self.space)]
        self.drained = Drained(session, begin, self.take)
        session.proof.of_asked(bounds.period(self.problem, self.space))

    @property
    def best_s(self) -> float:
        """Period of the best plan; infinite before there is one."""
        return self.session.best_s

    @property
    def bound_s(self) -> float:
        """No plan that alternates has a shorter period."""
        return min(alternative.below_s for alternative in self.every)

    @property
    def over(self) -> bool:
        """Whether time is up, or there is a plan and no time to simulate another like the longest so far."""
        return self.session.over

    @property
    def proven(self) -> bool:
        """Whether no plan can be better than the best one."""
        return self.best_s <= self.session.proof.asked_s * (1 + TOLERANCE.proven)

    def offer(self, plan: Plan | None, phase: str) -> None:
        """Takes a plan with its period into account where it fits."""
        if plan is not None and not excess_for_long(plan).total:
            self.take(plan, phase)

    def take(self, plan: Plan, phase: str) -> None:
        """Takes a plan that fits into account, unless it is too stale."""
        margin = TOLERANCE.same
        if self.incumbent.beaten_by(plan, margin) and not self._stale(plan) and self.incumbent.take(plan, margin):
            self.session.report(phase)

    def _stale(self, plan: Plan) -> bool:
        limit = self.problem.workload.staleness_limit
        return limit is not None and max(Versions.of(plan).most_stale.values()) > limit

    # ---------------------------------------------------------------- the search

    def run(self) -> None:
        """All alternatives, and where these leave a gap, named schedules and what is next to the best."""
        with self._compiling() as aside:
            self.plainly()
            self.look()
            self.mix()
            run_replicas(self.session, self.take)
            if self.best_s > HOPE.serial * self.session.proof.asked_s:
                self.drained.look()
            if aside is not None and self.clock.fixed:
                self._await(aside)
            annealed = self.mixtures(SHARE.mixtures)
            self.cut_apart()
            if not self.proven:
                self.named(ALTERNATING, SHARE.in_turn)
            self.drained.look()
            self.drained.run(SHARE.drained)
            annealed = annealed or self.mixtures(SHARE.mixtures)
            self.polish()
            if aside is not None and not annealed:
                self._await(aside)
            self.anew(1 if annealed else 0)
            self.explore()
            self.drained.run(SHARE.drained_last)

    def plainly(self) -> None:
        """The alternatives without what costs time: stashes kept, then also recomputed, a share of the time for each.

        Where copies to the host are allowed, solutions with them come first, and may take all time without fitting.
        """
        every = self.every
        for plain in ((KEEP,), (KEEP, RECOMPUTE)):
            if all(set(a.stashes) <= set(plain) for a in every) or self.over:
                continue
            until_s = self._until_s(SHARE.plainly)
            self.every = [
                replace(a, stashes=tuple(s for s in a.stashes if s in plain), deadline=min(a.deadline, until_s))
                for a in every
            ]
            with contextlib.suppress(OutOfTime):
                self.explore()
        self.every = every

    def look(self) -> None:
        """Alternatives for a share of the time: one that takes all of it would leave none to what they cannot mix."""
        until_s = self._until_s(SHARE.looked)
        for alternative in self.every:
            alternative.deadline = min(self.clock.deadline, until_s)
        with contextlib.suppress(OutOfTime):
            self.explore(until_s)
        for alternative in self.every:
            alternative.deadline = self.clock.deadline

    def explore(self, until_s: float = math.inf) -> None:
        """A first plan where that takes no time, then alternatives, those with the least bound first."""
        if not self._large(self.every[0]):
            self.first_named()
        while not self.over and not self.proven and (alternative := self.next()) is not None:
            if time.monotonic() >= until_s:
                return
            if alternative.least is None:
                alternative.solve(min(self.best_s, self._least_s()) * (1 - TOLERANCE.same))
            else:
                self.build(alternative)

    def _least_s(self) -> float:
        """The least period of a solution that has not been built; infinite without one."""
        return min((a.least.period_s for a in self.every if a.least is not None and not a.closed), default=math.inf)

    def next(self) -> Alternative | None:
        """What may be best: a solution to build if none is known to be shorter, else what is to be solved."""
        still = [a for a in self.every if not a.closed and a.below_s < self.best_s * (1 - 2 * TOLERANCE.same)]
        if not still:
            return None
        bound_s = min(a.below_s for a in still)
        solved = [a for a in still if a.least is not None and a.below_s <= bound_s * (1 + 4 * TOLERANCE.same)]
        return solved[0] if solved else min(still, key=lambda a: a.below_s)

    def offer_hint(self, hint: Plan) -> None:
        """Offers the caller's plan as it is on this problem, whatever time is left; nothing where it does not apply, or
        the checker says why not.
        """
        if hint.weights not in self.space.asynchronous:
            return
        candidate = Candidate(self.problem, hint.stages, hint.pipelines, hint.stash, hint.weights)
        try:
            found = assemble(candidate, possible_orders(candidate, own_orders(hint)), "search")
        except (PlanError, KeyError, IndexError):
            return
        if not check(found):
            self.offer(found, "hint")

    def first_named(self) -> None:
        """One forward, one backward on the cut that balances best, with the first method: a plan to begin with."""
        for stages in alternating(self.every[0]):
            self._try(self.every[0], stages)
            if self.over or self.session.best is not None:
                return

    def named(self, names: Iterable[str], share: float) -> None:
        """The named schedules of these methods on their best cuts, in a share of the time."""
        until_s = self._until_s(share)
        for name in names:
            if WEIGHTS[name] in self.space.asynchronous and not self.over and not self.proven:
                clock = Clock(min(until_s, self.clock.deadline), None, self.clock.started)
                space = SearchSpace(name, offload=self.space.offload, recompute=self.space.recompute)
                session = Session(self.problem, space, clock, self.session.seed)
                try:
                    found = plan_named(session, device_orders(self.problem, session.stages))
                except InputError:
                    continue
                self.offer(found.plan, name)

    def cut_apart(self) -> None:
        """Forwards and backwards cut on their own, and forward nodes and backward nodes by name."""
        every = list(of_search(self.session, self._take_apart, orders))
        if every and not self.over and not self.proven:
            run_own_cuts(self.session, every)
            self.named([name for name in WEIGHTS if name not in ALTERNATING], SHARE.two_sides)

    def _take_apart(self, found: Assembled) -> bool:
        """Takes a plan into account where it is shorter, and the checker has nothing against it; whether it is best."""
        plan = found.plan
        if self.incumbent.beaten_by(plan, TOLERANCE.same) and not check(plan):
            self.take(plan, "own cuts")
        return self.session.best is plan

    def mixtures(self, share: float, turn: int = 0) -> bool:
        """Devices, stash choices and cuts annealed together; whether they were: at first they are not yet compiled."""
        if not self._small or self.over or self.proven:
            return False
        from ..modulo import compiled

        if not compiled():
            return False
        from .mixtures import Mixtures

        with self.clock.hurried(share):
            mixtures = Mixtures(self.session, self._take_apart, turn)
            mixtures.run()
        self.session.ledger.note("mixtures", self.session.proof.asked_s, mixtures.found_s, "simulated")
        return True

    def anew(self, turn: int) -> None:
        """Mixtures with other random numbers, until so many times in a row have found nothing better."""
        left = 0 if self.clock.fixed else MIXTURE.turns
        while left:
            before_s = self.best_s
            if not self.mixtures(1.0, turn):
                return
            turn, left = turn + 1, MIXTURE.turns if self.best_s < before_s else left - 1

    def _until_s(self, share: float) -> float:
        """When (time.monotonic()) a share of the time that is left is over; never where only effort counts."""
        return math.inf if self.clock.fixed else time.monotonic() + share * max(0.0, self.session.remaining_s)

    def _compiling(self) -> contextlib.AbstractContextManager[Aside | None]:
        if not self._small:
            return contextlib.nullcontext()
        from ..modulo import compiling

        return compiling(self.session.remaining_s)

    def _await(self, aside: Aside) -> None:
        while aside.running and not self.over and not self.proven:
            time.sleep(SECONDS.progress)

    @property
    def _small(self) -> bool:
        """Whether the problem is small enough to be annealed."""
        few = len(self.problem.cluster) <= SIZE.mixed_devices
        return few and bool(self.every) and not self._large(self.every[0])

    def build(self, alternative: Alternative) -> None:
        """Builds an alternative's solution; with more room where it does not fit, until it does."""
        assert alternative.least is not None
        alternative.closed = True
        stages, margin = alternative.least.stages, Margin(spare=(0,) * len(alternative.order))
        if not self.problem.model.straight:
            likely = self._roomier(replace(alternative, passing=True), margin)
            if likely is not None:
                self._try(alternative, likely)
        for _ in range(COUNT.roomier_large if self._large(alternative) else COUNT.roomier):
            tried = self._try(alternative, stages)
            if self.over or tried is None or self.best_s <= alternative.below_s * (1 + TOLERANCE.proven):
                return
            if not tried.excess.total:
                break
            if self.session.best is None and self._large(alternative):
                self.first_named()
            spare = tuple(a + b for a, b in zip(margin.spare, tried.over, strict=True))
            margin = replace(margin, spare=spare, shared=margin.shared or tried.excess.hosts > 0)
            found = self._roomier(alternative, margin)
            if found is None:
                return
            stages = found
        for steps in () if self._large(alternative) else HOPE.update_room:
            found = self._roomier(alternative, replace(margin, steps=steps))
            if found is not None and not self.over:
                self._try(alternative, found)

    def mix(self) -> None:
        """The alternatives again where stages may recompute, or copy, some of their micro-batches and keep others."""
        until_s = self._until_s(SHARE.remade)
        for a in sorted(self.every, key=lambda a: a.below_s):
            if PARTS & set(a.stashes) and not self.over and not self.proven:
                mixed = replace(a.mixed(), deadline=min(a.deadline, until_s))
                with contextlib.suppress(OutOfTime):
                    mixed.solve(self.best_s * (1 - TOLERANCE.same))
                    if mixed.least is not None:
                        self.build(mixed)

    def _roomier(self, alternative: Alternative, margin: Margin) -> tuple[Stage, ...] | None:
        found = alternative.within(self.best_s * (1 - TOLERANCE.same), margin)
        return None if found is None else found.stages

    def _large(self, alternative: Alternative) -> bool:
        return 2 * self.problem.workload.micro_batches * len(alternative.order) > SIZE.steady_variants

    def _try(self, alternative: Alternative, stages: tuple[Stage, ...], whole: bool = True) -> Tried | None:
        """Simulates these stages and offers their plan where it fits; `whole` as in `Pool.tried`."""
        with self.clock.simulating():
            tried = self.pool.tried(alternative, stages, whole=whole)
        if tried is not None and not tried.excess.total:
            self.take(tried.plan, alternative.name)
        return tried

    def polish(self) -> None:
        """From the best solution of every alternative to better ones next to it, as long as there are any.

        One neighbour of each in turn: one that has many, none of them better, must not take the time of all others.
        """
        if self.over or self.proven:
            return
        starts = sorted((t for t in self.pool.known.values() if t is not None), key=lambda t: t.score)
        fit: dict[int, Tried] = {}
        for t in starts:
            if not t.excess.total:
                fit.setdefault(id(t.alternative), t)
        climbs = [self._climb(t) for t in (*fit.values(), *[t for t in starts if t.excess.total][:2])]
        with self.clock.hurried(1.0 if self.clock.fixed else SHARE.polished, 0.0):
            while climbs and not self.over and not self.proven:
                climbs = [climb for climb in climbs if next(climb, False)]

    def _climb(self, here: Tried) -> Iterator[bool]:
        """Goes on from a solution to the first one next to it that lacks less memory, or is faster; True for each."""
        found: Tried | None = here
        while found is not None:
            here, found = found, None
            for stages in neighbours(here.alternative, here.stages):
                if self.over or self.proven:
                    return
                if not here.may_lose_to(stages):
                    continue
                tried = self._try(here.alternative, stages, whole=here.excess.total > 0)
                if tried is not None and _nearer(tried.score, here.score) and not self._stale(tried.plan):
                    found = tried
                yield True
                if found is not None:
                    break

    # ---------------------------------------------------------------- the answer

    def answer(self) -> Result:
        """The result, whatever has been reached."""
        notes, best = self._considered(), self.session.best
        asked = Proven(in_words(self.space), self.session.proof.asked_s)
        if best is None:
            lacks = self._lacks()
            return unanswered(asked.bound_s, lacks, bool(lacks) and self._nothing_fits(), notes)
        whole = told_of(self.space, best, asked, lambda wider: bounds.period(self.problem, wider))
        return answered(self.session, best, whole, self._parts(best), notes, "dynamic programme")

    def _parts(self, plan: Plan) -> list[Proven]:
        """What is proven of the plans that this search finds, where the plan may be one of them."""
        return [*proven_apart(self.problem, self.space, plan), *self._alternating(plan)]

    def _alternating(self, plan: Plan) -> list[Proven]:
        if not (math.isfinite(self.bound_s) and alternates(plan)):
            return []
        chain, straight = self.session.chain, self.problem.model.straight
        if straight:
            return [Proven(ALTERNATING_PLANS, self.bound_s)]
        return [Proven(f"{ALTERNATING_PLANS}, {ONE_ORDER}", self.bound_s)] if chain.cuts_into(plan.stages) else []

    def _nothing_fits(self) -> bool:
        """Whether no plan fits, whatever its shape."""
        return not possible(self.problem, self.space) or overfull(self.problem, self.space, kept=False)

    def _considered(self) -> tuple[Considered, ...]:
        best_s, ledger = None if self.session.best is None else self.best_s, self.session.ledger
        ledger.note(f"plans simulated: {len(self.pool)}", self.bound_s, best_s, "simulated")
        for a in self.every:
            found = None if a.least is None else a.least.period_s
            ledger.note(a.name, a.below_s, found, "built" if a.closed else "")
        return ledger.settled(self.best_s)

    def _lacks(self) -> tuple[Lack, ...]:
        """What the least bad plan lacks: memory with one micro-batch at a time, or freshness."""
        limit = self.problem.workload.staleness_limit
        if self.over and self._large(self.every[0]):
            return ()
        if limit is not None:
            needed = [s for s in (a.least_staleness() for a in self.every) if s is not None]
            if needed:
                return (Stale(limit, min(needed)),) if min(needed) > limit else ()
        for a in self.every:
            found = lightest(a.split.chain, a.order, [1] * len(a.order))
            if found is not None:
                ends = (0, *found[0], len(a.split.chain))
                stages = [Stage(ends[k], ends[k + 1], KEEP, 1) for k in range(len(a.order))]
                made = self.pool.tried(a, tuple(stages), "search")
                return () if made is None else shortages(made.plan)
        return ()


def alternates(plan: Plan) -> bool:
    """Whether a plan has one stage a device, one device and one stash policy a stage, and ships no stash."""
    routes = {p.forward for p in plan.pipelines if p.micro_batches}
    devices = [device for route in routes for device in route]
    same = all(p.forward == p.backward for p in plan.pipelines)
    shipped = any(ship_target(policy) is not None for row in plan.stash for policy in row)
    rows = {(p.forward, row) for p, row in zip(plan.pipelines, plan.stash, strict=True) if p.micro_batches}
    return same and not shipped and len(rows) == len(routes) and len(set(devices)) == len(devices)


def _nearer(score: tuple[int, float], old: tuple[int, float]) -> bool:
    """Whether less memory is missing, or as much and the period is shorter."""
    return score[0] < old[0] or (score[0] == old[0] and score[1] < old[1] * (1 - TOLERANCE.same))


def search_steady(session: Session, hint: Plan | None, begin: Begin) -> Result:
    """plan() for weight policies without a flush: the least period found in time, and a bound on it.

    `begin` begins a search with a flush, whose steps may be repeated.
    Ctrl-C ends it with the best plan so far. Raises WorkloadError where no method applies.
    """
    search = Steady(session, begin)
    try:
        if hint is not None:
            search.offer_hint(hint)
        with contextlib.suppress(OutOfTime), until(session.clock.deadline + SECONDS.grace):
            search.run()
        return search.answer()
    except KeyboardInterrupt:
        session.clock.interrupt()
        return search.answer()
