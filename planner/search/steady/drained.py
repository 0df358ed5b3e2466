"""Updates that begin with an empty pipeline: plans of the search with a flush, repeated update by update.

Forwards then find the newest weights, whatever the weight policy, but for those that run beside sums of gradients: no
second version is held. Where that does not fit, or a device must hold more stages than one, filling and draining cost
less than what else there is. A device begins the next update as soon as it has ended its own: no step waits for all.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from ...basics import PlanError
from ...check import check
from ...graph import Candidate, holders, update_size, with_returns
from ...lower import assembled
from ...plan import Kind, Op, Plan, Problem
from ...problem import WEIGHT_POLICIES, SearchSpace
from ..common import HOPE, SHARE, TOLERANCE, Clock, OnProgress, Progress, Result, Session
from ..named import own_orders, possible_orders

Take = Callable[[Plan, str], None]


class Searching(Protocol):
    """The search of a problem with a flush, which goes on in later calls."""

    def go_on(self, clock: Clock, listener: OnProgress | None, hint: Plan | None = None) -> Result:
        """The best plan by the end of another clock."""


Begin = Callable[[Session, Problem, SearchSpace], Searching]
"""Begins a search with a flush beside a session's."""


class Drained:
    """A session's plans whose updates are steps with a flush, one after the other.

    Steps with backwards on devices of their own, or with copies, may hold more when they are repeated than on their
    own: new parameters come while others are in use, and an idle device takes all that is sent to it. Where a step does
    not fit, a search without these follows.

    Attributes:
        least_s: the shortest period found; infinite before there is one.
    """

    def __init__(self, session: Session, begin: Begin, take: Take) -> None:
        self.session, self._begin, self._take = session, begin, take
        self.least_s = math.inf
        self._search: Searching | None = None
        self._step: Plan | None = None
        self._step_s = math.inf
        self._ended = not self._comes_out
        self._fits = True
        self._spaces = _plainer(replace(session.space, asynchronous=(), shard_optimizer=False))

    @property
    def _update(self) -> int:
        session = self.session
        least = WEIGHT_POLICIES[session.space.asynchronous[0]].least_update(session.stages)
        return session.problem.workload.update_every or least

    @property
    def _comes_out(self) -> bool:
        """Whether a run has several whole updates."""
        batches = self.session.problem.workload.micro_batches
        return batches % self._update == 0 and batches >= 2 * self._update

    @property
    def _hopeless(self) -> bool:
        """Whether no micro-batches overlap, and there is a plan."""
        return self._update < 2 and self.session.best is not None

    def look(self) -> None:
        """A share of the time for what may come of it, once; and again where its step does not fit when repeated."""
        if self._search is not None:
            return
        self._go_on(SHARE.drained_look)
        while self._narrowed():
            self._go_on(SHARE.drained_look)

    def run(self, share: float) -> None:
        """A share of the time where the best plan is not much shorter than what the look has found; more where it is
        one of these.
        """
        best_s = self.session.best_s
        if self.least_s <= HOPE.drained * best_s:
            best = math.isfinite(best_s) and self.least_s <= best_s * (1 + TOLERANCE.same)
            self._go_on(max(share, SHARE.drained_best) if best else share)
            if self._narrowed():
                self._go_on(share)

    def _narrowed(self) -> bool:
        """Goes over to a part of the space where the last step does not fit when it is repeated; whether it does."""
        if self._fits or len(self._spaces) == 1:
            return False
        self._spaces, self._search, self._step, self._step_s = self._spaces[1:], None, None, math.inf
        self._fits, self._ended = True, False
        return True

    def _go_on(self, share: float) -> None:
        session = self.session
        if self._ended or self._hopeless or session.done:
            return
        clock = session.clock.parted()
        with session.clock.lending(clock, share):
            if self._search is None:
                self._search = self._begin(session, *self._flushed())
            found = self._search.go_on(clock, self._heard)
        self._ended = found.status in ("optimal", "infeasible")
        if found.plan is not None and not session.clock.interrupted:
            self._offer(found.plan)

    def _flushed(self) -> tuple[Problem, SearchSpace]:
        """An update's micro-batches as a problem with a flush."""
        problem = self.session.problem
        workload = replace(problem.workload, micro_batches=self._update, update_every=None, staleness_limit=None)
        return replace(problem, workload=workload), self._spaces[0]

    def _heard(self, event: Progress) -> None:
        """Offers what is much shorter at once: whoever ends the search then has it."""
        self.session.report(f"drained updates, {event.phase}")
        if event.plan is not None and (event.best_step_s or math.inf) <= HOPE.shorter * self._step_s:
            self._offer(event.plan)

    def _offer(self, step: Plan) -> None:
        """Offers the run of these steps that has the shortest period, unless they are known: time may have been up."""
        if step is self._step and self._fits:
            return
        self._step, self._step_s = step, math.inf if step.forecast is None else step.forecast.step_s
        self._fits = False
        for method in self.session.space.asynchronous:
            for plan in repeated(step, self.session.problem, method):
                self._fits = True
                self.least_s = min(self.least_s, plan.forecast.objective_s if plan.forecast else math.inf)
                self._take(plan, "drained updates")


def _plainer(space: SearchSpace) -> list[SearchSpace]:
    """The space, and parts of it whose steps are the likelier to fit when repeated."""
    together = replace(space, separate_backward=False)
    return list(dict.fromkeys([space, together, replace(together, offload=False)]))


def repeated(step: Plan, problem: Problem, weights: str) -> Iterator[Plan]:
    """Runs of a problem without a flush whose every update is this step: those that the checker accepts.

    An update's gradient sums stand beside the next one's first forwards, which then run on the version before; or in
    front of these, where that version would not fit.
    """
    update = step.problem.workload.micro_batches
    firsts = range(0, problem.workload.micro_batches, update)
    pipelines = tuple(
        replace(p, micro_batches=tuple(first + m for first in firsts for m in p.micro_batches)) for p in step.pipelines
    )
    candidate = Candidate(problem, step.stages, pipelines, step.stash, weights)
    if update_size(candidate) != update:
        return
    orders, owners = possible_orders(candidate, own_orders(step)), holders(candidate)
    ends = [[Op(Kind.STEP, s, update - 1) for s, on in owners.items() if device in on] for device in range(len(orders))]
    summed = bool(candidate.costs.ties) or any(len(on) > 1 for on in owners.values())
    for steps in (None, ends) if summed else (None,):
        lines = orders if steps is None else [[*order, *mine] for order, mine in zip(orders, steps, strict=True)]
        listed = [
            [op._replace(micro_batch=first + op.micro_batch) for first in firsts for op in line] for line in lines
        ]
        with contextlib.suppress(PlanError):
            plan = assembled(candidate, with_returns(candidate, listed, [1] * len(owners)), "search").plan
            if not check(plan):
                yield plan
