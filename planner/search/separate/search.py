"""The search over devices of forwards and backwards at any size: starts, then annealing of fewer and fewer arms.

Rounds are synchronous and every arm has its own random numbers, so the outcome depends on seed and effort, not on
the number of threads. Effort is counted in runs of one op; PLACE.rate of them are one unit, about a second.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import islice

import numpy as np

from ...basics import check_time
from ...graph import OFFLOAD, RECOMPUTE
from ..common import PLACE, RACE, SECONDS, TOLERANCE, Budget, Order, Session, excess, limits, policies
from ..jit import NEVER
from .arm import Allowed, Arm
from .case import case_of
from .ready import KERNELS
from .starts import Keys, decisions, keys, packed
from .tables import AWAY, HOST, KEEP
from .tables import RECOMPUTE as REMADE


def search_separate(session: Session, orders: list[Order], budget: Budget) -> None:
    """Improves session.best by plans whose stages have a forward and a backward device each, within the budget.

    Every call of a session has random numbers of its own.
    """
    seconds = min(budget.deadline - time.monotonic(), session.remaining_s)
    if budget.effort < RACE.least_effort or seconds < RACE.least or not KERNELS.ready(session.clock, seconds):
        return
    if session.rounds.barren(session.best_s) >= PLACE.patience or not session.clock.meter.go():
        return
    search = _Search(session, budget, session.rounds.race())
    earlier = [arm for arm in session.rounds.placed if isinstance(arm, Arm)]
    known = {arm.decided: arm.copy(arm.seed) for arm in earlier}.values()  # what another search goes on with stays
    arms = sorted([*known, *search.starts(keys(session, orders))], key=lambda arm: arm.seconds)
    if arms:
        arms, barren = search.run(arms[: PLACE.arms])
        session.rounds.end_placing(arms, barren, session.best_s)


class _Search:
    """One call: its arms, and what is left of its effort."""

    def __init__(self, session: Session, budget: Budget, number: int) -> None:
        self.session, self.number = session, number
        self.deadline = min(budget.deadline, session.clock.deadline)
        self.effort, self.spent = budget.effort, 0.0
        self.began = time.monotonic()
        self.stop = np.zeros(1, dtype=np.int64)
        known = policies(session.problem, session.space)
        choices = [KEEP, AWAY, *(code for name, code in ((RECOMPUTE, REMADE), (OFFLOAD, HOST)) if name in known)]
        self.allowed = Allowed(tuple(choices), session.space.split_backward)
        self.fitted: dict[int, int] = {}

    # ------------------------------------------------------------ starts

    def starts(self, given: Sequence[Keys]) -> list[Arm]:
        """The best decisions of every order, best first; those that do not run yet come last."""
        found: list[Arm] = []
        for n, one in enumerate(given):
            check_time()
            tried = sorted(self._started(one, (n + 1) / len(given)), key=lambda arm: arm.seconds)
            found += tried[: PLACE.of_an_order]
        found.sort(key=lambda arm: arm.seconds)
        return found[: PLACE.arms]

    def _started(self, given: Keys, share: float) -> Iterator[Arm]:
        """Arms of one order, until this share of what is meant for all starts is used up; in random order."""
        problem = self.session.problem
        case = case_of(problem, given.stages)
        held = case.owned.sum() * PLACE.copies / len(problem.cluster)
        room = max(0.0, min(limits(problem)) - held)
        slots = max(1, int(room // max(1, int(case.moved[0].max()))))
        seed = self.session.seed * 1009 + self.number * 7919
        listed = list(decisions(given, case, min(slots, case.batches), self.allowed.menu))
        first, rest = listed[:1], listed[1:]
        random.Random(seed).shuffle(rest)
        even = packed(given, case, self.allowed.menu, np.random.default_rng(seed))
        for dec in [*first, *islice(even, PLACE.packed), *rest]:
            if self._started_enough(share) or self._over():
                return
            arm = Arm(problem, given.stages, case, dec, given.extra.copy(), seed)
            arm.evaluate()
            self.spent += arm.ops / PLACE.rate
            self.session.clock.meter.count(arm.ops / PLACE.rate)
            yield arm

    def _started_enough(self, share: float) -> bool:
        if self.session.clock.fixed:
            return self.spent > share * PLACE.starts * self.effort
        return time.monotonic() - self.began > share * PLACE.starts * (self.deadline - self.began)

    # ------------------------------------------------------------ rounds

    def run(self, arms: list[Arm]) -> tuple[list[Arm], float]:
        """Rounds of annealing; the best arms stay on, until time or effort is used up or nothing can be better.

        Those that ended, best first; and the moves since anything got better, as a multiple of what can be chosen.
        """
        every = arms
        for n, arm in enumerate(arms):
            arm.seed = arm.seed + 31 * n
            arm.reseed()
        self._calibrate(arms)
        self._offer(arms)
        barren, best_s = self.session.rounds.barren(self.session.best_s), self._best_s(every)
        while barren < PLACE.patience and not self._over() and self.session.clock.meter.go():
            before = self.spent
            self._wave(every)
            barren += (self.spent - before) * PLACE.rate / max(arm.ops * self._choices(arm) for arm in every)
            if self._best_s(every) < best_s * (1 - TOLERANCE.same):
                best_s, barren = self._best_s(every), 0.0
        return sorted((arm for arm in every if arm.seconds < NEVER), key=lambda arm: arm.seconds), barren

    def _best_s(self, arms: list[Arm]) -> float:
        """The step of the best plan, or what an arm promises."""
        return min(self.session.best_s, *(arm.seconds for arm in arms))

    def _choices(self, arm: Arm) -> int:
        """About how much there is to choose: a device and a stash choice for each stage and micro-batch."""
        return arm.case.batches * len(arm.stages) * len(self.session.problem.cluster) * len(self.allowed.menu)

    def _wave(self, every: list[Arm]) -> None:
        """Rounds from some of the arms, of which the best stay on; then others have their turn."""
        ops = max(arm.ops for arm in every)
        until = self.spent + PLACE.wave_moves * ops / PLACE.rate
        arms = every
        for n, (most, share) in enumerate([*PLACE.rounds, (PLACE.rounds[-1][0], 1.0)]):
            effort = share * max(0.0, min(self.effort, until) - self.spent)
            most = max(1, min(most, int(effort * PLACE.rate / (ops * PLACE.enough_moves))))
            arms = self._round(arms[:most] if n else self._chosen(arms, most), effort)
        self.number += 1

    def _chosen(self, arms: list[Arm], most: int) -> list[Arm]:
        """So many of the arms: the better half of them the best ones, the others any, so that all get their chance."""
        if len(arms) <= most:
            return arms
        best = (most + self.number % 2) // 2
        others = random.Random(self.session.seed * 1009 + self.number).sample(arms[best:], most - best)
        return [*arms[:best], *others]

    def _round(self, arms: list[Arm], effort: float) -> list[Arm]:
        """The arms get equal parts of an effort; best first, those last that have not got better, all offered."""
        if self._over() or not (arms and self.session.clock.meter.go()):
            return []
        began = time.monotonic()
        before = {id(arm): arm.seconds for arm in arms}
        tasks = []
        for arm in arms:
            moves = max(PLACE.least_moves, int(effort / len(arms) * PLACE.rate / arm.ops))
            tasks.append(partial(arm.improve, self.allowed, moves, self._target, self.stop))
        self._all(tasks)
        self.spent += max(effort, SECONDS.tick)
        self.session.clock.meter.count(effort)
        arms = sorted(
            (arm for arm in arms if arm.seconds < NEVER),
            key=lambda arm: (arm.seconds >= before[id(arm)], arm.seconds),
        )
        self._offer(arms)
        taken, left = time.monotonic() - began, self.deadline - time.monotonic()
        if not self.session.clock.fixed and taken > SECONDS.timed:
            self.effort = self.spent + max(0.0, left) * effort / taken
        return arms

    def _calibrate(self, arms: list[Arm]) -> None:
        """Without a deterministic limit, the effort that the time left allows, measured on one arm."""
        if self.session.clock.fixed or not math.isfinite(self.deadline):
            return
        trial = arms[0].copy(1)
        trial.improve(self.allowed, 1, 0.0, self.stop)  # compiles
        began, moves = time.monotonic(), 1 + int(PLACE.trial / trial.ops)
        trial.improve(self.allowed, moves, 0.0, self.stop)
        rate = moves * trial.ops / max(SECONDS.tick, time.monotonic() - began)
        left_s = max(0.0, self.deadline - time.monotonic())
        self.effort = self.spent + left_s * self.session.workers * rate / PLACE.rate

    def _all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Runs tasks on the session's threads; stops them when time is up or Ctrl-C comes."""
        with ThreadPoolExecutor(self.session.workers) as pool:
            futures = [pool.submit(task) for task in tasks]
            try:
                while wait(futures, timeout=SECONDS.progress).not_done:
                    self.session.report(_PHASE)
                    if self.session.over or time.monotonic() >= self.deadline:
                        self.stop[0] = 1
            except KeyboardInterrupt:
                self.stop[0] = 1
                self.session.clock.interrupt()
                wait(futures)
            for future in futures:
                future.result()

    @property
    def _target(self) -> float:
        return self.session.bound_s * (1 + TOLERANCE.proven)

    def _over(self) -> bool:
        session = self.session
        if session.over or session.best_s <= self._target or time.monotonic() >= self.deadline:
            return True
        return self.spent >= self.effort

    # ------------------------------------------------------------ offers

    def _offer(self, arms: list[Arm]) -> None:
        """Simulates what promises to beat the best plan; where it does not fit, the arm gets less memory."""
        for arm in arms:
            if self.session.over:
                return
            for _ in range(PLACE.fitted):
                if arm.seconds >= self.session.best_s * (1 - TOLERANCE.same):
                    break
                plan = arm.plan()
                if plan is None or self.session.offer(plan, _PHASE):
                    break
                over = excess(plan)
                if not any(over):
                    break
                arm.lower(over)


_PHASE = "forward and backward devices"
