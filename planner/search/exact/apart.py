"""The exact search over devices: every stage of a cut chooses a forward device, a backward device and a policy.

One pipeline. Stashes that stay are kept or recomputed, others go to the backward device, to the host and back, or to
a third device and back. Found plans are assembled and simulated, as in `exact`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace

from ... import bounds
from ...basics import OutOfTime, PlanError
from ...graph import Candidate, regroup, tie_seconds, update_seconds
from ...lower import assemble
from ...plan import Plan
from ..common import excess, host_excess, limits
from .apart_instance import ApartInstance, build_apart
from .apart_lists import op_lists, pipeline
from .apart_model import ApartModel, ApartSolution
from .instance import Rules
from .orders import RETRIES, Found, Report
from .solver import Effort, run


def solve_apart(
    candidate: Candidate,
    effort: Effort,
    incumbent_s: float = math.inf,
    report: Report | None = None,
    *,
    split: bool = False,
    policies: frozenset[str],
    lower_s: float = 0.0,
) -> Found:
    """Searches devices, policies and order of a candidate's stages for something below `incumbent_s`.

    The candidate's pipelines do not matter. `policies`: what may happen to the stashes of a stage on one device, a
    subset of "keep", "recompute", "offload" and "ship". The bound speaks for one pipeline whose stages have one
    policy each. Otherwise like `exact.solve`.
    """
    search = _Search(candidate, effort, incumbent_s, report, Rules(split, policies), lower_s)
    return search.run()


class _Search:
    """One call of `solve_apart`."""

    def __init__(
        self,
        candidate: Candidate,
        effort: Effort,
        incumbent_s: float,
        report: Report | None,
        rules: Rules,
        lower_s: float,
    ) -> None:
        self.candidate, self.effort, self.report, self.rules = candidate, effort, report, rules
        self.deadline = time.monotonic() + effort.seconds
        self.best_s, self.serial_s = incumbent_s, _serial_seconds(candidate)
        self.bound_s = max(lower_s, bounds.any_plan(candidate.problem, rules.split))
        self.plan: Plan | None = None
        self.used, self.interrupted = 0.0, False

    def run(self) -> Found:
        """Solves, and again with less memory while the plan found does not fit."""
        lowered = [0] * len(self.candidate.problem.cluster)
        for attempt in range(RETRIES + 1):
            first = attempt == 0
            horizon = min(self.best_s, self.serial_s)
            instance = build_apart(self.candidate, limits(self.candidate.problem), horizon, lowered, self.rules)
            lower, upper = instance.tick.down(self.bound_s), instance.tick.down(horizon)
            upper -= self.best_s <= self.serial_s and instance.tick.exact
            if upper < lower:
                return self._done(first, self.best_s if first else self.bound_s)
            solution, infeasible, optimal = self._solve(instance, lower, upper, first)
            if solution is None:
                return self._done(first and infeasible, self.bound_s)
            over = self._offer(instance, solution)
            if over is not None and not any(over):
                return self._done(first and optimal, self.bound_s)
            if over is None or self.interrupted or time.monotonic() >= self.deadline:
                break
            lowered = [less + more for less, more in zip(lowered, over, strict=False)]
        return self._done(False, self.bound_s)

    def _done(self, closed: bool, bound_s: float) -> Found:
        return Found(self.plan, bound_s, closed, self.used, self.interrupted)

    def _solve(
        self, instance: ApartInstance, lower: int, upper: int, first: bool
    ) -> tuple[ApartSolution | None, bool, bool]:
        """A solution, if there is one, and whether there is certainly none, or no better."""
        model, tick_s, report = ApartModel(instance, lower, upper), instance.tick.seconds, self.report
        scaled = None if report is None else lambda ticks: report(ticks * tick_s)
        left = max(0.0, self.effort.deterministic - self.used)
        effort = replace(self.effort, seconds=self.deadline - time.monotonic(), deterministic=left)
        solver, outcome = run(model.model, effort, lower, scaled, False)
        self.used += outcome.effort
        self.interrupted |= outcome.interrupted
        if first:
            beyond = self.best_s if self.best_s <= self.serial_s else math.inf
            self.bound_s = max(self.bound_s, beyond if outcome.infeasible else outcome.bound * tick_s)
        return model.read(solver) if outcome.found else None, outcome.infeasible, outcome.optimal

    def _offer(self, instance: ApartInstance, solution: ApartSolution) -> list[int] | None:
        """Bytes over the limit of every device and host, None where the plan cannot run; keeps it if it is best."""
        given, route = self.candidate, pipeline(instance, solution)
        rows = dict.fromkeys(route.micro_batches, solution.policies)
        try:
            placed = regroup(given.problem, given.stages, [route], rows)
            plan = assemble(placed, op_lists(instance, solution), "search")
        except (PlanError, OutOfTime):
            return None
        assert plan.forecast is not None
        over = [*excess(plan), *host_excess(plan)]
        if not any(over) and plan.forecast.step_s < self.best_s:
            self.plan, self.best_s = plan, plan.forecast.step_s
        return over


def _serial_seconds(candidate: Candidate) -> float:
    """A step in which one op, message or copy runs at a time, on the slowest devices: no best plan is longer."""
    costs, cluster = candidate.costs, candidate.problem.cluster
    slowest = min(device.kind.speed for device in cluster.devices)
    pairs = [(a, b) for a in range(len(cluster)) for b in range(len(cluster))]

    def hop(sizes: Iterable[int]) -> float:
        return sum((max(bounds.message_seconds(candidate, a, b, size) for a, b in pairs) for size in sizes), 0.0)

    hosts = [group.host_link for group in cluster.node_groups]
    copies = sum(max(link.occupation_s(int(n)) + link.latency_s for link in hosts) for n in costs.stash_bytes)
    work = float((2 * costs.forward_s + costs.backward_s).sum()) / slowest
    way = (
        2 * hop(e.bytes for e in costs.edges) + 2 * hop(costs.stash_bytes.tolist()) + hop(costs.incoming_bytes.tolist())
    )
    steps = [
        max(bounds.finish_seconds(candidate, s, d) for d in range(len(cluster))) for s in range(len(candidate.stages))
    ]
    finish = sum(steps) + hop(costs.trained_bytes.tolist()) + _tied_seconds(candidate)
    return (candidate.problem.workload.micro_batches * (work + way + 2 * copies) + finish) * (1 + 1e-6)


def _tied_seconds(candidate: Candidate) -> float:
    """Seconds in which all sums of tied gradients, and the steps that they lead to, end on any devices."""
    problem, workload = candidate.problem, candidate.problem.workload
    return sum(
        tie_seconds(problem.cluster, len(tie.stages), workload.gradient_bytes(tie.trained_bytes))
        + max(update_seconds(problem, d, tie.trained_bytes) for d in range(len(problem.cluster)))
        for tie in candidate.costs.ties
    )
