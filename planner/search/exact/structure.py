"""The exact phase: candidates best bound first, CP-SAT on each, until nothing can beat the best plan."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, field, replace

from ... import bounds
from ...basics import check_time
from ...graph import KEEP, SHIP, Candidate
from ...lower import Assembled
from ...partition import Cuts, compositions, cut
from ...plan import Pipeline
from ..common import MODEL, SIZE, TOLERANCE, Session, lacking, policies, routes, stash_choices
from ..named import Order
from .instance import Rules
from .search import Found, Known, Report, solve
from .solver import Effort


@dataclass(order=True)
class Open:
    """A candidate not yet decided: its bound in seconds, and the deterministic time of its next solve.

    stash_choices: where its stages choose their devices, what may happen to their stashes. coarse: in ticks with which
    it is not yet solved.
    """

    bound_s: float
    number: int
    candidate: Candidate = field(compare=False)
    stash_choices: frozenset[str] = field(compare=False, default=frozenset())
    effort: float = field(compare=False, default=MODEL.first)
    coarse: bool = field(compare=False, default=True)


def may_turn(session: Session) -> bool:
    """Whether two directions are in the space."""
    most = session.space.pipelines
    return session.stages > 1 and session.problem.workload.micro_batches > 1 and (most is None or most > 1)


def candidates(session: Session, orders: list[Order]) -> tuple[list[Candidate], bool]:
    """The candidates of the shapes searched exactly, or the most promising; and whether these are all.

    One to SIZE.chunks stages a device, back and forth or round and round, one pipeline or two in opposite directions.
    """
    chain, batches = session.chain, session.problem.workload.micro_batches
    found: list[Candidate] = []
    complete = True
    for order in orders:
        for chunks in range(1, SIZE.chunks + 1):
            count = chunks * len(order)
            if count > len(chain):
                break
            every = compositions(len(chain), count, MODEL.cuts)
            if every is not None and len(every) * len(orders) * batches * count > MODEL.listed_ops:
                every = None
            complete &= every is not None
            for route in routes(order, chunks):
                cuts = every
                if cuts is None:
                    cuts = _some_cuts(session, route) if chunks == 1 else []
                for c in cuts:
                    check_time()
                    found += _candidates_of(session, chain.stages(c), route, order, orders, batches)
    return found, complete


def _candidates_of(
    session: Session,
    stages: tuple[tuple[str, ...], ...],
    route: Order,
    order: Order,
    orders: list[Order],
    batches: int,
) -> list[Candidate]:
    found = [Candidate(session.problem, stages, (Pipeline(route, route, tuple(range(batches))),))]
    back = order[::-1]
    twin = back in orders and orders.index(back) < orders.index(order)
    if may_turn(session) and not twin:
        mirror = dict(zip(order, back, strict=True))
        up_route = tuple(mirror[d] for d in route)
        down = Pipeline(route, route, tuple(range(batches - 1)))
        found.append(Candidate(session.problem, stages, (down, Pipeline(up_route, up_route, (batches - 1,)))))
    return found


def separate_candidates(session: Session) -> list[Candidate]:
    """The cuts into one stage a device whose stages choose their devices; none where they do not."""
    if not session.two_devices:
        return []
    chain, route = session.chain, tuple(range(session.stages))
    given = Pipeline(route, route, tuple(range(session.problem.workload.micro_batches)))
    cuts = compositions(len(chain), session.stages, SIZE.two_device_cuts) or []
    return [Candidate(session.problem, chain.stages(c), (given,)) for c in cuts]


def _some_cuts(session: Session, order: Order) -> list[Cuts]:
    """Cuts of the best plans simulated so far, and of the dynamic programme without memory."""
    chain = session.chain
    found: list[Cuts] = []
    ranked = sorted(session.seen, key=_rank)
    for plan in (found.candidate for found in ranked):
        if len(plan.stages) == len(order) and plan.pipelines[0].forward in (order, order[::-1]):
            ends, total = [], 0
            for stage in plan.stages[:-1]:
                total += len(stage)
                ends.append(total)
            found.append(tuple(ends))
    free = cut(chain, order, [1] * len(order))
    return list(dict.fromkeys([*found[:3], *([free] if free else []), *found[3:]]))[:4]


def _rank(found: Assembled) -> float:
    return math.inf if lacking(found) else found.forecast.step_s


class Hunt:
    """Best-first search over candidates; proves of shapes where the candidates are all there are."""

    def __init__(self, session: Session, orders: list[Order]) -> None:
        self.session = session
        self.policies = frozenset([KEEP, *policies(session.problem, session.space)])
        listed, self.complete = candidates(session, orders)
        self.heap: list[Open] = []
        for number, candidate in enumerate(listed):
            self.heap.append(Open(self._cheap(candidate), number, candidate))
        heapq.heapify(self.heap)
        self.stash_choices = stash_choices(session.problem, session.space)
        self.separate = [
            Open(session.bound_s, number, candidate, chosen, MODEL.first_open)
            for number, candidate in enumerate(separate_candidates(session))
            for chosen in dict.fromkeys((self.stash_choices - {SHIP}, self.stash_choices))
        ]
        self.count = len(self.heap) + len(self.separate)
        self.closed_s = self.closed_separate_s = math.inf
        self.saved = 0.0
        self._update()

    def _cheap(self, candidate: Candidate) -> float:
        least_s = bounds.candidate if self.policies == {KEEP} else bounds.whatever_stashes
        return least_s(candidate, None, self.session.space.split_backward)

    @property
    def _together_s(self) -> float:
        """The smallest bound of all candidates whose stages have one device each."""
        return min(self.heap[0].bound_s if self.heap else math.inf, self.closed_s)

    @property
    def _nearest_s(self) -> float:
        """The smallest bound of all candidates, and of those that are not listed: which ship at more devices."""
        if self.session.ships and not self.session.two_devices:
            return min(self._together_s, self.session.bound_s)
        return min(
            [
                self._together_s,
                self.closed_separate_s,
                *(node.bound_s for node in self.separate if node.stash_choices == self.stash_choices),
            ]
        )

    def _update(self) -> None:
        if not self.complete:
            return
        session = self.session
        session.proof.of_shapes(self._nearest_s, self._together_s, planned=session.best is not None)

    @property
    def ops(self) -> int:
        """F and B ops of a plan with one stage a device."""
        return self.session.ops

    @property
    def solvable(self) -> bool:
        """Whether the models are small enough to be built."""
        most = MODEL.ops if self.policies == {KEEP} else MODEL.ops // MODEL.choosing
        return self.ops <= most

    def note(self) -> None:
        """Says how many candidates there were and what became of them."""
        if not self.solvable:
            return
        closed, left = self.count - len(self.heap) - len(self.separate), len(self.heap) + len(self.separate)
        every = "all" if self.complete else "some"
        bound_s = self._nearest_s if math.isfinite(self._nearest_s) else 0.0
        outcome = f"{closed} decided, {left} open: see the bound"
        self.session.ledger.note(f"exact search of {every} cuts and shapes", bound_s, None, outcome)

    def run(self, effort: float, deadline: float, together_first: bool = False) -> None:
        """Solves candidates until none can be better or the effort is used up: seconds without a deterministic limit.

        What a candidate's next solve needs is saved up, from one call to the next: solves begin anew, so none is cut
        short but by the deadline (time.monotonic()). `together_first`: those with open devices wait until none with one
        device a stage can be better.
        """
        session = self.session
        self.saved += effort
        while effort > 0 and self.solvable and not session.over and time.monotonic() < deadline:
            node = self._next(together_first)
            if node is None:
                break
            if node.effort > self.saved + MODEL.first or not session.clock.meter.go():
                self._put_back(node)
                break
            self._solve(node, deadline)
            self._update()
            session.report("exact search")

    def _next(self, together_first: bool) -> Open | None:
        """The candidate with the least bound; one with open devices in turn, when it has had less effort than these."""
        below = self.session.incumbent.aim_s * (1 - TOLERANCE.same)
        first = self.heap[0] if self.heap and self.heap[0].bound_s < below else None
        turns = [node for node in self.separate if node.bound_s < below]
        waiting = together_first and first is not None
        if turns and not waiting and (first is None or min(map(self._turn, turns)) <= first.effort):
            node = min(turns, key=lambda node: (self._turn(node), node.bound_s, node.number))
            self.separate = [other for other in self.separate if other is not node]  # equal ones differ in choices
            return node
        return None if first is None else heapq.heappop(self.heap)

    def _turn(self, node: Open) -> float:
        return node.effort if node.stash_choices == self.stash_choices else node.effort / MODEL.without_shipping

    def _solve(self, node: Open, deadline: float) -> None:
        session = self.session
        workers = 1 if node.effort == MODEL.first else session.workers
        began = time.monotonic()
        seconds = deadline - began
        if not session.clock.fixed:
            seconds = min(seconds, MODEL.open_seconds * node.effort)
        effort = Effort(seconds, node.effort, workers, session.seed)

        def report(_: float) -> None:
            session.report("exact search")

        found = self._answer(node, effort, report)
        taken = time.monotonic() - began
        self.saved -= found.effort if session.clock.fixed else taken
        session.clock.meter.count(found.effort)
        session.clock.interrupt(found.interrupted)
        if found.plan is not None:
            session.offer(found.plan, "exact search")
        self._file(node, found)

    def _answer(self, node: Open, effort: Effort, report: Report) -> Found:
        """What the exact search says of a candidate, effort by the seconds that it takes."""
        session, split = self.session, self.session.space.split_backward
        if not node.stash_choices:
            known = Known(session.incumbent.aim_s, node.bound_s, session.best)
            return solve(node.candidate, effort, Rules(split, self.policies), known, report, node.coarse)
        rules, known = Rules(split, node.stash_choices, open=True), Known(session.incumbent.aim_s, node.bound_s)
        effort = replace(effort, deterministic=effort.deterministic / MODEL.open_seconds)
        told = report if node.stash_choices == self.stash_choices else None
        found = solve(node.candidate, effort, rules, known, told, node.coarse)
        return replace(found, effort=found.effort * MODEL.open_seconds)

    def _file(self, node: Open, found: Found) -> None:
        """Closes the candidate, or puts it back with its new bound and more effort."""
        node.bound_s = max(node.bound_s, found.bound_s)
        if found.closed or (found.ended and not found.interrupted):
            if node.stash_choices == self.stash_choices:
                self.closed_separate_s = min(self.closed_separate_s, node.bound_s)
            elif not node.stash_choices:
                self.closed_s = min(self.closed_s, node.bound_s)
            return
        if found.coarse:
            node.coarse = False
        else:
            node.effort *= MODEL.longer
        self._put_back(node)

    def _put_back(self, node: Open) -> None:
        if node.stash_choices:
            self.separate.append(node)
        else:
            heapq.heappush(self.heap, node)
