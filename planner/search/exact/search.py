"""The exact search: the best order of ops of one candidate, by CP-SAT, with a proven bound.

The candidate: one route, which may visit a device repeatedly, or two whose shares are free, stashes kept, recomputed
or offloaded as allowed, decided for every micro-batch and stage; or, where the rules open the devices, one pipeline
whose stages choose a forward device, a backward device and a policy each. Backwards whole or split. The solution is
assembled and simulated; where it exceeds a limit, since the model leaves out tensors in transit, the search is
repeated with that much less memory. Two mirrored directions are first searched among mirrored schedules, for a good
start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ... import bounds
from ...basics import OutOfTime, PlanError
from ...graph import KEEP, Candidate, regroup
from ...lower import assemble
from ...plan import Kind, Pipeline, Plan
from ...simulate import simulate
from ..common import COUNT, MODEL, TOLERANCE, excess, host_excess, limits
from .build import build_instance
from .durations import Durations, distinct_routes
from .floor import least_ticks
from .instance import Instance, Rules
from .lists import op_lists, pipelines, rows
from .mirror import fold, unfold
from .model import build_model, hint, read
from .solver import Effort, Outcome, run
from .variables import Key, Solution, Unit, Variables

Report = Callable[[float], None]
_COPIES = {Kind.OFFLOAD: "out", Kind.FETCH: "back"}


@dataclass(frozen=True)
class Known:
    """What a search begins with: an incumbent's seconds, a proven bound in seconds, and a plan of the same stages and
    routes to start from."""

    incumbent_s: float = math.inf
    lower_s: float = 0.0
    plan: Plan | None = None


_KEPT, _NOTHING = Rules(), Known()


@dataclass(frozen=True)
class Found:
    """What the exact search says of a candidate.

    Attributes:
        plan: the best plan found that fits, simulated; None where there is none below the incumbent.
        bound_s: no order of this candidate takes less (seconds); infinite where none fits the memory. Where stashes
            have several policies to choose from, no order that keeps micro-batches first in, first out.
        closed: nothing better than min(incumbent, plan) is left, up to rounding of ticks.
        effort: deterministic time used. `interrupted`: Ctrl-C came.
        ended: neither time nor effort cut it short: more of them come to nothing else.
        coarse: the same, but for ticks that were too coarse to close it.
    """

    plan: Plan | None
    bound_s: float
    closed: bool
    effort: float
    interrupted: bool = False
    ended: bool = True
    coarse: bool = False


def solve(
    candidate: Candidate,
    effort: Effort,
    rules: Rules = _KEPT,
    known: Known = _NOTHING,
    report: Report | None = None,
    coarse: bool = False,
) -> Found:
    """Searches the best order of a candidate, where they are open on the best devices, below the incumbent.

    The candidate has one or two routes, whose own micro-batches and stash rows do not matter, with two routes only
    that both have some; where devices are open the routes do not matter either, and the bound speaks for one pipeline
    whose stages have one policy each. `report` gets the bound in seconds about twice a second.
    `coarse`: in few ticks, which lose short ops where these are not exact: a quick answer whose bound holds.
    Raises ValueError for more than two routes.
    """
    if not rules.open and len(distinct_routes(candidate)) > 2:
        raise ValueError("the exact search takes at most two routes")
    return _Search(candidate, effort, rules, known, report, coarse).run()


class _Search:
    """One call of `solve`: the best plan so far, the bound, and what is left of the effort."""

    def __init__(
        self,
        candidate: Candidate,
        effort: Effort,
        rules: Rules,
        known: Known,
        report: Report | None,
        coarse: bool,
    ) -> None:
        self.candidate, self.effort, self.rules, self.known, self.report = candidate, effort, rules, known, report
        self.coarse = coarse
        self.deadline = time.monotonic() + effort.seconds
        self.seconds = Durations(candidate, rules)
        self.serial_s = self.seconds.serial()
        self.best_s = known.incumbent_s
        self.plan: Plan | None = None
        self.used, self.interrupted, self.cut_short, self.rough = 0.0, False, False, False
        self.bound_s = max(known.lower_s, _cheap_seconds(candidate, rules))
        self.devices = len(candidate.problem.cluster)
        self.short = self.lowered = [0] * (self.devices + len(candidate.problem.cluster.node_groups))
        """Bytes taken off every device and every node's host memory: of late too few, and now."""

    # ------------------------------------------------------------ the loop

    def run(self) -> Found:
        """Solves, and again with less memory while the plan found does not fit."""
        if math.isinf(self.bound_s):
            return self._done(True, math.inf)
        for attempt in range(COUNT.fitted + 1):
            first = attempt == 0
            instance = self._instance()
            self.bound_s = max(self.bound_s, least_ticks(instance) * instance.tick.seconds)
            start = self._mirrored(instance) or _solution(self.known.plan, self.candidate, instance)
            lower, upper = self._range(instance)
            if upper < lower:
                return self._done(first, self.best_s if first else self.bound_s)
            if not instance.possible:
                if first or not self._raise():
                    return self._done(first, math.inf if first else self.bound_s)
                continue
            model = build_model(instance, lower, upper)
            if start is not None:
                hint(model, start)
            beyond_s = self.best_s if self.best_s <= self.serial_s else math.inf
            solution, outcome = self._run(model, instance, 1.0)
            self.cut_short |= not (outcome.optimal or outcome.infeasible)
            self.rough |= self.coarse and outcome.optimal and not instance.tick.exact
            if first:
                proved_s = beyond_s if outcome.infeasible else outcome.bound * instance.tick.seconds
                self.bound_s = max(self.bound_s, proved_s)
            if solution is None:
                if first or not outcome.infeasible or not self._raise():
                    return self._done(first and outcome.infeasible, self.bound_s)
                continue
            over = self._offer(instance, solution)
            if over is not None and not any(over):
                met = self.best_s <= self.bound_s * (1 + TOLERANCE.same)
                return self._done(met or (first and outcome.optimal and not self.rough), self.bound_s)
            if over is None:
                break
            if self.interrupted or time.monotonic() >= self.deadline:
                self.cut_short = True
                break
            self.short = self.lowered
            self.lowered = [less + more for less, more in zip(self.lowered, over, strict=True)]
        return self._done(False, self.bound_s)

    def _raise(self) -> bool:
        """Where nothing is left below the lowered limits, takes off half as much more as it did; False where that is
        what was too little."""
        self.lowered = [(few + less) // 2 for few, less in zip(self.short, self.lowered, strict=True)]
        return self.lowered != self.short

    def _done(self, closed: bool, bound_s: float) -> Found:
        ended, rough = not (self.cut_short or self.rough), self.rough and not self.cut_short
        return Found(self.plan, bound_s, closed, self.used, self.interrupted, ended, rough)

    @property
    def horizon_s(self) -> float:
        return min(self.best_s, self.serial_s)

    def _instance(self) -> Instance:
        allowed = limits(self.candidate.problem)
        devices, hosts = self.lowered[: self.devices], self.lowered[self.devices :]
        return build_instance(self.seconds, allowed, self.horizon_s, devices, hosts, self.coarse)

    def _range(self, instance: Instance) -> tuple[int, int]:
        """The least and the most ticks of a step below the best plan."""
        lower, upper = instance.tick.down(self.bound_s), instance.tick.down(self.horizon_s)
        return lower, upper - (self.best_s <= self.serial_s and instance.tick.exact)

    def _run(self, model: Variables, instance: Instance, share: float) -> tuple[Solution | None, Outcome]:
        seconds = share * (self.deadline - time.monotonic())
        left = share * max(0.0, self.effort.deterministic - self.used)
        report, tick_s = self.report if share == 1.0 else None, instance.tick.seconds
        scaled = None if report is None else lambda ticks: report(ticks * tick_s)
        upward = len(self.rules.policies) == 1 and not self.rules.open
        solver, outcome = run(model.model, replace(self.effort, seconds=seconds, deterministic=left), 0, scaled, upward)
        self.used += outcome.effort
        self.interrupted |= outcome.interrupted
        return read(model, solver) if outcome.found else None, outcome

    def _mirrored(self, instance: Instance) -> Solution | None:
        """The best mirrored schedule, offered as a plan."""
        half = fold(instance) if self.rules.mirror and not self.interrupted else None
        lower, upper = self._range(instance)
        if half is None or upper < lower or not half.possible:
            return None
        found, _ = self._run(build_model(half, lower, upper), half, MODEL.mirror)
        if found is None:
            return None
        both = unfold(found, instance.micro_batches)
        self._offer(instance, both)
        return both

    def _offer(self, instance: Instance, solution: Solution) -> list[int] | None:
        """Bytes over the limit of every device and host, None where the plan cannot run; keeps it if it is best."""
        given = self.candidate
        try:
            candidate = regroup(given.problem, given.stages, pipelines(instance, solution), rows(instance, solution))
            plan = assemble(candidate, op_lists(instance, solution), "search")
        except (PlanError, OutOfTime):
            return None
        assert plan.forecast is not None
        over = [*excess(plan), *host_excess(plan)]
        if not any(over) and plan.forecast.step_s < self.best_s:
            self.plan, self.best_s = plan, plan.forecast.step_s
        return over


def _cheap_seconds(candidate: Candidate, rules: Rules) -> float:
    """The bound of the candidate's routes; of their times alone where a stash may go; of any plan on open devices."""
    if rules.open:
        return bounds.any_plan(candidate.problem, rules.split)
    batches = candidate.problem.workload.micro_batches
    routes = distinct_routes(candidate)
    one = [Pipeline(r, r, tuple(range(k, batches, len(routes)))) for k, r in enumerate(routes)]
    kept = Candidate(candidate.problem, candidate.stages, tuple(one))
    least_s = bounds.candidate if rules.policies == {KEEP} else bounds.whatever_stashes
    return least_s(kept, None, rules.split)


# ------------------------------------------------------------------ the hint


def _solution(plan: Plan | None, candidate: Candidate, instance: Instance) -> Solution | None:
    """The start times of a plan with the same stages and routes, micro-batches renumbered in the order of first F."""
    if plan is None or instance.open or plan.stages != candidate.stages:
        return None
    routes = [instance.route(way) for way in range(instance.directions)]
    taken = {(p.forward, p.backward) for p in plan.pipelines if p.micro_batches}
    if taken != {(route, route) for route in routes}:
        return None
    way_of = {m: routes.index(p.forward) for p in plan.pipelines for m in p.micro_batches}
    row_of = {m: row for p, row in zip(plan.pipelines, plan.stash, strict=True) for m in p.micro_batches}
    if instance.alike and 2 * sum(way_of.values()) > len(way_of):
        way_of = {m: 1 - way for m, way in way_of.items()}
    timed = [found for device in simulate(plan).devices for found in device.ops if found.op.micro_batch >= 0]
    first = {found.op.micro_batch: found.start_s for found in timed if found.op[:2] == (Kind.F, 0)}
    number = {m: k for k, m in enumerate(sorted(way_of, key=lambda m: (way_of[m], first.get(m, 0.0), m)))}
    starts: dict[Key, int] = {}
    times: dict[str, dict[Unit, int]] = {"out": {}, "back": {}}
    for op, start_s, _ in timed:
        unit, tick = (op.stage, number[op.micro_batch]), instance.tick.down(start_s)
        if op.kind in _COPIES:
            times[_COPIES[op.kind]][unit] = tick
        else:
            starts[op.kind, *unit] = tick
    chosen = {(s, number[m]): policy for m, row in row_of.items() for s, policy in enumerate(row) if policy != KEEP}
    sites = {(s, number[m]): (way, way) for m, way in way_of.items() for s in range(len(routes[0]))}
    return Solution(starts, sites, chosen, times)
