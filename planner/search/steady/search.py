"""The search without a flush: alternatives by their bounds, the best of them built and simulated."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from .... import __version__
from ...errors import InputError, PlanError
from ...lower import assemble
from ...operations import KEEP, OFFLOAD, Candidate
from ...partition.chain import cut, lightest
from ...plan import Plan, Problem, Provenance
from ...schedules.asynchronous import WEIGHTS
from ...versions import Versions
from ...workload import SearchSpace
from ..considered import Considered, Ledger
from ..fit import Lack, Stale, shortages
from ..named_steady import plan_named
from ..portfolio import device_orders, own_orders
from ..result import Result
from ..session import PROVEN, OnProgress, Progress, Session
from .alternatives import Alternative, alternatives
from .bisect import EXACT, least_period
from .build import LATE, NEVER, SOON, built, fits_for_long
from .programme import Margin, Stage

LARGE = 60_000
"""F and B of a plan from which on only few variants of it are simulated."""
SPACE = (
    "contiguous stages in layer order, one a device, on all devices or alike on equal groups of them; every stage "
    "alternates forwards and whole backwards with a fixed number of micro-batches in flight, at most a run without one "
    "update; stashes kept, recomputed or offloaded as allowed; the steady state fits the memory"
)


class Steady:
    """One search: its clock, the best plan so far, and what is known of the alternatives."""

    def __init__(
        self, problem: Problem, space: SearchSpace, deadline: float, on_progress: OnProgress | None, started: float
    ) -> None:
        self.problem, self.space, self.deadline = problem, space, deadline
        self.on_progress, self.started = on_progress, started
        self.best: Plan | None = None
        self.ledger, self.simulated, self.interrupted = Ledger(), 0, False
        self.every = alternatives(problem, space)

    @property
    def best_s(self) -> float:
        """Period of the best plan; infinite before there is one."""
        return math.inf if self.best is None or self.best.forecast is None else self.best.forecast.objective_s

    @property
    def bound_s(self) -> float:
        """No plan of the space has a shorter period."""
        return min(alternative.below_s for alternative in self.every)

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self.deadline

    @property
    def proven(self) -> bool:
        """Whether nothing open can be better than the best plan."""
        return self.best_s <= self.bound_s * (1 + PROVEN)

    def offer(self, plan: Plan | None, phase: str) -> bool:
        """Takes a simulated plan into account; True where it fits."""
        self.simulated += 1
        limit = self.problem.workload.staleness_limit
        if plan is None or plan.forecast is None or not fits_for_long(plan):
            return False
        if limit is not None and max(Versions.of(plan).most_stale.values()) > limit:
            return False
        if plan.forecast.objective_s < self.best_s * (1 - EXACT):
            self.best = plan
            self.report(phase)
        return True

    def report(self, phase: str) -> None:
        """Tells the caller where the search stands."""
        if self.on_progress is not None:
            best_s = None if self.best is None else self.best_s
            seconds = time.monotonic() - self.started
            self.on_progress(Progress(seconds, best_s, min(self.bound_s, self.best_s), phase))

    # ---------------------------------------------------------------- the search

    def run(self, hint: Plan | None, seed: int) -> None:
        """The hint, a first plan, alternatives with the least bound first; named schedules where these leave a gap."""
        if hint is not None and hint.weights in self.space.asynchronous:
            self._take(hint)
        self.first_named()
        while not self.over and not self.proven and (alternative := self.next()) is not None:
            if alternative.least is None:
                alternative.solve(min(self.best_s, self._least_s()) * (1 - EXACT))
            else:
                self.build(alternative)
        self.named(seed)

    def _least_s(self) -> float:
        """The least period of a solution that has not been built; infinite without one."""
        return min((a.least.period_s for a in self.every if a.least is not None and not a.closed), default=math.inf)

    def next(self) -> Alternative | None:
        """What may be best: a solution to build if none is known to be shorter, else what is to be solved."""
        still = [a for a in self.every if not a.closed and a.below_s < self.best_s * (1 - 2 * EXACT)]
        if not still:
            return None
        bound_s = min(a.below_s for a in still)
        solved = [a for a in still if a.least is not None and a.below_s <= bound_s * (1 + 4 * EXACT)]
        return solved[0] if solved else min(still, key=lambda a: a.below_s)

    def _take(self, hint: Plan) -> None:
        """Offers the caller's plan as it is on this problem; nothing where it does not apply."""
        candidate = Candidate(self.problem, hint.stages, hint.pipelines, hint.stash, hint.weights)
        try:
            self.offer(assemble(candidate, own_orders(hint), "hint"), "hint")
        except (PlanError, KeyError, IndexError):
            return

    def first_named(self) -> None:
        """One forward, one backward on the cut that balances best, with the first method: a plan to begin with."""
        a = self.every[0]
        chain, count = a.split.chain, len(a.order)
        flights = [count - k for k in range(count)]
        found = cut(chain, a.order, flights) or cut(chain, a.order, [0] * count, buffers=0)
        if found is not None:
            ends = (0, *found, len(chain))
            stages = [Stage(ends[k], ends[k + 1], KEEP, flights[k]) for k in range(count)]
            self.offer(self._built(a, stages, "one forward one backward"), "one forward one backward")

    def named(self, seed: int) -> None:
        """The named schedules of these methods on their best cuts."""
        for name, method in WEIGHTS.items():
            if method in self.space.asynchronous and not self.over and not self.proven:
                space = SearchSpace(name)
                session = Session(self.problem, space, self.deadline, seed, 1, None, None, self.started)
                try:
                    found = plan_named(session, device_orders(self.problem, session.stages))
                except InputError:
                    continue
                self.offer(found.plan, name)

    def build(self, alternative: Alternative) -> None:
        """Builds an alternative's solution, and others with more room or time for updates while they may be better."""
        assert alternative.least is not None
        alternative.closed = True
        fit = self._try(alternative, alternative.least.stages)
        large = self.problem.workload.micro_batches * 2 * len(alternative.order) > LARGE
        for margin in _PATIENT if fit else _ROOMIER[1::2] if large else _ROOMIER:
            if self.over or self.best_s <= alternative.below_s * (1 + PROVEN) or (large and fit):
                return
            cap_s = self.best_s * (1 - EXACT)
            found = least_period(alternative.programme(margin), alternative.below_s, cap_s)
            if found is None or (self._try(alternative, found.stages) and not fit):
                return

    def _try(self, alternative: Alternative, stages: Sequence[Stage]) -> bool:
        """Simulates these stages, with more in flight too where they take longer than bound; whether any fits."""
        away = any(stage.stash == OFFLOAD for stage in stages)
        fit = False
        for more in (0, 1, 2):
            if self.over or (more and (not fit or self.best_s <= alternative.below_s * (1 + PROVEN))):
                break
            flying = [replace(stage, in_flight=stage.in_flight + more) for stage in stages]
            for leaving in (NEVER, LATE, SOON) if away else (NEVER,):
                fit |= self.offer(self._built(alternative, flying, "search", leaving), alternative.name)
        return fit

    def _built(
        self, alternative: Alternative, stages: Sequence[Stage], source: str, leaving: int | None = NEVER
    ) -> Plan | None:
        split = alternative.split
        return built(
            self.problem, split.chain, split.groups, alternative.order, stages, alternative.method, source, leaving
        )

    # ---------------------------------------------------------------- the answer

    def answer(self, seed: int) -> Result:
        """The result, whatever has been reached."""
        notes = self._considered()
        if self.best is None or self.best.forecast is None:
            lacks = self._lacks()
            status = "infeasible" if math.isinf(self.bound_s) and lacks else "unknown"
            return Result(status, None, 0.0 if math.isinf(self.bound_s) else self.bound_s, None, lacks, notes)
        bound_s = min(self.bound_s, self.best_s)
        gap = self.best_s / bound_s - 1 if bound_s > 0 else (0.0 if self.best_s == 0 else math.inf)
        status = "optimal" if gap <= PROVEN else "feasible"
        forecast = replace(self.best.forecast, bound_s=bound_s, gap=gap, status=status)
        source, seconds = self.best.provenance.source, time.monotonic() - self.started
        made = Provenance(__version__, seed, source, "dynamic programme", seconds, SPACE)
        plan = replace(self.best, forecast=forecast, provenance=made)
        return Result(status, plan, bound_s, gap, considered=notes)

    def _considered(self) -> tuple[Considered, ...]:
        best = None if self.best is None else self.best_s
        self.ledger.note(f"plans simulated: {self.simulated}", self.bound_s, best, "simulated")
        for a in self.every:
            found = None if a.least is None else a.least.period_s
            self.ledger.note(a.name, a.below_s, None if not a.closed else found, "")
        return self.ledger.settled(self.best_s)

    def _lacks(self) -> tuple[Lack, ...]:
        """What the least bad plan lacks: memory with one micro-batch at a time, or freshness."""
        limit = self.problem.workload.staleness_limit
        if limit is not None:
            needed = [s for s in (a.least_staleness() for a in self.every) if s is not None]
            if needed:
                return (Stale(limit, min(needed)),) if min(needed) > limit else ()
        for a in self.every:
            found = lightest(a.split.chain, a.order, [1] * len(a.order))
            if found is not None:
                ends = (0, *found[0], len(a.split.chain))
                stages = [Stage(ends[k], ends[k + 1], KEEP, 1) for k in range(len(a.order))]
                split = a.split
                made = built(self.problem, split.chain, split.groups, a.order, stages, a.method, "one at a time")
                return () if made is None else shortages(made)
        return ()


_ROOMIER = tuple(Margin(buffers=b, stashes=min(b, 2.0), shared=True) for b in (0.5, 1.0, 2.0, 4.0, 8.0))
"""Margins for solutions that turn out not to fit."""
_PATIENT = (Margin(steps=0.5), Margin(steps=1.0))
"""Margins for solutions that turn out to take longer than they should."""


def search_steady(
    problem: Problem,
    space: SearchSpace,
    deadline: float,
    seed: int,
    hint: Plan | None,
    on_progress: OnProgress | None,
    started: float,
) -> Result:
    """plan() for weight policies without a flush: the least period found by `deadline`, and a bound on it.

    Ctrl-C ends it with the best plan so far. Raises WorkloadError where no method applies.
    """
    search = Steady(problem, space, deadline, on_progress, started)
    try:
        search.run(hint, seed)
    except KeyboardInterrupt:
        search.interrupted = True
    return search.answer(seed)
