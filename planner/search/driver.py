"""plan(): the search for a plan and its proof, within a time limit."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from ... import __version__
from .. import bounds
from ..cluster import Cluster
from ..errors import InputError, ModelError, WorkloadError
from ..lower import Assembled, assembled
from ..model_graph import ModelGraph
from ..operations import KEEP, OFFLOAD, RECOMPUTE, Candidate
from ..partition.chain import compositions, lightest
from ..plan import Pipeline, Plan, Problem, Provenance
from ..presets import PRESETS
from ..schedules import ASYNCHRONOUS, SCHEDULES, capped
from ..schedules.asynchronous import WEIGHTS
from ..workload import SearchSpace, Workload
from .considered import Considered
from .few import limit_uses, smaller, take_over
from .fit import Shortage, Stale, lacking, shortages
from .orders.shapes import MOST_CHUNKS, policies, routes
from .portfolio import (
    FEW_CUTS,
    Order,
    device_orders,
    place,
    run_capped,
    run_hint,
    run_lightest,
    run_named,
    run_remade,
)
from .result import Result
from .session import PROVEN, OnProgress, Progress, Session
from .sparing import overfull, run_sparing
from .techniques import by_turns
from .tight import run_glance, run_mixed
from .widths import Phases, parts, search_widths, splits

FEW = 0.6
"""Share of the effort for the problem with few micro-batches, where there is one."""
MOST_BYTES = 1 << 61
SPACE = (
    "contiguous stages in layer order, one to four a device, back and forth or round and round, one pipeline or two "
    "in opposite directions (on unequal devices also after sorting them), on all devices or alike on equal groups of "
    "them; any order, backward split where layers allow it, stashes kept, recomputed or offloaded as allowed, first in "
    "first out"
)
EVERYTHING = "every plan of contiguous stages that fits the memory, with the stash policies allowed and priced"
TOGETHER = "; forward and backward of a stage on one device"
ANYWHERE = (
    "; and one pipeline with as many stages as devices, for each stage any forward and any backward device and one "
    "stash policy, shipping to another device and back included"
)


def plan(
    model: ModelGraph,
    cluster: Cluster,
    workload: Workload,
    space: SearchSpace = SearchSpace(),  # noqa: B008 - immutable
    time_limit: float = 60,
    seed: int = 0,
    workers: int = 2,
    deterministic_limit: float | None = None,
    hint: Plan | None = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """The fastest plan found within `time_limit` seconds, with a proven bound on its step.

    With `space.asynchronous`, weights are updated without a flush, and what counts is the period of a micro-batch.
    `space.schedule` plans a named schedule on its best cut. `deterministic_limit` bounds CP-SAT's deterministic
    time; the answer depends on the wall clock only where `time_limit` is reached. `hint`: a plan to start from.
    `on_progress` receives Progress in the caller's thread. Ctrl-C returns the best plan so far.

    Raises InputError (a ValueError) for bad input; infeasible is an answer.
    """
    started = time.monotonic()
    _validate(model, cluster, workload, space)
    _validate_effort(time_limit, seed, workers, deterministic_limit, hint)
    problem = Problem(model, cluster, workload)
    session = Session(problem, space, started + time_limit, seed, workers, deterministic_limit, on_progress, started)
    orders = device_orders(problem, session.stages)
    if space.schedule in ASYNCHRONOUS:
        from .named_steady import plan_named

        return plan_named(session, orders)
    if space.asynchronous:
        from .steady.search import search_steady

        return search_steady(problem, space, started + time_limit, seed, hint, on_progress, started)
    try:
        _search(session, orders, hint)
    except KeyboardInterrupt:
        session.interrupted = True
    return _answer(session, orders)


def _search(session: Session, orders: list[Order], hint: Plan | None) -> None:
    session.bound_s = _space_bound(session)
    if math.isinf(session.bound_s) or (session.space.schedule == "search" and overfull(session)):
        return
    if hint is not None and session.space.schedule == "search":
        run_hint(session, hint)
    by_turns(session, _space_bound, lambda part: _search_space(part, orders))


def _search_space(session: Session, orders: list[Order]) -> None:
    ways = list(splits(session.problem, session.space))
    if ways:
        search_widths(session, orders, ways, Phases(_space_bound, _glance, _quick, _long))
    else:
        _glance(session, orders)
        _quick(session, orders)
        _long(session, orders)


def _glance(session: Session, orders: list[Order]) -> None:
    """One plan at once where memory is tight."""
    for order in orders if session.space.schedule == "search" and not session.resumed else ():
        run_glance(session, order)


def _space_bound(session: Session) -> float:
    return bounds.space(session.problem, _searched(session, session.apart))


def _quick(session: Session, orders: list[Order]) -> None:
    """The named schedules, and what needs least memory; with many micro-batches, of a problem with fewer."""
    searching = session.space.schedule == "search"
    if session.resumed:
        for order in orders:
            run_mixed(session, order, copies=True)
        return
    session.few = smaller(session, _space_bound)
    if session.few is not None:
        for order in orders:
            run_capped(session, order)
        if not (session.over or session.proven):
            _quick(session.few, orders)
            take_over(session, session.few, orders)
    else:
        steps = (run_lightest, run_sparing, run_glance, run_mixed, run_named, run_capped, run_remade)
        for step in steps if searching else (run_named,):
            for order in orders:
                step(session, order)
    for order in orders if searching else ():
        run_sparing(session, order)


def _long(session: Session, orders: list[Order]) -> None:
    """Exact search, races and windows; of a problem with fewer micro-batches first."""
    if session.space.schedule != "search" or session.over or session.proven:
        return
    from .improve import improve  # solver and compiler: loaded when they are needed

    if session.few is not None:
        limit_uses(session, session.few)
        with session.part(session.few, FEW):
            _long(session.few, orders)
        take_over(session, session.few, orders)
    if not (session.over or session.proven):
        improve(session, orders)


def _searched(session: Session, apart: bool) -> SearchSpace:
    """The space without policies that have no price, and with two devices a stage or not."""
    allowed = policies(session.problem, session.space)
    return replace(session.space, separate_backward=apart, offload=OFFLOAD in allowed, recompute=RECOMPUTE in allowed)


# ------------------------------------------------------------------ the answer


def _answer(session: Session, orders: list[Order]) -> Result:
    if session.best is None:
        return _no_plan(session, orders)
    step_s, (bound_s, space) = session.best_s, _proven_bound(session, orders)
    bound_s = min(bound_s, step_s)
    gap = step_s / bound_s - 1 if bound_s > 0 else (0.0 if step_s == 0 else math.inf)
    proven = gap <= PROVEN
    status = "optimal" if proven else "feasible"
    assert session.best.forecast is not None
    forecast = replace(session.best.forecast, bound_s=bound_s, gap=gap, status=status)
    made = Provenance(
        version=__version__,
        seed=session.seed,
        source=session.best.provenance.source,
        solver="CP-SAT" if session.space.schedule == "search" else "",
        seconds=time.monotonic() - session.started,
        space=space,
    )
    answer = joined(replace(session.best, forecast=forecast, provenance=made))
    return Result(status, answer, bound_s, gap, considered=_considered(session))


def _considered(session: Session) -> tuple[Considered, ...]:
    """The named schedules that were simulated, then everything else."""
    fit = [found for found in session.seen if not lacking(found)]
    named = Considered(
        f"named schedules on their best cuts: {len(session.seen)} simulated, {len(fit)} fit",
        session.bound_s,
        min((found.forecast.step_s for found in fit), default=None),
        "simulated",
    )
    few = () if session.few is None else session.few.ledger.settled(session.few.best_s)
    parts = [replace(part, what=f"few micro-batches: {part.what}") for part in few]
    return (named, *parts, *session.ledger.settled(session.best_s))


def joined(plan: Plan) -> Plan:
    """The plan with pipelines of one route and one row of stash policies made one."""
    taken: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]], list[int]] = {}
    for pipeline, row in zip(plan.pipelines, plan.stash, strict=True):
        taken.setdefault((pipeline.forward, pipeline.backward, row), []).extend(pipeline.micro_batches)
    if len(taken) == len(plan.pipelines):
        return plan
    pipelines = tuple(Pipeline(forward, backward, tuple(sorted(m))) for (forward, backward, _), m in taken.items())
    return replace(plan, pipelines=pipelines, stash=tuple(row for _, _, row in taken))


def _proven_bound(session: Session, orders: list[Order]) -> tuple[float, str]:
    """A proven bound, and the space that it speaks for.

    Where the bound of the whole space leaves a gap, and the plan has one device a stage, that of such plans.
    """
    best = session.best
    assert best is not None
    shapes_s, rest = min(session.shapes_s, session.widths_s), ANYWHERE if session.apart else TOGETHER
    grouped = _in_groups(session, best, orders)
    found = max(session.bound_s, shapes_s) if grouped or _goes_anywhere(session, best) else session.bound_s
    if session.apart and session.best_s > found * (1 + PROVEN) and grouped:
        together_s = min(session.together_s, session.widths_s)
        alone = max(bounds.space(session.problem, _searched(session, False)), together_s)
        if alone > found * (1 + PROVEN):
            return alone, (SPACE if alone == together_s else EVERYTHING) + TOGETHER
    if session.space.schedule == "search" and shapes_s > session.bound_s:
        return found, SPACE + rest
    return found, EVERYTHING + ("" if session.apart else TOGETHER)


def _goes_anywhere(session: Session, plan: Plan) -> bool:
    """Whether a plan is one of those whose stages choose their devices, where these are searched."""
    taken = {(p.forward, p.backward) for p in plan.pipelines}
    return session.apart and len(taken) == len(set(plan.stash)) == 1 and len(plan.stages) == session.stages


def _in_groups(session: Session, plan: Plan, orders: list[Order]) -> bool:
    """Whether a plan has one of the shapes with one device a stage, as a whole or group by group."""
    problem = session.problem
    if _in_shapes(plan, orders):
        return True
    for groups in splits(problem, session.space):
        mine = parts(plan, groups)
        if mine is not None:
            small = Problem(problem.model, problem.cluster.part(groups[0]), problem.workload)
            local = device_orders(small, min(len(groups[0]), session.stages))
            if all(_in_shapes(part, local) for part in mine):
                return True
    return False


def _in_shapes(plan: Plan, orders: list[Order]) -> bool:
    """Whether a plan has one of the shapes with one device a stage."""
    shapes = {
        frozenset({route, tuple(dict(zip(order, order[::-1], strict=True))[d] for d in route)})
        for order in orders
        for chunks in range(1, MOST_CHUNKS + 1)
        for route in routes(order, chunks)
    }
    taken = frozenset(p.forward for p in plan.pipelines)
    same = all(p.forward == p.backward for p in plan.pipelines)
    policies = {policy for row in plan.stash for policy in row}
    return same and policies <= {KEEP, RECOMPUTE, OFFLOAD} and any(taken <= shape for shape in shapes)


def _no_plan(session: Session, orders: list[Order]) -> Result:
    """Infeasible where proven, with what the least bad plan lacks; else unknown."""
    least = _least_bad(session, orders)
    short = shortages(least) if least is not None else ()
    proven = (math.isinf(session.bound_s) or _proven_infeasible(session, orders)) and bool(short)
    bound_s = session.bound_s if math.isfinite(session.bound_s) else bounds.any_plan(session.problem)
    return Result("infeasible" if proven else "unknown", None, bound_s, None, short, _considered(session))


def _least_bad(session: Session, orders: list[Order]) -> Plan | None:
    """The plan that exceeds its limits least: of those simulated, or one micro-batch at a time on the lightest cut."""
    tried = list(session.seen)
    if session.space.schedule == "search" or not tried:
        for order in orders:
            found = lightest(session.chain, order, [1] * len(order))
            if found is not None:
                tried.append(_serial(session, order, found[0]))
    least = min(tried, key=lacking, default=None)
    return None if least is None else least.plan


def _serial(session: Session, order: Order, cuts: tuple[int, ...]) -> Assembled:
    layout = capped(len(order), session.problem.workload.micro_batches, 1)
    placed = place(layout, order, len(session.problem.cluster))
    candidate = Candidate(session.problem, session.chain.stages(cuts), placed.pipelines)
    return assembled(candidate, placed.orders, placed.name)


def _proven_infeasible(session: Session, orders: list[Order]) -> bool:
    """Whether nothing of the space fits.

    Search: no shape fits, or stashes that can only be kept are too many. Named: its orders are fixed, so all cuts
    were simulated.
    """
    if session.interrupted:
        return False
    if session.space.schedule == "search":
        kept = not policies(session.problem, session.space)
        row = not session.apart and _overfull_in_a_row(session, orders)
        return session.hopeless or overfull(session) or (kept and row)
    if session.remaining_s <= 0:
        return False
    stages = {len(found.candidate.stages) for found in session.seen} or {session.stages}
    return all(compositions(len(session.chain), count, FEW_CUTS) is not None for count in stages)


def _overfull_in_a_row(session: Session, orders: list[Order]) -> bool:
    """Whether one stage a device is all there is, and no cut holds one stash a stage."""
    if len(session.chain) >= 2 * session.stages > 2:
        return False
    ratios = [lightest(session.chain, order, [1] * len(order)) for order in orders]
    return all(found is not None and found[1] > 1 for found in ratios)


# ------------------------------------------------------------------ validation


def _validate(model: object, cluster: object, workload: object, space: object) -> None:
    for value, kind in ((model, ModelGraph), (cluster, Cluster), (workload, Workload), (space, SearchSpace)):
        if not isinstance(value, kind):
            raise InputError(f"expected a {kind.__name__}, got {type(value).__name__}")
    assert isinstance(model, ModelGraph)
    assert isinstance(cluster, Cluster)
    assert isinstance(space, SearchSpace)
    _validate_sizes(model, workload)
    if space.schedule not in {"search", *SCHEDULES, *ASYNCHRONOUS}:
        known = ", ".join(["search", *SCHEDULES, *ASYNCHRONOUS])
        raise WorkloadError(f"unknown schedule {space.schedule!r}; known: {known}")
    if space.asynchronous and space.schedule in SCHEDULES:
        raise WorkloadError(f"schedule {space.schedule!r} has a flush; without one: {', '.join(ASYNCHRONOUS)}")
    weights = WEIGHTS.get(space.schedule)
    if space.asynchronous and weights is not None and weights not in space.asynchronous:
        asked = ", ".join(space.asynchronous)
        raise WorkloadError(f"schedule {space.schedule!r} updates weights with {weights!r}, which is not {asked!r}")
    for device in cluster.devices:
        name = device.kind.name
        if model.device in PRESETS and PRESETS.get(name) == device.kind and name != model.device:
            raise ModelError(
                f"the model was measured on {model.device!r}, device {device.index} is {name!r}: no conversion exists"
            )


def _validate_sizes(model: ModelGraph, workload: object) -> None:
    """Bytes are added up in 64-bit integers: parameters with all their state, and all stashes and messages."""
    assert isinstance(workload, Workload)
    total = sum(
        x.parameter_bytes * 16
        + workload.micro_batches
        * (x.stash_bytes + x.weight_stash_bytes + 4 * x.output_bytes + (x.input_bytes or 0) + 2 * x.buffer_bytes)
        + x.workspace_bytes
        for x in model.layers
    )
    if total >= MOST_BYTES:
        raise ModelError(
            f"model {model.name!r}: a step moves {total:.3g} bytes in all; at most {MOST_BYTES:.3g} are counted"
        )


def _validate_effort(
    time_limit: object, seed: object, workers: object, deterministic_limit: object, hint: object
) -> None:
    _number("time limit", time_limit)
    if deterministic_limit is not None:
        _number("deterministic limit", deterministic_limit)
    for name, value, least in (("seed", seed, 0), ("workers", workers, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise WorkloadError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if hint is not None and not isinstance(hint, Plan):
        raise InputError(f"hint must be a Plan, got {type(hint).__name__}")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise WorkloadError(f"{name} must be a finite number of seconds, at least 0, got {value!r}")


__all__ = ["Progress", "Result", "Shortage", "Stale", "plan"]
