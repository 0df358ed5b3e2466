"""The race: many structures get a little annealing, the best of them more, until time or the bound is reached.

Rounds are synchronous and every arm has its own random numbers, so that the outcome depends on seed and effort, not
on the number of threads or the weather. Effort is counted in runs of one op; RACE.rate of them are one unit of
deterministic time, about a second. A race whose time is cut short goes on where it was when it gets more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from ...basics import PlanError
from ...graph import KEEP, OFFLOAD, SHIP, stash_policy
from ...lower import assemble
from ...plan import Plan
from ..common import ANNEALING, COUNT, HOPE, RACE, SECONDS, TOLERANCE, Session, describe, excess, policies
from .arm import Arm
from .elsewhere import Elsewhere
from .kernels import NEVER, Ints
from .recut import recut
from .together import together


class Race:
    """Arms that compete for effort (in units of deterministic time, see `Races`).

    horizon_s: seconds that the race takes in all, over several runs; those of the first where it is infinite. With a
    deterministic limit `effort` counts. ended: whether it has had that, or nothing is left to be raced. best: the best
    plan when it was run last.
    """

    def __init__(
        self,
        session: Session,
        arms: Sequence[Arm],
        effort: float,
        phase: str,
        offers: bool = True,
        horizon_s: float = math.inf,
    ) -> None:
        self.session, self.arms, self.effort, self.phase, self.offers = session, list(arms), effort, phase, offers
        self.stop = np.zeros(1, dtype=np.int64)
        self.spent = 0.0
        self.fresh = 0
        self.deadline, self.horizon_s = math.inf, horizon_s
        self.began = self.used_s = 0.0
        self.ended = False
        self.best: Plan | None = None
        self.course = self._running()
        self.tighter: dict[int, int] = {}
        self.reached: list[Arm] = []
        self.elsewhere = Elsewhere(session, min((arm.seed for arm in arms), default=0), self._over)

    # ------------------------------------------------------------ running

    def run(self, deadline: float | None = None) -> list[Arm]:
        """Races until the effort or the time (time.monotonic()) is used up; the arms left, best first.

        An arm that has reached its own bound leaves the race; the best of those come last.
        """
        self.deadline = min(self.session.clock.deadline, math.inf if deadline is None else deadline)
        self.began = time.monotonic()
        if math.isinf(self.horizon_s) and math.isfinite(self.deadline):
            self.horizon_s = self.deadline - self.began
        self.stop[0] = 0
        self.ended = all(not self._over() for _ in self.course)
        self.used_s += time.monotonic() - self.began
        self.best = self.session.best
        return self._ranked() + [arm for arm in self.reached if not self.offers]

    def join(self, arms: Sequence[Arm]) -> None:
        """Others that race from now on."""
        self.arms += self._open(arms)

    def _running(self) -> Iterator[None]:
        """The race, a moment after every part of it that may be the last for now."""
        self.arms = self._open(self.arms)
        self._calibrate()
        restarts = self._thin_out()
        structures = _structures(self.arms)
        yield from self._all(self._begin, RACE.first * self.effort)
        yield from self._branch(RACE.restarts * (self.effort - self.spent), restarts)
        for most, share in RACE.rounds:
            yield from self._next_round(most, share)
        while self.spent < self.effort:
            if not self.arms:
                yield from self._afresh(structures)
            if not self.arms:
                yield from self._next_to_ended()
            if not self.arms:
                return
            yield from self._next_round(RACE.rounds[-1][0], 1.0)

    @property
    def _left_s(self) -> float:
        """Seconds that the race has left."""
        return self.horizon_s - self.used_s - (time.monotonic() - self.began)

    def _open(self, arms: Sequence[Arm]) -> list[Arm]:
        """Those whose bound does not say that they come too late, or that they do not fit at all."""
        aim_s = self.session.incumbent.aim_s * (1 - TOLERANCE.same) if self.offers else NEVER
        for arm in arms if self.offers else ():
            self.session.ledger.note(describe(arm.candidate), arm.bound_s, None)
        hopeful = [arm for arm in arms if arm.bound_s < aim_s]
        self.elsewhere.end(arm for arm in arms if arm.bound_s >= aim_s)
        return hopeful

    def _next_to_ended(self) -> Iterator[None]:
        """Other cuts than those whose bounds are reached."""
        self.arms = self.elsewhere.arms() if self.offers else []
        if self.arms:
            yield from self._all(Arm.improve, RACE.first * (self.effort - self.spent))

    def _afresh(self, structures: Sequence[Arm]) -> Iterator[None]:
        """Other starts of the structures that may still be best, where no arm is left."""
        self.fresh += 1
        self.arms = [arm.again(RACE.fewest * self.fresh) for arm in self._open(structures)]
        yield from self._all(self._begin, RACE.first * (self.effort - self.spent))

    def _next_round(self, most: int, share: float) -> Iterator[None]:
        """The best arms, and variations of them, get a share of the effort that is left."""
        self.arms = self._ranked()
        self._drop(most)
        if not self.arms or self.spent >= self.effort:
            return
        if self.offers:
            self.arms = [arm if self._over() else recut(arm) for arm in self.arms]
        best_s = min((arm.seconds for arm in self.arms), default=NEVER)
        elsewhere = self._cut_elsewhere(best_s)
        self._mutate(best_s)
        self.arms += elsewhere
        yield from self._all(Arm.improve, share * (self.effort - self.spent))

    def _drop(self, most: int) -> None:
        """Only the best arms stay; one of them has no copies to the host, which windows could not improve later.

        At most half of them are near their bounds, where others may come to far less. One has another route than the
        best, where there is one that is not far behind: cuts of one route are alike.
        """
        near_s = self._near_s
        last = [arm for arm in self.arms if arm.bound_s > near_s][max(1, most // 2) :]
        ranked = [arm for arm in self.arms if arm not in last] + last
        stay, leave = ranked[:most], ranked[most:]
        if most >= RACE.other_route and stay and all(arm.route == stay[0].route for arm in stay):
            near = (arm for arm in leave if arm.route != stay[0].route and arm.seconds < RACE.mutant * stay[0].seconds)
            stay[-1] = next(near, stay[-1])
        spare = next((arm for arm in leave if not _copies(arm)), None)
        if spare is not None and all(map(_copies, stay)):
            stay[-1] = spare
        self.arms = stay

    @property
    def _near_s(self) -> float:
        """Arms with bounds above this may shorten the best plan by a small part, at most, of what another may."""
        hopeful = [other for other in self.arms if other.order is not None]
        best_s = min((other.seconds for other in hopeful), default=NEVER)
        if self.offers:
            best_s = min(best_s, self.session.incumbent.aim_s)
        least_s = min((other.bound_s for other in hopeful), default=NEVER)
        return best_s - RACE.narrow * (best_s - least_s) if hopeful else NEVER

    def _calibrate(self) -> None:
        """Without a deterministic limit, the effort that its time allows, measured on one order."""
        if self.session.clock.fixed or not math.isfinite(self.horizon_s):
            return
        for arm in self.arms:
            trial = arm.again(1)
            trial.start(2, 0.0, self.stop)
            trial.improve(1, 0.0, self.stop)  # compiles
            if trial.order is None:
                continue
            began, moves = time.monotonic(), 1 + int(RACE.trial / max(1, arm.ops))
            trial.improve(moves, 0.0, self.stop)
            rate = moves * arm.ops / max(SECONDS.tick, time.monotonic() - began)
            self.effort = max(0.0, self._left_s) * self.session.workers * rate / RACE.rate
            return

    def _cut_elsewhere(self, best_s: float) -> list[Arm]:
        """The best arms with a cut nearby, whose orders are to be annealed for it."""
        if not self.offers:
            return []
        tried = (arm.cut_elsewhere(best_s) for arm in self.arms[: RACE.mutated])
        return [arm for arm in tried if arm is not None and arm.seconds < RACE.mutant * best_s]

    def _mutate(self, best_s: float) -> None:
        """Other choices of what happens to stashes, for the best arms."""
        added = [name for name in self.session.registered if not stash_policy(name).leaves]
        allowed = policies(self.session.problem, self.session.space) + [SHIP] * self.session.ships + added
        if not allowed or not self.offers:
            return
        split = self.session.space.split_backward
        tried = [arm.mutated(allowed, split) for arm in self.arms[: RACE.mutated] for _ in range(RACE.mutations)]
        made = [arm for arm in tried if arm is not None and arm.seconds < RACE.mutant * best_s]
        best = self.session.best
        kept = best is None or all(policy == KEEP for row in best.stash for policy in row)
        self.arms += sorted(made, key=lambda arm: arm.seconds)[: len(self.arms) if kept else len(made)]

    def _thin_out(self) -> int:
        """Leaves out arms where the effort is too small for all, but none that has an order.

        By turns those stay that have few ops and those that promise most. Returns how many starts may follow.
        """
        most = max(2 * RACE.fewest, int((RACE.first + RACE.restarts) * self.effort / RACE.slice))
        if len(self.arms) > most * RACE.of_starts:
            first = _structures(self.arms)
            short = sorted(first, key=lambda arm: (arm.order is None, arm.ops))
            promising = sorted(first, key=lambda arm: (arm.order is None, arm.bound_s))
            turns = chain.from_iterable(zip(short, promising, strict=True))
            self.arms = list(dict.fromkeys(turns))[: max(RACE.fewest, int(most * RACE.of_starts))]
        return max(len(RACE.restarted), most - len(self.arms))

    def _branch(self, effort: float, restarts: int) -> Iterator[None]:
        """More starts for the structures that did best."""
        earlier, share = self._ranked(), min(1.0, restarts / sum(RACE.restarted))
        near_s = self._near_s
        structures = sorted(_structures(earlier), key=lambda arm: arm.bound_s > near_s)
        more = [
            arm.again(k)
            for arm, count in zip(structures, RACE.restarted, strict=False)
            for k in range(max(1, round(share * count)))
        ]
        self.arms = more + earlier
        yield from self._all(self._begin, effort, len(more))

    def _all(
        self, task: Callable[[Arm, int, float, Ints], None], effort: float, count: int | None = None
    ) -> Iterator[None]:
        """One round: every arm, or so many of the first, get an equal part of the effort; what is better is offered.

        Where time is up before, the arms that have not begun get theirs when the race goes on.
        """
        waiting = set(range(len(self.arms) if count is None else count))
        share = effort / max(1, len(waiting))

        def one(n: int) -> None:
            if self.stop[0]:
                return
            waiting.discard(n)
            arm = self.arms[n]
            target_s = max(self._target, arm.bound_s * (1 + TOLERANCE.same))
            task(arm, max(ANNEALING.least_moves, int(share * RACE.rate / max(1, arm.ops))), target_s, self.stop)

        while waiting and self.session.clock.meter.go():
            began, before = time.monotonic(), len(waiting)
            tasks = [partial(one, n) for n in sorted(waiting)]
            together(self.session, tasks, self.phase, self.deadline, self.stop)
            done = effort * (before - len(waiting)) / max(1, before)
            effort -= done
            self.spent += max(done, SECONDS.tick)
            self.session.clock.meter.count(done)
            self._offer()
            if not self.session.clock.fixed and math.isfinite(self.horizon_s) and self.stop[0] == 0:
                taken = time.monotonic() - began
                if taken > SECONDS.timed:
                    self.effort = self.spent + max(0.0, self._left_s) * done / taken
            if waiting:
                yield
        yield

    @staticmethod
    def _begin(arm: Arm, moves: int, target_s: float, stop: Ints) -> None:
        """A start by random rules and a first annealing."""
        if arm.order is None:
            arm.start(ANNEALING.tries, target_s, stop)
        arm.improve(moves, target_s, stop)

    @property
    def _target(self) -> float:
        return self.session.bound_s * (1 + TOLERANCE.proven) if self.offers else 0.0

    def _over(self) -> bool:
        return self.session.over or time.monotonic() >= self.deadline or (self.offers and self.session.proven)

    def _ranked(self) -> list[Arm]:
        """Arms with orders, by turns the best and the most promising; without those that cannot become the best."""
        for arm in self.arms if self.offers else ():
            step_s = None if arm.order is None else max(arm.seconds, arm.bound_s)
            self.session.ledger.note(describe(arm.candidate), arm.bound_s, step_s)
        ranked = sorted((arm for arm in self.arms if arm.order is not None), key=lambda arm: arm.seconds)
        best_s = min(ranked[0].seconds, self.session.incumbent.aim_s if self.offers else NEVER) if ranked else NEVER
        hopeful = [arm for arm in ranked if arm.bound_s < best_s * (1 - TOLERANCE.same)]
        self.reached += [arm for arm in ranked[:1] if arm not in hopeful]
        self.elsewhere.end(arm for arm in ranked if arm.bound_s >= best_s * (1 - TOLERANCE.same))
        if not (hopeful or self.offers):
            hopeful = ranked[:1]
        turns = chain.from_iterable(zip(hopeful, sorted(hopeful, key=promise), strict=True))
        return list(dict.fromkeys(turns))

    # ------------------------------------------------------------ offers

    def _offer(self) -> None:
        """Simulates orders that promise to beat the best plan; where they do not fit, the arm gets less memory."""
        if not self.offers:
            return
        for n, arm in enumerate(self.arms):
            if self.session.over:
                return
            if (
                arm.order is None
                or arm.seconds >= self.session.best_s * (1 - TOLERANCE.same)
                or arm.seconds == arm.offered_s
            ):
                continue
            arm.offered_s = arm.seconds
            plan = simulated(arm)
            if plan is None:
                arm.order, arm.seconds = None, NEVER
                continue
            if self.session.offer(plan, self.phase):
                continue
            self.arms[n] = self._fitteden(arm, excess(plan))

    def _fitteden(self, arm: Arm, over: list[int]) -> Arm:
        count = self.tighter.get(arm.seed, 0) + 1
        self.tighter[arm.seed] = count
        if count > COUNT.fitted:
            arm.order, arm.seconds = None, NEVER
            return arm
        lowered = arm.lowered or (0,) * len(over)
        fitted = arm.tightened(tuple(less + more for less, more in zip(lowered, over, strict=True)))
        if fitted.order is None:
            fitted.start(ANNEALING.fitted_tries, 0.0, self.stop)
        return fitted


def promise(arm: Arm) -> float:
    """What an arm may come to: part of the way from its makespan to its bound (seconds)."""
    return arm.seconds - HOPE.of_gap * max(0.0, arm.seconds - arm.bound_s)


def simulated(arm: Arm) -> Plan | None:
    """The complete plan of an arm's order; None where it deadlocks."""
    try:
        return assemble(arm.candidate, arm.ops_by_device(), "search")
    except PlanError:
        return None


def _structures(arms: Sequence[Arm]) -> list[Arm]:
    """The first arm of every structure."""
    first: dict[tuple[int, bool, bool], Arm] = {}
    for arm in arms:
        first.setdefault((id(arm.candidate), arm.split, arm.folded), arm)
    return list(first.values())


def _copies(arm: Arm) -> bool:
    """Whether the arm copies some stash to the host."""
    return any(OFFLOAD in row for row in arm.candidate.stash)
