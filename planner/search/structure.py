"""The exact phase: candidates best bound first, CP-SAT on each, until nothing can beat the best plan."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from .. import bounds
from ..operations import Candidate
from ..partition.chain import Cuts, compositions, cut
from ..plan import Pipeline, Plan
from .exact import Found, solve
from .portfolio import Order
from .session import Session
from .solver import Effort

MOST_CUTS = 256
"""Cuts are all enumerated up to this number; the bound then comes from the candidates alone."""
MOST_OPS = 2400
"""F and B ops up to which a CP-SAT model is built."""
_CLOSE = 1e-9
_FIRST_SLICE = 0.5


@dataclass(order=True)
class Open:
    """A candidate not yet decided: its bound in seconds, and the deterministic time of its next solve."""

    bound_s: float
    number: int
    candidate: Candidate = field(compare=False)
    effort: float = field(compare=False, default=_FIRST_SLICE)


def may_turn(session: Session) -> bool:
    """Whether two directions are in the space."""
    most = session.space.pipelines
    return session.stages > 1 and session.problem.workload.micro_batches > 1 and (most is None or most > 1)


def cheap_bound(session: Session, orders: list[Order]) -> float:
    """Bound over the whole space without a solver: every cut, and both directions where allowed."""
    rule = bounds.two_directions if may_turn(session) else bounds.one_direction
    return min(rule(session.chain, order) for order in orders)


def candidates(session: Session, orders: list[Order]) -> tuple[list[Candidate], bool]:
    """The candidates of the space, or the most promising; and whether these are all."""
    chain, batches = session.chain, session.problem.workload.micro_batches
    every = compositions(len(chain), session.stages, MOST_CUTS)
    if every is not None and len(every) * len(orders) * batches * session.stages > 200_000:
        every = None
    found: list[Candidate] = []
    for order in orders:
        for cuts in _some_cuts(session, order) if every is None else every:
            found += _candidates_of(session, chain.stages(cuts), order, orders, batches)
    return found, every is not None


def _candidates_of(
    session: Session, stages: tuple[tuple[str, ...], ...], order: Order, orders: list[Order], batches: int
) -> list[Candidate]:
    back = order[::-1]
    all_down = Pipeline(order, order, tuple(range(batches)))
    found = [Candidate(session.problem, stages, (all_down,))]
    twin = back in orders and orders.index(back) < orders.index(order)
    if may_turn(session) and not twin:
        down, up = Pipeline(order, order, tuple(range(batches - 1))), Pipeline(back, back, (batches - 1,))
        found.append(Candidate(session.problem, stages, (down, up)))
    return found


def _some_cuts(session: Session, order: Order) -> list[Cuts]:
    """Cuts of the best plans simulated so far, and of the dynamic programme without memory."""
    chain = session.chain
    found: list[Cuts] = []
    ranked = sorted(session.seen, key=_rank)
    for plan in ranked:
        if len(plan.stages) == session.stages and plan.pipelines[0].forward in (order, order[::-1]):
            ends, total = [], 0
            for stage in plan.stages[:-1]:
                total += len(stage)
                ends.append(total)
            found.append(tuple(ends))
    free = cut(chain, order, [1] * len(order))
    return list(dict.fromkeys([*found[:3], *([free] if free else []), *found[3:]]))[:4]


def _rank(plan: Plan) -> float:
    from .fit import excess

    assert plan.forecast is not None
    return plan.forecast.step_s if not any(excess(plan)) else math.inf


class Hunt:
    """Best-first search over candidates. `bound_s` is valid for the space at any time."""

    def __init__(self, session: Session, orders: list[Order]) -> None:
        self.session = session
        self.rest_s = cheap_bound(session, orders)
        listed, self.complete = candidates(session, orders)
        self.heap: list[Open] = []
        for number, candidate in enumerate(listed):
            self.heap.append(Open(bounds.candidate(candidate), number, candidate))
        heapq.heapify(self.heap)
        self.closed_s = math.inf
        self.effort = 0.0
        self.update()

    @property
    def bound_s(self) -> float:
        """The smallest bound of all candidates, and of those not enumerated."""
        nearest = self.heap[0].bound_s if self.heap else math.inf
        found = min(nearest, self.closed_s)
        return max(found, self.rest_s) if self.complete else self.rest_s

    def update(self) -> None:
        """Raises the session's bound."""
        self.session.bound_s = max(self.session.bound_s, self.bound_s)

    @property
    def solvable(self) -> bool:
        """Whether the models are small enough to be built."""
        batches = self.session.problem.workload.micro_batches
        return 2 * batches * self.session.stages <= MOST_OPS

    def run(self) -> None:
        """Solves candidates until the best plan is no worse than every bound, or time is up."""
        session = self.session
        while self.heap and self.solvable and not session.over:
            limit = session.deterministic_limit
            if limit is not None and self.effort >= limit:
                return
            if self.heap[0].bound_s >= session.best_s * (1 - _CLOSE):
                return
            self._solve(heapq.heappop(self.heap))
            self.update()
            session.report("exact search")

    def _solve(self, node: Open) -> None:
        session = self.session
        allowed = node.effort
        if session.deterministic_limit is not None:
            allowed = min(allowed, session.deterministic_limit - self.effort)
        workers = 1 if node.effort == _FIRST_SLICE else session.workers
        effort = Effort(session.remaining_s, allowed, workers, session.seed)
        others = min([self.closed_s, *(self.heap[0].bound_s,)] if self.heap else [self.closed_s])

        def report(bound_s: float) -> None:
            known = min(others, max(node.bound_s, bound_s)) if self.complete else 0.0
            session.report("exact search", known if math.isfinite(known) else None)

        found = solve(node.candidate, effort, session.best_s, session.best, report)
        self.effort += found.effort
        session.interrupted |= found.interrupted
        if found.plan is not None:
            session.offer(found.plan, "exact search")
        self._file(node, found, allowed)

    def _file(self, node: Open, found: Found, allowed: float) -> None:
        """Closes the candidate, or puts it back with its new bound and more time."""
        node.bound_s = max(node.bound_s, found.bound_s)
        finished = not found.interrupted and not self.session.over and found.effort < 0.9 * allowed
        if found.closed or finished:
            self.closed_s = min(self.closed_s, node.bound_s)
        else:
            node.effort *= 4
            heapq.heappush(self.heap, node)
