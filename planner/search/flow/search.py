"""Lines of cuts and devices that compete for moves; the best become plans."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from ...basics import PlanError
from ...graph import RECOMPUTE, Candidate
from ...lower import Assembled, assembled
from ...plan import Pipeline
from ..common import COUNT, FLOW, SECONDS, TOLERANCE, Session, balanced, binding, missing, policies, routes
from ..jit import NEVER
from ..named import Order, with_recomputation
from .arm import Arm
from .ready import KERNELS
from .tables import case_of

PHASE = "free placement"


def search_flow(session: Session, orders: list[Order]) -> None:
    """Offers plans of one pipeline whose stages lie on any devices, where memory may be what holds the step back."""
    devices = len(session.problem.cluster)
    if session.done or not orders or len(orders[0]) < 2 or devices > FLOW.stages or not binding(session.problem):
        return
    if not KERNELS.ready(session.clock, session.remaining_s):
        return
    flows = session.rounds.goes_on(PHASE, lambda: Flows(session, orders))
    assert isinstance(flows, Flows)
    flows.run(FLOW.share if flows.young else FLOW.again)


class Flows:
    """Starts of every route, round after round fewer of them; later turns begin anew, and go on with the best."""

    def __init__(self, session: Session, orders: list[Order]) -> None:
        self.session, self.order = session, orders[0]
        remakes = RECOMPUTE in policies(session.problem, session.space)
        self.case = case_of(session.chain, self.order, session.space.split_backward, remakes)
        self.stop = np.zeros(1, dtype=np.int64)
        self.turn = 0
        self.best: list[Arm] = []
        self.move_s = self.saved = self.spent_s = 0.0
        self.began = time.monotonic()

    @property
    def promising(self) -> bool:
        """Whether a line comes so near to the best plan that another turn may find a shorter one, or had no time to."""
        return self._near(FLOW.again_near) or self.young

    @property
    def young(self) -> bool:
        """Whether it has had little of the time so far: a first turn may have been a glance."""
        if self.session.clock.fixed:
            return not self.turn
        elapsed_s = time.monotonic() - self.began
        return self.spent_s < FLOW.young * (elapsed_s + max(0.0, self.session.remaining_s))

    def run(self, share: float = 1.0) -> None:
        """A turn, in a share of the time; no later one where none came near to the best plan."""
        session = self.session
        if self.turn and not self.promising:
            return
        effort = self._effort(share)
        if effort == 0:
            return
        self.stop[0], began = 0, time.monotonic()
        end = began + share * max(0.0, session.remaining_s)
        lines = [*self._starts()]
        if not lines:  # no cut balances loads on any route, and none will
            self.turn, self.spent_s = self.turn + 1, math.inf
            return
        for number, (most, part, hot) in enumerate(FLOW.rounds):
            lines = sorted(lines, key=lambda arm: arm.seconds)
            lines = lines[: max(most, self._served(lines[0], part, end, effort))]
            self._round(lines, part, hot, end, effort)
            self.best = _distinct([*self.best, *lines])[: FLOW.kept]
            if session.over or not self._near(FLOW.near[number]):
                break
            lines = [arm.again(number + 1) for arm in _distinct([*lines, *self.best])]
        self.turn += 1
        self.spent_s += time.monotonic() - began
        self._offer()

    def _effort(self, share: float) -> float | None:
        """Of the deterministic limit what is saved up, where it is enough, else 0; None without a limit."""
        clock = self.session.clock
        if clock.effort is None:
            return None
        self.saved += share * clock.effort
        clock.spend(share)
        if self.saved < FLOW.least or not clock.meter.go():
            return 0.0
        effort, self.saved = self.saved, 0.0
        return effort

    def _near(self, times: float) -> bool:
        """Whether the best line takes less than so many times what the best plan does."""
        return bool(self.best) and self.best[0].seconds < times * self.session.best_s

    def _starts(self) -> Iterator[Arm]:
        """Cuts that balance loads on every route, with other random numbers in every turn."""
        chain, count = self.session.chain, len(self.order)
        for chunks in range(1, FLOW.chunks + 1):
            if chunks * count > min(len(chain), FLOW.stages):
                return
            for n, route in enumerate(routes(self.order, chunks)):
                cuts = balanced(chain, route)
                for k in range(FLOW.starts if cuts is not None else 0):
                    seed = 31 * (FLOW.starts * (2 * chunks + n) + k) + 7919 * self.turn + self.session.seed
                    assert cuts is not None
                    yield Arm.of(self.case, route, cuts, seed, self.case.remakes and k % 2 == 1)

    def _round(self, lines: list[Arm], part: float, hot: float, end: float, effort: float | None) -> None:
        """Every line is annealed in an equal part of the time, or of the effort."""
        clock, workers = self.session.clock, self.session.workers
        end = time.monotonic() + part * max(0.0, end - time.monotonic())
        self.session.report(PHASE)
        if effort is None and not self.move_s:  # how long a move takes
            self._improve(lines[:1], [FLOW.least_moves], hot)
        for k in range(0, len(lines), workers):
            if self.session.over or not clock.meter.go():
                return
            moves = [self._moves(arm, part, effort, end, len(lines) - k, len(lines)) for arm in lines[k : k + workers]]
            self._improve(lines[k : k + workers], moves, hot)
            if effort is not None:
                clock.meter.count(part * effort * len(moves) / len(lines))

    def _served(self, arm: Arm, part: float, end: float, effort: float | None) -> int:
        """How many lines like this one can have all the moves that a line gets, in such a part of time or effort."""
        if effort is not None:
            return int(part * effort * FLOW.rate / (FLOW.most_moves * len(arm.devices)))
        if not self.move_s:
            return 0
        seconds = self.session.workers * part * max(0.0, end - time.monotonic())
        return int(seconds / (FLOW.most_moves * self.move_s))

    def _moves(self, arm: Arm, part: float, effort: float | None, end: float, left: int, lines: int) -> int:
        """How many moves a line gets, of so many lines that are left."""
        if effort is not None:
            moves = part * effort / lines * FLOW.rate / len(arm.devices)
        else:
            moves = self.session.workers * max(0.0, end - time.monotonic()) / left / self.move_s
        return max(FLOW.least_moves, min(FLOW.most_moves, int(moves)))

    def _improve(self, lines: list[Arm], moves: list[int], hot: float) -> None:
        """Anneals lines, each on a thread of its own; ends when time is up or Ctrl-C comes."""
        began = time.monotonic()
        with ThreadPoolExecutor(len(lines)) as pool:
            running = [pool.submit(arm.improve, n, hot, self.stop) for arm, n in zip(lines, moves, strict=True)]
            try:
                while wait(running, timeout=SECONDS.progress).not_done:
                    self.session.report(PHASE)
                    if self.session.over:
                        self.stop[0] = 1
            except KeyboardInterrupt:
                self.stop[0] = 1
                self.session.clock.interrupt()
            for one in running:
                one.result()
        self.move_s = max(SECONDS.shortest, (time.monotonic() - began) / max(moves))

    # ------------------------------------------------------------ plans

    def _offer(self) -> None:
        """The best lines as plans: what is not the best plan yet may be where its order is annealed.

        Of large problems the best one alone, since a simulation takes long.
        """
        clock = self.session.clock
        for n, arm in enumerate(self.best[: FLOW.offered]):
            if self.session.over or arm.seconds >= FLOW.offered_near * self.session.best_s:
                return
            if n and not clock.fixed and FLOW.simulations * clock.longest_s > clock.remaining_s:
                return
            if not self.session.rounds.tried_before(PHASE, arm.cuts, arm.route, arm.stash):
                self._plan(arm)

    def _plan(self, arm: Arm) -> None:
        """Offers a line's plan; where it does not fit with all its messages, another next to it with less room."""
        for _ in range(COUNT.fitted):
            with self.session.clock.simulating():
                found = self._assembled(arm)
            if found is None:
                return
            self.session.remember(found)
            over = missing(found)
            if not any(over):
                if found.forecast.step_s < self.session.best_s * (1 - TOLERANCE.same):
                    self.session.offer(found.plan, PHASE)
                return
            arm = arm.tighter(over)
            arm.improve(FLOW.fitted_moves, FLOW.rounds[-1][-1], self.stop)

    def _assembled(self, arm: Arm) -> Assembled | None:
        """None where it does not fit, or runs into a deadlock."""
        orders, problem = arm.orders(), self.session.problem
        if orders is None:
            return None
        pipeline = Pipeline(arm.route, arm.route, tuple(range(problem.workload.micro_batches)))
        candidate = Candidate(problem, self.session.chain.stages(arm.cuts), (pipeline,), (arm.stash,))
        try:
            return assembled(candidate, with_recomputation(candidate, orders), "search")
        except PlanError:
            return None


def _distinct(lines: list[Arm]) -> list[Arm]:
    """Those that fit, the shortest first; of equal ones one."""
    found: dict[Hashable, Arm] = {}
    for arm in sorted(lines, key=lambda arm: arm.seconds):
        if arm.seconds < NEVER:
            found.setdefault((arm.cuts, arm.route, arm.stash), arm)
    return list(found.values())
