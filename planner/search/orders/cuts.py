"""Where the best plan is cut: walks from its cut, in a share of the time."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from ..common import COUNT, RACE, TOLERANCE, WANDERING, Budget, Session, excess
from .arm import Arm
from .known import best_known
from .race import simulated
from .ready import KERNELS
from .together import together
from .wander import Done, wander


def search_cuts(session: Session, budget: Budget) -> None:
    """Improves session.best by walks from its cut, with a temperature each."""
    seconds = budget.deadline - time.monotonic()
    if budget.effort < RACE.least_effort or seconds < RACE.least or not KERNELS.ready(session.clock, seconds):
        return
    start = _start(session)
    if start is None or not session.clock.meter.go():
        return
    number, stop, walks = session.rounds.race(), np.zeros(1, dtype=np.int64), len(WANDERING.hot)
    arms = [start.reseeded(number * walks + n) for n in range(walks)]
    target_s, spent = session.bound_s * (1 + TOLERANCE.proven), list[int]()

    def walk(arm: Arm, hot: float) -> None:
        done = _share(session, budget.effort * RACE.rate / walks, seconds * min(1.0, session.workers / walks))
        spent.append(wander(arm, hot, done, target_s, stop))

    tasks = [partial(walk, arm, hot) for arm, hot in zip(arms, WANDERING.hot, strict=True)]
    together(session, tasks, "cuts", budget.deadline, stop)
    session.clock.meter.count(sum(spent) / RACE.rate)
    for arm in arms:
        _offer(session, arm)


def _share(session: Session, runs: float, seconds: float) -> Done:
    """Of a walk, which part is over: of these runs of one op where effort is limited, else of these seconds."""
    began = time.monotonic()
    if session.clock.fixed:
        return lambda spent: spent / runs
    return lambda _: (time.monotonic() - began) / seconds


def _start(session: Session) -> Arm | None:
    """The best plan, with room for tensors in transit where it has that."""
    return min(best_known(session), key=lambda arm: (arm.seconds, -sum(arm.lowered)), default=None)


def _offer(session: Session, arm: Arm) -> None:
    """Simulates what a walk has come to; where it does not fit, its orders with less memory."""
    for _ in range(COUNT.fitted):
        if arm.order is None or arm.seconds >= session.best_s * (1 - TOLERANCE.same):
            return
        plan = simulated(arm)
        if plan is None or session.offer(plan, "cuts"):
            return
        over = excess(plan)
        if not any(over):
            return
        lowered = arm.lowered or (0,) * len(over)
        arm = arm.tightened(tuple(less + more for less, more in zip(lowered, over, strict=True)))
