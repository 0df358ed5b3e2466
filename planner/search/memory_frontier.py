"""Step time against memory: the best plan for every limit from too little to what no limit would take.

A plan that fits a limit fits every higher one, so the step never grows with the limit: each search starts from the
fastest plan known to fit, and what it finds is offered to all limits. A bound holds for every lower limit too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..basics import WorkloadError, heeding_ctrl_c
from ..plan import Plan, Problem
from ..problem import Cluster, ModelGraph, SearchSpace, Workload, stages_of
from ..simulate import simulate
from .common import COUNT, OnProgress, Proven, Shortage, fits, told
from .driver import plan as search
from .frontier_point import Frontier, FrontierPoint
from .proofs import told_of


@heeding_ctrl_c()
def frontier(
    model: ModelGraph,
    cluster: Cluster,
    workload: Workload,
    space: SearchSpace = SearchSpace(),  # noqa: B008 - immutable
    count: int = 8,
    known: Iterable[Plan] = (),
    time_limit: float = 60,
    seed: int = 0,
    workers: int = 2,
    deterministic_limit: float | None = None,
    on_progress: OnProgress | None = None,
) -> Frontier:
    """The best plans for `count` memory limits in ascending order, steps never growing, each of them checked to fit.

    The first limit is a sixteenth below what the leanest plan found needs, the second is what it needs, the last is
    the peak of the fastest plan under the workload's own limit; the others lie evenly between. Where leaner plans
    are found again and again, the first limit is left out. Every search gets
    `time_limit` seconds, and there are up to three more than limits, to find the lowest. `known`: plans of this model
    and cluster, such as those of named schedules, which the frontier is never worse than. The rest are `plan`'s.

    Ctrl-C returns what is known by then. Raises InputError for bad input.
    """
    if space.asynchronous:
        raise WorkloadError("a frontier is of steps: without a flush there is none")
    if isinstance(count, bool) or not isinstance(count, int) or count < COUNT.frontier_limits:
        raise WorkloadError(f"a frontier has at least {COUNT.frontier_limits} limits, got {count!r}")

    def solve(limit: int | None, hint: Plan | None) -> FrontierPoint:
        asked = replace(workload, memory_limit_bytes=limit)
        found = search(model, cluster, asked, space, time_limit, seed, workers, deterministic_limit, hint, on_progress)
        lacking = [x.limit_bytes + x.over_bytes for x in found.violations if isinstance(x, Shortage)]
        lean.extend([max(lacking)] if lacking else [])
        return FrontierPoint(limit or 0, found.status, found.bound_s, found.plan)

    lean: list[int] = []  # bytes a device of the leanest plans that were seen
    cut = None if space.cut is None else stages_of(model, space.cut)
    mine = (p for p in known if cut is None or p.stages == cut)
    pool = [p for p in (_under(p, Problem(model, cluster, workload)) for p in mine) if fits(p)]
    free = solve(workload.memory_limit_bytes, _fastest(pool))
    pool += [p for p in (free.plan,) if p is not None]
    best = _fastest(pool)
    if best is None:
        return Frontier((replace(free, limit_bytes=max(_limits(cluster, workload))),))
    top = _peak(best)
    solve(1, None)
    floor, points = min([*lean, *map(_peak, pool)]), list[FrontierPoint]()
    for _ in range(COUNT.leanest):
        lower = solve(max(1, floor - 1 - floor // COUNT.leaner), None)
        if lower.plan is None:
            points = [lower] if lower.limit_bytes < floor else []
            break
        pool.append(lower.plan)
        floor = _peak(lower.plan)
    for limit in _between(floor, top, count - 1):
        hint = _fastest([p for p in pool if _peak(p) <= limit])
        point = replace(free, limit_bytes=limit) if limit == top else solve(limit, hint)
        pool += [point.plan] if point.plan is not None else []
        points.append(point)
    return Frontier(_settled(points, pool, space))


def _between(floor: int, top: int, count: int) -> list[int]:
    """`count` limits from `floor` to `top`, as even as whole bytes allow, without repeats."""
    return sorted({floor + round(k * (top - floor) / max(1, count - 1)) for k in range(count)})


def _limits(cluster: Cluster, workload: Workload) -> list[int]:
    return [workload.memory_limit(device.kind.memory_bytes) for device in cluster.devices]


def _peak(plan: Plan) -> int:
    """The most that a device holds."""
    assert plan.forecast is not None
    return max(plan.forecast.peak_bytes)


def _fastest(plans: Sequence[Plan]) -> Plan | None:
    """The fastest of them, of equals the leanest."""

    def cost(plan: Plan) -> tuple[float, int]:
        assert plan.forecast is not None
        return plan.forecast.step_s, _peak(plan)

    return min(plans, key=cost, default=None)


def _under(plan: Plan, problem: Problem) -> Plan:
    """The plan as one of this problem, its forecast simulated afresh."""
    moved = replace(plan, problem=problem)
    return moved.with_forecast(simulate(moved).forecast())


def _settled(points: Sequence[FrontierPoint], pool: Sequence[Plan], space: SearchSpace) -> tuple[FrontierPoint, ...]:
    """Every limit with the fastest plan that fits it, and the best bound of it or of a higher limit."""
    found: list[FrontierPoint] = []
    proven_s = 0.0
    for point in reversed(points):
        proven_s = max(proven_s, point.bound_s)
        best = _fastest([p for p in pool if _peak(p) <= point.limit_bytes])
        if best is None:
            found.append(replace(point, bound_s=proven_s))
        else:
            asked = replace(best.problem.workload, memory_limit_bytes=point.limit_bytes)
            found.append(_answer(point, _under(best, replace(best.problem, workload=asked)), space, proven_s))
    return tuple(reversed(found))


def _answer(point: FrontierPoint, plan: Plan, space: SearchSpace, proven_s: float) -> FrontierPoint:
    """The point of a plan, its forecast telling bound, gap and status.

    What its search proved of a part of the space counts where it is the plan of that search.
    """
    mine = point.plan is not None and plan.stages == point.plan.stages and plan.orders == point.plan.orders
    made = point.plan.provenance if mine and point.plan is not None else plan.provenance
    among = [Proven(made.among, made.among_bound_s)] if mine and made.among_bound_s is not None else []
    found = told(plan, told_of(plan.problem, space, proven_s, plan), among, made)
    return FrontierPoint(point.limit_bytes, found.status, found.bound_s, found.plan)
