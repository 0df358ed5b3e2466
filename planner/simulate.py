"""Plans -> times and memory: the single source of every forecast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .basics import InputError, PlanError
from .forecast import Timeline, build_columns, timeline_of, with_seconds
from .graph import Machine, Messages
from .lower import period_seconds
from .plan import Forecast, Op, Plan, Problem
from .problem import FLUSH, Cluster, ModelGraph
from .rules import sound_columns


def simulate(plan: Plan) -> Timeline:
    """Times and memory of a plan (seconds, bytes). Raises PlanError, Deadlock among them, for one that cannot run."""
    timeline = _times(plan)
    return timeline if plan.weights == FLUSH else replace(timeline, period_s=period_seconds(plan))


def _times(plan: Plan, machine: Machine | None = None) -> Timeline:
    """The timeline without the period of a plan that has one."""
    costs, ops = sound_columns(plan)
    jobs = build_columns(plan, costs, ops, Messages.of(plan, costs, ops), machine=machine)
    return timeline_of(plan, costs, jobs, tuple(map(tuple, plan.orders)))


def evaluate(
    plan: Plan,
    model: ModelGraph | None = None,
    cluster: Cluster | None = None,
    faster: Mapping[int, float] | None = None,
) -> Forecast:
    """The forecast of a plan's orders under these costs (by default its own); no solver, milliseconds.

    `faster`: devices that compute so many times as fast as their kind. Bound, gap and status of the plan's own forecast
    are kept only when the problem is unchanged; of a plan without a flush the period is not known where devices are
    faster.
    """
    old = plan.problem
    problem = Problem(model or old.model, cluster or old.cluster, old.workload)
    asked = replace(plan, problem=problem)
    if faster:
        return _times(asked, Machine.of(problem.cluster).faster(faster)).forecast()
    forecast = simulate(asked).forecast()
    if plan.forecast is not None and problem == old:
        kept = plan.forecast
        forecast = replace(forecast, bound_s=kept.bound_s, gap=kept.gap, status=kept.status)
    return forecast


@dataclass(frozen=True)
class Evaluations:
    """What one plan comes to in every case of a batch.

    Attributes:
        step_s: seconds, infinite where the orders cannot run; shape (cases,).
        peak_bytes: of every device, -1 where they cannot run; shape (cases, devices). None where it was not asked for.
    """

    step_s: NDArray[np.float64]
    peak_bytes: NDArray[np.int64] | None = None


def evaluate_orders(plan: Plan, orders: Iterable[Sequence[Sequence[Op]]]) -> Evaluations:
    """A plan's step and peaks under many op lists of all devices; half a millisecond each for small plans."""
    steps: list[float] = []
    peaks: list[list[int]] = []
    for listed in orders:
        try:
            found = _times(replace(plan, orders=tuple(map(tuple, listed))))
        except PlanError:
            steps.append(math.inf)
            peaks.append([-1] * len(plan.problem.cluster))
        else:
            steps.append(found.step_s)
            peaks.append([memory.peak_bytes for memory in found.device_memory])
    return Evaluations(np.array(steps), np.array(peaks, dtype=np.int64).reshape(len(steps), len(plan.problem.cluster)))


def evaluate_many(plan: Plan, seconds: ArrayLike, memory: bool = False) -> Evaluations:
    """A plan's step under many costs of its layers, some ten microseconds each where it is small.

    seconds: of F, and of the backward's two halves for inputs and for weights, of every layer in the model's order, at
    speed 1; shape (cases, layers, 3). A backward that is not split takes both together. Bytes, and with them messages
    and copies, are the plan's. `memory`: peaks too, which take ten times as long.

    Raises InputError for another shape and for what is negative or not finite, PlanError where the plan cannot run.
    """
    model = plan.problem.model
    given = np.asarray(seconds, dtype=np.float64)
    if given.ndim != 3 or given.shape[1:] != (len(model.layers), 3):
        raise InputError(f"seconds must have the shape (cases, {len(model.layers)}, 3), got {given.shape}")
    if not (np.isfinite(given) & (given >= 0)).all():
        raise InputError("seconds must be finite numbers of at least 0")
    base = _times(plan)
    members = [[model.index[name] for name in stage] for stage in plan.stages]
    rows = np.stack([given[:, own].sum(axis=1) for own in members], axis=1)
    steps, peaks = np.zeros(len(given)), np.zeros((len(given), len(plan.problem.cluster)), dtype=np.int64)
    for k, (costs, jobs) in enumerate(with_seconds(plan, base.costs, base.jobs, rows)):
        steps[k] = jobs.step_s
        if memory:
            found = timeline_of(plan, costs, jobs, base.orders).device_memory
            peaks[k] = [device.peak_bytes for device in found]
    return Evaluations(steps, peaks if memory else None)
