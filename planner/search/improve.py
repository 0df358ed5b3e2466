"""After the named schedules: exact search, order search at scale, and windows, each with its share of the effort."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from ..errors import PlanError
from ..lower import assemble
from ..operations import KEEP, RECOMPUTE, Candidate
from ..plan import COMPUTE, Kind, Op, Plan
from .orders.search import search_orders
from .portfolio import Order
from .session import Session
from .solver import Effort
from .structure import Hunt
from .windows import improve as improve_window

EXACT, ORDERS, WINDOWS = 0.2, 0.4, 0.3
"""Shares of the effort; the exact search gets what is left."""
MOST_WINDOW_OPS = 5000
_OPS_IN_WINDOW = 110
_WINDOW = 3.0


@dataclass
class Budget:
    """Time (time.monotonic()) and deterministic effort of one phase."""

    deadline: float
    effort: float


def improve(session: Session, orders: list[Order]) -> None:
    """Improves session.best until nothing searched can be better, or time or effort is used up."""
    hunt = Hunt(session, orders)
    shares = (EXACT, ORDERS, WINDOWS) if hunt.solvable else (0.0, 0.6, 0.4)
    session.report("exact search")
    if hunt.solvable:
        _hunt(hunt, _budget(session, shares[0]))
    if not _done(session):
        left = sum(shares[1:]) + (1 - sum(shares) if hunt.solvable else 0.0)
        budget = _budget(session, shares[1] if session.deterministic_limit is not None else shares[1] / left)
        search_orders(session, orders, budget.deadline - time.monotonic(), budget.effort)
    if not _done(session):
        _polish(session, _budget(session, shares[2] if session.deterministic_limit is not None else 0.75))
    if hunt.solvable and not _done(session):
        _hunt(hunt, _budget(session, 1 - sum(shares) if session.deterministic_limit is not None else 1.0))
    while session.deterministic_limit is None and not _done(session):
        before = session.remaining_s
        _polish(session, _budget(session, 1.0))
        if session.remaining_s > before - 0.05:
            return


def _budget(session: Session, share: float) -> Budget:
    """A share of the deterministic limit; without one, a share of the time that is left."""
    if session.deterministic_limit is not None:
        return Budget(session.deadline, share * session.deterministic_limit)
    return Budget(time.monotonic() + share * max(0.0, session.remaining_s), math.inf)


def _done(session: Session) -> bool:
    return session.over or session.proven


def _hunt(hunt: Hunt, budget: Budget) -> None:
    hunt.run(budget.deadline, budget.effort)


# ------------------------------------------------------------------ windows


def compute_orders(plan: Plan) -> list[list[Op]]:
    """A plan's compute orders, optimizer steps left out."""
    return [[op for op in order if op.kind in COMPUTE and op.kind != Kind.STEP] for order in plan.orders]


def _polish(session: Session, budget: Budget) -> None:
    """CP-SAT on one time slice of the best plan after the other."""
    plan = session.best
    if plan is None or any(policy not in (KEEP, RECOMPUTE) for row in plan.stash for policy in row):
        return
    orders: list[list[Op]] | tuple[tuple[Op, ...], ...] = compute_orders(plan)
    count = sum(map(len, orders))
    if count > MOST_WINDOW_OPS:
        return
    candidate = Candidate(session.problem, plan.stages, plan.pipelines, plan.stash)
    rng, used = random.Random(session.seed + count), 0.0
    while not _done(session) and used < budget.effort and time.monotonic() < budget.deadline:
        step_s = session.best_s
        width = step_s * min(1.0, _OPS_IN_WINDOW * rng.choice((0.6, 1.0, 1.6)) / count)
        low = rng.choice((0.0, step_s - width, rng.uniform(0, step_s - width), rng.uniform(0, step_s - width)))
        seconds = min(_WINDOW, budget.deadline - time.monotonic(), session.remaining_s)
        effort = Effort(seconds, _WINDOW, 1, rng.randrange(2**30))
        found, outcome = improve_window(candidate, orders, low, low + width, effort, sideways=True)
        session.interrupted |= outcome.interrupted
        used += max(outcome.effort, 0.01)
        if found is None:
            continue
        try:
            better = assemble(candidate, found, "search")
        except PlanError:
            continue
        if session.offer(better, "windows"):
            orders = found
        session.report("windows")
