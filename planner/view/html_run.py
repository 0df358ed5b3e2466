"""A run of a plan for its page: times, memory, its critical path, and what the forecast missed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..plan import IN_LINE, Plan
from ..runs import calibrate, compare_run
from ..search import facts
from .items import Items
from .lateness import Late, late_sentence, late_table, lateness, signed
from .reasons import binding
from .run_path import RunPath

if TYPE_CHECKING:
    from ..forecast import Timeline
    from ..runs import DeviceTrace, RunTrace


def run_data(plan: Plan, items: Items, run: RunTrace) -> dict[str, Any]:
    """Everything the page shows of a run. Raises RunTraceError when it is of another plan."""
    run.require_plan(plan)
    return _measured(items, run) | _explained(plan, items, run)


def run_lateness(plan: Plan, timeline: Timeline, run: RunTrace) -> tuple[Late, ...]:
    """Of every op along the critical path of a run of this plan."""
    return _late(plan, Items(plan, timeline), run)


def _late(plan: Plan, items: Items, run: RunTrace) -> tuple[Late, ...]:
    ops, path = items.jobs.ops, RunPath.of(items.jobs, items.op, items.waiting, run).items
    listed = [(d, timed.op) for d, device in enumerate(run.devices) for timed in device.ops]
    assert len(listed) == len(ops)
    return lateness(plan, items.timeline, run, [listed[items.op[item]] for item in path])


def _measured(items: Items, run: RunTrace) -> dict[str, Any]:
    """A run of the plan: times of every item, to the nanosecond, which item decided when each started (-1: none), and
    the path of those that decided when the last one did."""
    ran = [timed for device in run.devices for timed in device.ops]
    path = RunPath.of(items.jobs, items.op, items.waiting, run)
    return {
        "step_s": run.step_s,
        "devices": [{"busy_s": d.busy_s, "bubble": d.bubble, "peak_bytes": d.peak_bytes} for d in run.devices],
        "memory": [_held(device) for device in run.devices],
        "start_s": [round(ran[k].start_s, 9) for k in items.op],
        "end_s": [round(ran[k].end_s, 9) for k in items.op],
        "decided": path.decided,
        "path": path.items,
    }


def _explained(plan: Plan, items: Items, run: RunTrace) -> dict[str, Any]:
    """What binds when the plan is simulated with the times that the run measured, and what the forecast missed."""
    compared, late = compare_run(plan, run), _late(plan, items, run)
    model = calibrate(plan.problem.model, [run])
    found = facts(replace(plan, problem=replace(plan.problem, model=model), forecast=None))
    return {
        "binding": binding(found, len(plan.orders)),
        "simulated_s": found.step_s,
        "remark": compared.remark,
        "causes": [[signed(cause.seconds), cause.what] for cause in compared.causes],
        "late": late_sentence(late),
        "late_table": late_table(late),
    }


def _held(device: DeviceTrace) -> dict[str, list[Any]]:
    """The most that a run held on a device during each op in line, where it is known."""
    timed = [t for t in device.ops if t.op.kind in IN_LINE and t.peak_bytes > 0]
    return {
        "start_s": [round(t.start_s, 9) for t in timed],
        "end_s": [round(t.end_s, 9) for t in timed],
        "peak_bytes": [t.peak_bytes for t in timed],
    }
