"""plan(): the search for a plan and its proof, within a time limit."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace

from ... import __version__
from .. import bounds
from ..basics import (
    MOST_COUNTED_BYTES,
    MOST_SEARCHED_LAYERS,
    MOST_SEARCHED_PASSES,
    InputError,
    ModelError,
    OutOfTime,
    WorkloadError,
    collecting_seldom,
    end_asked,
    heeding_ctrl_c,
    until,
)
from ..graph import Candidate
from ..lower import Assembled, assembled
from ..partition import lightest
from ..plan import Pipeline, Plan, Problem, Provenance
from ..problem import PRESETS, Cluster, ModelGraph, SearchSpace, Workload
from ..schedules import ASYNCHRONOUS, SCHEDULES, WEIGHTS, capped, known, spelled_out
from .common import (
    SECONDS,
    SHARE,
    SIZE,
    Claim,
    Considered,
    OnProgress,
    Progress,
    Result,
    Session,
    Shortage,
    Stale,
    lacking,
    shortages,
)
from .named import (
    Order,
    Phases,
    device_orders,
    overfull_here,
    place,
    run_capped,
    run_glance,
    run_hint,
    run_lightest,
    run_mixed,
    run_named,
    run_remade,
    run_sparing,
    search_widths,
    splits,
)
from .proofs import asked, nothing_fits, parts_of, searched, told_of, unrestricted
from .scale import limit_uses, smaller, take_over
from .techniques import by_turns


@heeding_ctrl_c()
@collecting_seldom()
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
    `on_progress` receives Progress in the caller's thread. Ctrl-C returns the best plan so far; a second one, a second
    later, raises KeyboardInterrupt where the first is not heeded.

    Raises InputError (a ValueError) for bad input; infeasible is an answer.
    """
    started = time.monotonic()
    space = _spelled_out(space)
    _validate(model, cluster, workload, space)
    _validate_effort(time_limit, seed, workers, deterministic_limit, hint)
    problem = Problem(model, cluster, workload)
    _validate_replicas(problem, space)
    session = Session(problem, space, started + time_limit, seed, workers, deterministic_limit, on_progress, started)
    orders = device_orders(problem, session.stages)
    if space.schedule in ASYNCHRONOUS:
        from .steady import plan_named

        return plan_named(session, orders)
    if space.asynchronous:
        from .steady import search_steady

        return search_steady(problem, space, started + time_limit, seed, hint, on_progress, started)
    try:
        with contextlib.suppress(OutOfTime), until(session.deadline + SECONDS.grace):
            _search(session, orders, hint)
        session.interrupted |= end_asked()
        return _answer(session, orders)
    except KeyboardInterrupt:
        session.interrupted = True
        return _answer(session, orders)


def _search(session: Session, orders: list[Order], hint: Plan | None) -> None:
    session.asked_s = asked(session.problem, session.space).bound_s
    if hint is not None and session.space.schedule == "search":
        run_hint(session, hint)
    _first(session, orders)
    same = searched(session.problem, session.space, session.apart) == unrestricted(session.problem, session.space)
    named = session.space.schedule != "search"
    session.bound_s = session.asked_s if same or named else max(session.asked_s, _space_bound(session))
    if math.isinf(session.bound_s) or (session.space.schedule == "search" and overfull_here(session)):
        return
    by_turns(session, _space_bound, lambda part: _search_space(part, orders))


def _first(session: Session, orders: list[Order]) -> None:
    """A plan of a large problem before anything else is tried, or proven: the time may suffice for one only."""
    large = 2 * session.problem.workload.micro_batches * session.stages > SIZE.one_cut
    if large and session.space.schedule == "search" and session.best is None and math.isfinite(session.asked_s):
        run_capped(session, orders[0])


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
    if session.space.schedule != "search":
        return asked(session.problem, session.space).bound_s
    return bounds.space(session.problem, searched(session.problem, session.space, session.apart))


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
        with session.part(session.few, SHARE.scaled_down):
            _long(session.few, orders)
        take_over(session, session.few, orders)
    if not (session.over or session.proven):
        improve(session, orders)


# ------------------------------------------------------------------ the answer


def _answer(session: Session, orders: list[Order]) -> Result:
    if session.best is None:
        return _no_plan(session, orders)
    best, forecast = session.best, session.best.forecast
    assert forecast is not None
    whole = told_of(session.problem, session.space, session.asked_s, best)
    claim = Claim.of(forecast.step_s, whole, parts_of(session, orders, best))
    made = Provenance(
        version=__version__,
        seed=session.seed,
        source=best.provenance.source,
        solver="CP-SAT" if session.space.schedule == "search" else "",
        seconds=time.monotonic() - session.started,
    )
    answer = joined(claim.on(best, forecast, made))
    return Result(claim.status, answer, claim.bound_s, claim.gap, (), _considered(session), claim.among)


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


def _no_plan(session: Session, orders: list[Order]) -> Result:
    """Infeasible where proven, with what the least bad plan lacks; else unknown."""
    least = _least_bad(session, orders)
    short = shortages(least) if least is not None else ()
    least_s = bounds.any_plan(session.problem)
    bound_s = max(session.asked_s, least_s) if math.isfinite(session.asked_s) else least_s
    proven = bool(short) and nothing_fits(session)
    return Result("infeasible" if proven else "unknown", None, bound_s, None, short, _considered(session))


def _least_bad(session: Session, orders: list[Order]) -> Plan | None:
    """The plan that exceeds its limits least: of those simulated, or one micro-batch at a time on the lightest cut."""
    tried = list(session.seen)
    large = 2 * session.problem.workload.micro_batches * session.stages > SIZE.one_cut
    if (session.space.schedule == "search" or not tried) and not (large and session.over):
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


# ------------------------------------------------------------------ validation


def _validate(model: object, cluster: object, workload: object, space: object) -> None:
    for value, kind in ((model, ModelGraph), (cluster, Cluster), (workload, Workload), (space, SearchSpace)):
        if not isinstance(value, kind):
            raise InputError(f"expected a {kind.__name__}, got {type(value).__name__}")
    assert isinstance(model, ModelGraph)
    assert isinstance(cluster, Cluster)
    assert isinstance(space, SearchSpace)
    _validate_sizes(model, workload)
    _validate_counts(model, cluster, workload)
    if space.schedule != "search" and not known(space.schedule):
        names = ", ".join(["search", *SCHEDULES, *ASYNCHRONOUS])
        raise WorkloadError(f"unknown schedule {space.schedule!r}; known: {names}")
    if space.asynchronous and space.schedule not in ("search", *ASYNCHRONOUS):
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


def _spelled_out(space: object) -> SearchSpace:
    """The space with the replicas that its schedule's name says."""
    if not isinstance(space, SearchSpace):
        raise InputError(f"expected a SearchSpace, got {type(space).__name__}")
    name, replicas = spelled_out(space.schedule)
    return space if replicas is None else replace(space, schedule=name, replicas=replicas)


def _validate_replicas(problem: Problem, space: SearchSpace) -> None:
    if (space.replicas or 1) == 1:
        return
    if space.asynchronous or space.schedule in ASYNCHRONOUS:
        raise WorkloadError("the search without a flush chooses replicas itself")
    if not any(splits(problem, space)):
        raise WorkloadError(f"{len(problem.cluster)} devices do not form {space.replicas} equal groups")


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
    if total >= MOST_COUNTED_BYTES:
        raise ModelError(
            f"model {model.name!r}: a step moves {total:.3g} bytes in all; at most {MOST_COUNTED_BYTES:.3g} are counted"
        )


def _validate_counts(model: ModelGraph, cluster: Cluster, workload: object) -> None:
    """Refuses what would fill memory before a first plan is made."""
    assert isinstance(workload, Workload)
    layers, stages = len(model.layers), min(len(model.layers), len(cluster))
    if layers > MOST_SEARCHED_LAYERS:
        raise ModelError(
            f"model {model.name!r} has {layers} layers; at most {MOST_SEARCHED_LAYERS} are cut into stages"
        )
    passes = stages * workload.micro_batches
    if passes > MOST_SEARCHED_PASSES:
        raise WorkloadError(
            f"{workload.micro_batches} micro-batches through {stages} stages are {passes} forward passes; "
            f"at most {MOST_SEARCHED_PASSES} are planned"
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
