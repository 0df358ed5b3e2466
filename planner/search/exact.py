"""The exact order search: the best order of ops of one candidate, by CP-SAT, with a proven bound.

The candidate: stage s on the device of its pipeline, F and B unsplit, stashes kept; with two pipelines the share
of each direction is free. The solution is assembled and simulated; where tensors in transit, which the model
leaves out, exceed a limit, the search is repeated with that much less memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .. import bounds
from ..errors import PlanError
from ..lower import assemble
from ..operations import Candidate
from ..plan import Kind, Pipeline, Plan
from ..simulate import simulate
from .fit import excess, limits
from .instance import Instance, build_instance
from .model_orders import OrderModel
from .solver import Effort, Outcome, run

Report = Callable[[float], None]
RETRIES = 3


@dataclass(frozen=True)
class Found:
    """What the exact search says of a candidate.

    Attributes:
        plan: the best plan found that fits, simulated; None where there is none below the incumbent.
        bound_s: no order of this candidate takes less (seconds); infinite where none fits the memory.
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
) -> Found:
    """Searches the best order of a candidate with one or two pipelines for something below `incumbent_s`.

    The pipelines' own micro-batches do not matter, with two only that both have some. `hint`: a plan of the same
    stages to start from.
    """
    cheap_s = bounds.candidate(candidate)
    horizon_s = min(incumbent_s, _serial_seconds(candidate))
    lowered = [0] * len(candidate.problem.cluster)
    used, bound_s, deadline = 0.0, cheap_s, time.monotonic() + effort.seconds
    for attempt in range(RETRIES + 1):
        instance = build_instance(candidate, limits(candidate.problem), horizon_s, lowered)
        model = _model(instance, cheap_s, horizon_s, incumbent_s)
        if model is None:
            return Found(None, incumbent_s if attempt == 0 else bound_s, attempt == 0, used)
        if not model.possible:
            return Found(None, math.inf if attempt == 0 else bound_s, attempt == 0, used)
        _hint(model, instance, candidate, hint)
        tick_s = instance.tick.seconds
        left = replace(effort, seconds=deadline - time.monotonic(), deterministic=max(0.0, effort.deterministic - used))
        solver, outcome = run(model.model, left, 0, _scaled(report, tick_s))
        used += outcome.effort
        if attempt == 0:
            bound_s = max(cheap_s, _proved(outcome, instance, incumbent_s))
        if not outcome.found:
            closed = attempt == 0 and outcome.infeasible
            return Found(None, bound_s, closed, used, outcome.interrupted)
        plan = _assemble(candidate, model, solver)
        over = excess(plan) if plan is not None else []
        if plan is not None and not any(over):
            closed = attempt == 0 and outcome.optimal
            return Found(plan, bound_s, closed, used, outcome.interrupted)
        if plan is None or outcome.interrupted or time.monotonic() >= deadline:
            break
        lowered = [less + more for less, more in zip(lowered, over, strict=True)]
    return Found(None, bound_s, False, used, outcome.interrupted)


def _model(instance: Instance, cheap_s: float, horizon_s: float, incumbent_s: float) -> OrderModel | None:
    """The model of orders below the incumbent; None where the ticks leave nothing below it."""
    lower = instance.tick.down(cheap_s)
    upper = instance.tick.down(horizon_s)
    if incumbent_s <= horizon_s and instance.tick.exact:
        upper -= 1
    return None if upper < lower else OrderModel(instance, lower, upper)


def _proved(outcome: Outcome, instance: Instance, incumbent_s: float) -> float:
    """The bound in seconds: every order at or above the incumbent when nothing below it exists."""
    if outcome.infeasible:
        return incumbent_s
    return outcome.bound * instance.tick.seconds


def _scaled(report: Report | None, tick_s: float) -> Report | None:
    if report is None:
        return None
    return lambda ticks: report(ticks * tick_s)


def _serial_seconds(candidate: Candidate) -> float:
    """A step in which one op or message runs at a time: no best order is longer."""
    routes = [bounds.route(candidate, pipeline) for pipeline in candidate.pipelines]
    one = 0.0
    for pipeline, found in zip(candidate.pipelines, routes, strict=True):
        travel = sum(
            bounds.message_seconds(candidate, pipeline.forward[a], pipeline.forward[b], size)
            + bounds.message_seconds(candidate, pipeline.forward[b], pipeline.forward[a], size)
            for a, b, size in candidate.costs.edges
        )
        one = max(one, float(found.load_s.sum()) + travel)
    finish = sum(
        bounds.finish_seconds(candidate, stage, device)
        for pipeline in candidate.pipelines
        for stage, device in enumerate(pipeline.forward)
    )
    return (candidate.problem.workload.micro_batches * one + finish) * (1 + 1e-6)


def _assemble(candidate: Candidate, model: OrderModel, solver: object) -> Plan | None:
    pipelines, orders = model.read(solver)  # type: ignore[arg-type]
    chosen = Candidate(candidate.problem, candidate.stages, pipelines)
    try:
        return assemble(chosen, orders, "search")
    except PlanError:
        return None


def _hint(model: OrderModel, instance: Instance, candidate: Candidate, plan: Plan | None) -> None:
    """Hints the start times of a plan with the same stages and directions, micro-batches renumbered."""
    if plan is None or plan.stages != candidate.stages:
        return
    ways = [pipeline.forward for pipeline in candidate.pipelines]
    if sorted(p.forward for p in plan.pipelines if p.micro_batches) != sorted(ways):
        return
    chosen = _by_share(plan.pipelines, ways, instance.mirrored)
    number: dict[int, int] = {}
    up: list[bool] = []
    for way, pipeline in enumerate(chosen):
        for m in pipeline.micro_batches:
            number[m] = len(number)
            up.append(way == 1)
    starts: dict[tuple[Kind, int, int], int] = {}
    for device in simulate(plan).devices:
        for timed in device.ops:
            if timed.op.kind in (Kind.F, Kind.B):
                key = (timed.op.kind, timed.op.stage, number[timed.op.micro_batch])
                starts[key] = instance.tick.down(timed.start_s)
    model.hint(starts, up)


def _by_share(plan: Sequence[Pipeline], ways: Sequence[tuple[int, ...]], mirrored: bool) -> list[Pipeline]:
    """The plan's pipelines in the order of the ways, or the larger share first where the model swaps them."""
    found = {pipeline.forward: pipeline for pipeline in plan}
    chosen = [found[way] for way in ways]
    if mirrored and len(chosen) == 2 and len(chosen[0].micro_batches) < len(chosen[1].micro_batches):
        chosen.reverse()
    return chosen
