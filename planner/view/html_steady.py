"""What the page shows of a plan without a flush: versions of the weights, and the period in which it repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import Versions, update_size
from ..plan import Forecast, Kind, Plan
from ..problem import FLUSH
from .items import Items

if TYPE_CHECKING:
    from ..forecast import Timeline

_SAME = 1e-6  # of a period; what is closer starts a period apart


def steady_data(plan: Plan, timeline: Timeline, forecast: Forecast, items: Items) -> dict[str, Any] | None:
    """None with a flush.

    `from_s`, `to_s`: an update's time in which every stage starts its forwards a period apart (None: the run is too
    short). `bubble`: idle share of a period. `stale`: updates by stage. `version`, `ahead`: of every item that reads
    weights which version, and for how many updates later they are predicted (-1: it reads none).
    """
    if plan.weights == FLUSH or forecast.period_s is None:
        return None
    versions = Versions.of(plan)
    found = _period(plan, timeline, forecast.period_s)
    whole = forecast.period_s * plan.problem.workload.micro_batches * max(1, len(plan.orders))
    version, ahead = [], []
    for kind, key in _passes(items):
        read = versions.forward if kind is Kind.F else versions.backward
        predicted = versions.forward_ahead if kind is Kind.F else versions.backward_ahead
        reads = kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
        version.append(read.get(key, 0) if reads else -1)
        ahead.append(predicted.get(key, 0) if reads else -1)
    return {
        "from_s": None if found is None else found[0],
        "to_s": None if found is None else found[1],
        "bubble": 1 - sum(device.busy_s for device in forecast.devices) / whole if whole > 0 else 0.0,
        "stale": [versions.most_stale.get(stage, 0) for stage in range(len(plan.stages))],
        "update": versions.update,
        "version": version,
        "ahead": ahead,
    }


def _passes(items: Items) -> list[tuple[Kind, tuple[int, int]]]:
    ops = items.jobs.ops
    rows = zip(*(column[items.op].tolist() for column in (ops.kind, ops.stage, ops.micro_batch)), strict=True)
    return [(Kind(kind), (stage, m)) for kind, stage, m in rows]


def _period(plan: Plan, timeline: Timeline, period_s: float) -> tuple[float, float] | None:
    """From a forward of the first stage to the one an update later, in the middle of the steady part."""
    jobs, size = timeline.jobs, update_size(plan)
    forwards = jobs.ops.where(Kind.F)
    start = np.full((len(plan.stages), plan.problem.workload.micro_batches), np.nan)
    start[jobs.ops.stage[forwards], jobs.ops.micro_batch[forwards]] = jobs.start[forwards]
    apart = start[:, size:] - start[:, :-size]
    steady = np.flatnonzero(np.all(np.abs(apart - size * period_s) <= _SAME * size * period_s, axis=0))
    if not len(steady):
        return None
    m = int(steady[len(steady) // 2])
    return float(start[0, m]), float(start[0, m + size])
