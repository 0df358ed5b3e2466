"""Run traces made from simulated steps: what a run would have measured had everything gone as simulated."""

from __future__ import annotations

from dataclasses import replace

from contraflow.planner.model_graph import ModelGraph
from contraflow.planner.plan import COMPUTE, Op, Plan
from contraflow.planner.run_trace import DeviceTrace, OpTrace, RunTrace, plan_fingerprint
from contraflow.planner.simulate import simulate


def simulated_run(plan: Plan, truth: ModelGraph, overhead_s: float = 0.0) -> RunTrace:
    """A run of `plan` in which layers cost what `truth` says; `overhead_s` of each op's time is around the op."""
    timeline = simulate(replace(plan, problem=replace(plan.problem, model=truth)))
    times = {timed.op: (timed.start_s, timed.end_s) for d in timeline.devices for timed in d.ops}
    model, devices = plan.problem.model, []
    forecast = timeline.forecast()
    for order, device, said in zip(plan.orders, plan.problem.cluster.devices, forecast.devices, strict=True):
        ops = tuple(_op(op, *times.get(op, (0.0, 0.0)), overhead_s) for op in order)
        devices.append(DeviceTrace(said.busy_s, said.bubble, said.peak_bytes, device.kind.speed, ops))
    return RunTrace(
        plan_fingerprint(plan), model.name, model.fingerprint, model.micro_batch_size, plan.stages, plan.pipelines,
        plan.stash, {"transport": "simulated"}, forecast.step_s, (forecast.step_s,) * 3, (1.0,) * 3, (2,), (0, 1),
        tuple(devices),
    )  # fmt: skip


def _op(op: Op, start_s: float, end_s: float, overhead_s: float) -> OpTrace:
    around = overhead_s if op.kind in COMPUTE and end_s > start_s else 0.0
    return OpTrace(op, start_s + around, end_s, end_s - start_s - around, overhead_s=around)
