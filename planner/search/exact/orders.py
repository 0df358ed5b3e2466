"""The exact order search: the best order of ops of one candidate, by CP-SAT, with a proven bound.

The candidate: one route, which may visit a device repeatedly, or two whose shares are free; backwards whole or split;
stashes kept, recomputed or offloaded as allowed, decided for every micro-batch and stage. The solution is assembled
and simulated; where tensors in transit, which the model leaves out, exceed a limit, the search is repeated with that
much less memory. Two mirrored directions are first searched among mirrored schedules, for a good start.
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
from ..common import excess, host_excess, limits
from .instance import Instance, Rules, build_instance, distinct_routes
from .model_floor import least_ticks
from .model_lists import op_lists, pipelines, rows
from .model_mirror import fold, unfold
from .model_orders import Key, OrderModel, Solution
from .solver import Effort, Outcome, run

Report = Callable[[float], None]
RETRIES = 3
MIRROR_SHARE = 0.4
"""Share of the effort that mirrored schedules get."""
_NO_LIMIT = 1 << 50


@dataclass(frozen=True)
class Found:
    """What the exact search says of a candidate.

    Attributes:
        plan: the best plan found that fits, simulated; None where there is none below the incumbent.
        bound_s: no order of this candidate takes less (seconds); infinite where none fits the memory. Where stashes
            have several policies to choose from, no order that keeps micro-batches first in, first out.
        closed: nothing better than min(incumbent, plan) is left, up to rounding of ticks.
        effort: deterministic time used. `interrupted`: Ctrl-C came.
    """

    plan: Plan | None
    bound_s: float
    closed: bool
    effort: float
    interrupted: bool = False


def solve(
    candidate: Candidate,
    effort: Effort,
    incumbent_s: float = math.inf,
    hint: Plan | None = None,
    report: Report | None = None,
    *,
    split: bool = False,
    policies: frozenset[str] = frozenset({KEEP}),
    lower_s: float = 0.0,
    mirror: bool = True,
) -> Found:
    """Searches the best order of a candidate with one or two routes for something below `incumbent_s`.

    The pipelines' own micro-batches and stash rows do not matter, with two routes only that both have some. `hint`: a
    plan of the same stages and routes to start from. `split`: separable stages run I and W. `policies`: what may
    happen to a stash, a subset of "keep", "recompute" and "offload". `lower_s`: a proven bound, in seconds. `mirror`:
    whether mirrored schedules are searched first. `report` gets the bound in seconds about twice a second. Raises
    ValueError for more than two routes.
    """
    if len(distinct_routes(candidate)) > 2:
        raise ValueError("the exact search takes at most two routes")
    rules = Rules(split, policies)
    return _Search(candidate, effort, incumbent_s, hint, report, rules, lower_s, mirror).run()


class _Search:
    """One call of `solve`: the best plan so far, the bound, and what is left of the effort."""

    def __init__(
        self,
        candidate: Candidate,
        effort: Effort,
        incumbent_s: float,
        hint: Plan | None,
        report: Report | None,
        rules: Rules,
        lower_s: float,
        mirror: bool,
    ) -> None:
        self.candidate, self.effort, self.hint, self.report = candidate, effort, hint, report
        self.rules, self.mirror = rules, mirror
        self.deadline = time.monotonic() + effort.seconds
        self.serial_s = _serial_seconds(candidate)
        self.best_s = incumbent_s
        self.plan: Plan | None = None
        self.used, self.interrupted = 0.0, False
        self.bound_s = max(lower_s, _cheap_seconds(candidate, rules))
        self.lowered = [0] * len(candidate.problem.cluster)
        self.host_lowered = [0] * len(candidate.problem.cluster.node_groups)

    # ------------------------------------------------------------ the loop

    def run(self) -> Found:
        """Solves, and again with less memory while the plan found does not fit."""
        if math.isinf(self.bound_s):
            return self._done(True, math.inf)
        for attempt in range(RETRIES + 1):
            first = attempt == 0
            instance = self._instance()
            self.bound_s = max(self.bound_s, least_ticks(instance) * instance.tick.seconds)
            start = _solution(self.hint, self.candidate, instance)
            start = self._mirrored(instance) or start
            model = self._model(instance)
            if model is None:
                return self._done(first, self.best_s if first else self.bound_s)
            if not model.possible:
                return self._done(first, math.inf if first else self.bound_s)
            if start is not None:
                model.hint(start)
            solution, outcome = self._run(model, instance, 1.0)
            if first:
                self.bound_s = max(self.bound_s, self._proved(outcome, instance))
            if solution is None:
                return self._done(first and outcome.infeasible, self.bound_s)
            over = self._offer(instance, solution)
            if over is not None and not any(over):
                return self._done(first and outcome.optimal, self.bound_s)
            if over is None or self.interrupted or time.monotonic() >= self.deadline:
                break
            devices = len(self.lowered)
            self.lowered = [less + more for less, more in zip(self.lowered, over[:devices], strict=True)]
            self.host_lowered = [less + more for less, more in zip(self.host_lowered, over[devices:], strict=True)]
        return self._done(False, self.bound_s)

    def _done(self, closed: bool, bound_s: float) -> Found:
        return Found(self.plan, bound_s, closed, self.used, self.interrupted)

    @property
    def horizon_s(self) -> float:
        return min(self.best_s, self.serial_s)

    def _instance(self) -> Instance:
        allowed = limits(self.candidate.problem)
        return build_instance(self.candidate, allowed, self.horizon_s, self.lowered, self.rules, self.host_lowered)

    def _model(self, instance: Instance) -> OrderModel | None:
        """The model of orders below the best plan; None where the ticks leave nothing below it."""
        lower, upper = instance.tick.down(self.bound_s), instance.tick.down(self.horizon_s)
        if self.best_s <= self.serial_s and instance.tick.exact:
            upper -= 1
        return None if upper < lower else OrderModel(instance, lower, upper)

    def _run(self, model: OrderModel, instance: Instance, share: float) -> tuple[Solution | None, Outcome]:
        seconds = share * (self.deadline - time.monotonic())
        left = share * max(0.0, self.effort.deterministic - self.used)
        report, tick_s = self.report if share == 1.0 else None, instance.tick.seconds
        scaled = None if report is None else lambda ticks: report(ticks * tick_s)
        upward = len(self.rules.policies) == 1
        solver, outcome = run(model.model, replace(self.effort, seconds=seconds, deterministic=left), 0, scaled, upward)
        self.used += outcome.effort
        self.interrupted |= outcome.interrupted
        return model.read(solver) if outcome.found else None, outcome

    def _mirrored(self, instance: Instance) -> Solution | None:
        """The best mirrored schedule, offered as a plan."""
        half = fold(instance) if self.mirror and not self.interrupted else None
        model = None if half is None else self._model(half)
        if half is None or model is None or not model.possible:
            return None
        found, _ = self._run(model, half, MIRROR_SHARE)
        if found is None:
            return None
        both = unfold(found, instance.micro_batches)
        self._offer(instance, both)
        return both

    def _proved(self, outcome: Outcome, instance: Instance) -> float:
        """The bound in seconds: every order at or above the best plan when nothing below it exists."""
        return self.best_s if outcome.infeasible else outcome.bound * instance.tick.seconds

    def _offer(self, instance: Instance, solution: Solution) -> list[int] | None:
        """Bytes over the limit of every device and host, None where the plan cannot run; keeps it if it is best."""
        given = self.candidate
        candidate = regroup(given.problem, given.stages, pipelines(instance, solution), rows(instance, solution))
        try:
            plan = assemble(candidate, op_lists(instance, solution), "search")
        except (PlanError, OutOfTime):
            return None
        assert plan.forecast is not None
        over = [*excess(plan), *host_excess(plan)]
        better = self.plan is None or self.plan.forecast is None or plan.forecast.step_s < self.plan.forecast.step_s
        if not any(over) and better:
            self.plan, self.best_s = plan, min(self.best_s, plan.forecast.step_s)
        return over


def _cheap_seconds(candidate: Candidate, rules: Rules) -> float:
    """The bound of the candidate's routes; of their times alone where a stash may go."""
    batches = candidate.problem.workload.micro_batches
    routes = distinct_routes(candidate)
    one = [Pipeline(r, r, tuple(range(k, batches, len(routes)))) for k, r in enumerate(routes)]
    kept = Candidate(candidate.problem, candidate.stages, tuple(one))
    no_limits = None if rules.policies == {KEEP} else [_NO_LIMIT] * len(candidate.problem.cluster)
    return bounds.candidate(kept, split=rules.split, limits=no_limits)


def _serial_seconds(candidate: Candidate) -> float:
    """A step in which one op, message or copy runs at a time: no best order is longer."""
    one, finish = 0.0, 0.0
    costs, nodes = candidate.costs, candidate.problem.cluster.node_groups
    for devices in distinct_routes(candidate):
        total = sum(
            bounds.message_seconds(candidate, devices[a], devices[b], size)
            + bounds.message_seconds(candidate, devices[b], devices[a], size)
            for a, b, size in costs.edges
        )
        for stage, device in enumerate(devices):
            kind = candidate.problem.cluster.devices[device]
            link = nodes[kind.node].host_link
            total += float(2 * costs.forward_s[stage] + costs.backward_s[stage]) / kind.kind.speed
            total += 2 * (link.occupation_s(int(costs.stash_bytes[stage])) + link.latency_s)
            finish += bounds.finish_seconds(candidate, stage, device)
        one = max(one, total)
    return (candidate.problem.workload.micro_batches * one + finish) * (1 + 1e-6)


# ------------------------------------------------------------------ the hint


def _solution(plan: Plan | None, candidate: Candidate, instance: Instance) -> Solution | None:
    """The start times of a plan with the same stages and routes, micro-batches renumbered in the order of first F."""
    if plan is None or plan.stages != candidate.stages:
        return None
    routes = [way.devices for way in instance.ways]
    taken = {(p.forward, p.backward) for p in plan.pipelines if p.micro_batches}
    if taken != {(route, route) for route in routes}:
        return None
    way_of = {m: routes.index(p.forward) for p in plan.pipelines for m in p.micro_batches}
    row_of = {m: row for p, row in zip(plan.pipelines, plan.stash, strict=True) for m in p.micro_batches}
    if instance.mirrored and 2 * sum(way_of.values()) > len(way_of):
        way_of = {m: 1 - way for m, way in way_of.items()}
    timed = [found for device in simulate(plan).devices for found in device.ops if found.op.micro_batch >= 0]
    first = {found.op.micro_batch: found.start_s for found in timed if found.op[:2] == (Kind.F, 0)}
    number = {m: k for k, m in enumerate(sorted(way_of, key=lambda m: (way_of[m], first.get(m, 0.0), m)))}
    starts: dict[Key, int] = {}
    for op, start_s, _ in timed:
        starts[op.kind, op.stage, number[op.micro_batch]] = instance.tick.down(start_s)
    chosen = {(s, number[m]): policy for m, row in row_of.items() for s, policy in enumerate(row) if policy != KEEP}
    ways = [way for _, way in sorted((number[m], way) for m, way in way_of.items())]
    return Solution(starts, ways, chosen)
