"""Run traces made from simulated steps: what a run would have measured had everything gone as simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from contraflow.planner.forecast.curves import jobs_of_ops
from contraflow.planner.forecast.timeline import Timeline
from contraflow.planner.plan import COMPUTE, IN_LINE, Op, Plan
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.runs.trace import DeviceTrace, OpTrace, RunTrace, plan_fingerprint
from contraflow.planner.simulate import simulate


def simulated_run(
    plan: Plan, truth: ModelGraph | None = None, overhead_s: float = 0.0, slower: float = 1.0
) -> RunTrace:
    """A run of `plan` in which layers cost what `truth` says, by default the plan's own model; no op has its memory.

    `overhead_s` of each op's time is around the op. Everything takes `slower` times as long.
    """
    timeline = simulate(replace(plan, problem=replace(plan.problem, model=truth or plan.problem.model)))
    model, devices, times = plan.problem.model, [], _times(timeline)
    forecast = timeline.forecast()
    for order, device, said in zip(plan.orders, plan.problem.cluster.devices, forecast.devices, strict=True):
        ops = _blocked([_op(op, *(slower * t for t in next(times)), overhead_s) for op in order])
        devices.append(DeviceTrace(slower * said.busy_s, said.bubble, said.peak_bytes, device.kind.speed, ops))
    step_s = slower * forecast.step_s
    return RunTrace(
        plan_fingerprint(plan), model.name, model.fingerprint, model.micro_batch_size, plan.stages, plan.pipelines,
        plan.stash, {"transport": "simulated"}, step_s, (step_s,) * 3, (1.0,) * 3, (2,), (0, 1), tuple(devices),
        plan.problem.cluster.around,
    )  # fmt: skip


def with_ops(run: RunTrace, change: Callable[[OpTrace], OpTrace], device: int | None = None) -> RunTrace:
    """The run with the ops of one device, or of all, changed."""
    devices = list(run.devices)
    for d in range(len(devices)) if device is None else (device,):
        devices[d] = replace(devices[d], ops=tuple(map(change, devices[d].ops)))
    return replace(run, devices=tuple(devices))


def _times(timeline: Timeline) -> Iterator[tuple[float, float]]:
    """Start and end of every op, device after device; a RECV lasts while its message comes in."""
    jobs = timeline.jobs
    job = jobs_of_ops(jobs)
    start, end = jobs.start[job], jobs.end[job]
    for times in (start, end):
        times[jobs.messages.receive] += jobs.message_latency_s
    yield from zip(start.tolist(), end.tolist(), strict=True)


def _blocked(ops: list[OpTrace]) -> tuple[OpTrace, ...]:
    """Each op in line with the time for which its device was blocked since the one before it."""
    free, found = 0.0, []
    for item in ops:
        if item.op.kind in IN_LINE:
            found.append(replace(item, waited_s=max(0.0, item.start_s - item.overhead_s - free)))
            free = item.end_s
        else:
            found.append(item)
    return tuple(found)


def _op(op: Op, start_s: float, end_s: float, overhead_s: float) -> OpTrace:
    around = overhead_s if op.kind in COMPUTE and end_s > start_s else 0.0
    return OpTrace(op, start_s + around, end_s, end_s - start_s - around, overhead_s=around)
