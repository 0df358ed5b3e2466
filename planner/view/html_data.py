"""What the HTML page draws, as JSON: columns of the simulator's figures, nothing worked out anew.

An *item* is an op that has a job in the simulation, and every REDUCE, TIE and GATHER, which has its reduction's job;
items stand in the order of the devices' lists. Columns have one entry an item. A *coded* column is {"table": values,
"index": for every entry its value's place in the table}. Times are seconds from the start of the step, sizes bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..forecast import CATEGORIES, held_tensors
from ..plan import Forecast, Kind, Plan
from ..search import facts
from .critical import CriticalPath
from .html_columns import coded
from .html_explained import explained_data
from .html_run import run_data
from .html_steady import steady_data
from .items import Items
from .palette import direction
from .text import among, count_pipelines, device_limit, updating

if TYPE_CHECKING:
    from ..forecast import Timeline
    from ..runs import RunTrace


MOST_TENSORS = 100_000
"""What a page says of what memory is made of, at the most: of larger plans it has totals alone."""


def page_data(plan: Plan, timeline: Timeline, forecast: Forecast, run: RunTrace | None = None) -> dict[str, Any]:
    """Everything the page shows. Raises RunTraceError when the run is not of this plan."""
    items = Items(plan, timeline)
    path = CriticalPath.of(timeline)
    return {
        "model": plan.problem.model.name,
        "source": plan.provenance.source or "plan",
        "pipelines": count_pipelines(plan),
        "micro_batches": plan.problem.workload.micro_batches,
        "updating": updating(plan),
        "kinds": [kind.name for kind in Kind],
        "stages": [list(stage) for stage in plan.stages],
        "routes": _routes(plan),
        "route_of": _route_of(plan),
        "forecast": {
            "step_s": forecast.step_s,
            "period_s": forecast.period_s,
            "bound_s": forecast.bound_s or None,
            "gap": forecast.gap,
            "among": among(plan, forecast),
            "bubble": forecast.bubble,
            "status": forecast.status,
            "path": [items.of_job(job)[0] for job in path.jobs],
        },
        "devices": _devices(plan, forecast),
        "memory": [_curve(timeline, device) for device in range(len(timeline.device_memory))],
        "tensors": _tensors(plan, timeline),
        "items": items.columns(),
        "waits": items.waits(),
        "why": explained_data(facts(plan), len(plan.orders)),
        "steady": steady_data(plan, timeline, forecast, items),
        "run": None if run is None else run_data(plan, items, run),
    }


def _routes(plan: Plan) -> list[dict[str, Any]]:
    """Every pipeline: its hue (0 runs down the devices, 1 up), and which of its stages come to a device again."""
    return [
        {
            "hue": direction(p, len(plan.orders)),
            "again": [device in p.forward[:stage] for stage, device in enumerate(p.forward)],
            "stash": list(row),
        }
        for p, row in zip(plan.pipelines, plan.stash, strict=True)
    ]


def _route_of(plan: Plan) -> list[int]:
    """Pipeline of every micro-batch."""
    found = {m: k for k, p in enumerate(plan.pipelines) for m in p.micro_batches}
    return [found.get(m, 0) for m in range(max(found, default=-1) + 1)]


def _devices(plan: Plan, forecast: Forecast) -> list[dict[str, Any]]:
    kinds = [device.kind.name for device in plan.problem.cluster.devices]
    return [
        {
            "kind": kinds[index],
            "busy_s": device.busy_s,
            "bubble": device.bubble,
            "peak_bytes": device.peak_bytes,
            "peak_at_s": device.peak_at_s,
            "peak_parts": list(map(list, device.peak_parts)),
            "limit_bytes": device_limit(plan, index),
        }
        for index, device in enumerate(forecast.devices)
    ]


def _curve(timeline: Timeline, device: int) -> dict[str, Any]:
    """Memory of a device: at every time at which it changes the most it holds then (`most`), and what stays."""
    times, bytes_ = map(np.asarray, timeline.memory(device))
    first = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
    stays = bytes_[np.append(first[1:], len(times)) - 1]
    most = np.maximum.reduceat(bytes_, first)
    return {"times_s": coded(times[first]), "stays": coded(stays), "most": coded(most)}


def _tensors(plan: Plan, timeline: Timeline) -> dict[str, Any] | None:
    """What devices hold from when to when, by device and start; None where that is too much for a page."""
    held = held_tensors(plan, timeline)
    if len(held.bytes) > MOST_TENSORS:
        return None
    return {
        "categories": list(CATEGORIES),
        "device": held.device.tolist(),
        "category": held.category.tolist(),
        "stage": held.stage.tolist(),
        "micro_batch": held.micro_batch.tolist(),
        "start_s": coded(held.start_s),
        "end_s": coded(held.end_s),
        "bytes": coded(held.bytes),
    }
