"""What a run of a plan really did, op by op. Data only; the file is in `run_trace_file`.

It belongs to the planner, as plans do: whoever calibrates a model or compares a run with its forecast needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from ..basics import InputError, PlanError, name_in, shown
from ..lower import repeat
from ..plan import Op, Pipeline, Plan
from ..problem import FLUSH, NO_OVERHEAD, ModelGraph, Overhead


class RunTraceError(InputError):
    """A file that is no run trace, or one of another plan or model."""


@dataclass(frozen=True)
class OpTrace:
    """One op, over the timed steps; times in seconds, start and end from the start of the step.

    Attributes:
        start_s, end_s, duration_s: medians. Messages start when they are posted and end when they are known to be
            complete, which is when somebody waits for them.
        spread_s: of the durations, between the quartiles.
        waited_s: median time for which the device was blocked before the op.
        overhead_s: median time that the device spent neither computing nor waiting between the in-line op before and
            this one: launching, posting messages, reading data.
        moved_bytes: what is sent, received, copied or reduced.
        live_bytes, peak_bytes: on the device at its start and at most during it, in the tracked steps.
    """

    op: Op
    start_s: float
    end_s: float
    duration_s: float
    spread_s: float = 0.0
    waited_s: float = 0.0
    overhead_s: float = 0.0
    moved_bytes: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True)
class LaneTrace:
    """One rank of a device that is a team: seconds it computed, and its peak bytes."""

    busy_s: float
    peak_bytes: int


@dataclass(frozen=True)
class DeviceTrace:
    """One device: seconds it computed, idle share of the step, peak bytes in the tracked steps, its ops in list order.

    `speed` is the cluster's: layer times are at speed 1. Of a team the ops are those of its slowest rank,
    bytes the most of any; `lanes` has them all.
    """

    busy_s: float
    bubble: float
    peak_bytes: int
    speed: float
    ops: tuple[OpTrace, ...]
    lanes: tuple[LaneTrace, ...] = ()


@dataclass(frozen=True)
class RunTrace:
    """A run of a plan.

    Of an asynchronous plan a step is an update, but `step_s` and the ops are those of the whole run from an empty
    pipeline to an empty pipeline, of as many micro-batches as its pipelines have.

    Attributes:
        plan: `plan_fingerprint` of the plan as it ran. model, micro_batch_size: name and fingerprint of its model.
        environment: versions, transport, dtype, threads, host CPUs.
        step_s: median over `timed_steps`; step_times, losses: of all steps.
        overhead: what the plan's cluster says that ops cost beside their layers.
        timed_steps: whose times the ops have. tracked_steps: whose memory; following it costs time, so that the two
            are apart where the run had enough steps.
    """

    plan: str
    model: str
    model_fingerprint: str
    micro_batch_size: int
    stages: tuple[tuple[str, ...], ...]
    pipelines: tuple[Pipeline, ...]
    stash: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str | int]
    step_s: float
    step_times: tuple[float, ...]
    losses: tuple[float, ...]
    timed_steps: tuple[int, ...]
    tracked_steps: tuple[int, ...]
    devices: tuple[DeviceTrace, ...]
    overhead: Overhead = NO_OVERHEAD

    def require_plan(self, plan: Plan) -> Plan:
        """Raises RunTraceError unless the run is of this plan (its forecast and its costs may differ).

        Returns the plan as it ran, an asynchronous one over the run's micro-batches: the run has its devices, and every
        device its ops in its order.
        """
        if plan.weights != FLUSH:
            plan = self._as_ran(plan)
        wanted = plan_fingerprint(plan)
        if self.plan != wanted:
            raise RunTraceError(f"the run is of another plan: fingerprint {name_in(self.plan)}, not {wanted}")
        for key in ("stages", "pipelines", "stash"):
            if getattr(self, key) != getattr(plan, key):
                raise RunTraceError(f"the run is of another plan: its {key} differ")
        if len(self.devices) != len(plan.orders):
            raise RunTraceError(f"the run has {len(self.devices)} devices, the plan {len(plan.orders)}")
        for number, (device, order) in enumerate(zip(self.devices, plan.orders, strict=True)):
            for place, (ran, listed) in enumerate(zip_longest((x.op for x in device.ops), order)):
                if ran != listed:
                    raise RunTraceError(
                        f"the run is of another plan: op {place} of device {number} is {ran or 'missing'}, "
                        f"not {listed or 'in the plan'}"
                    )
        return plan

    def _as_ran(self, plan: Plan) -> Plan:
        count = sum(len(pipeline.micro_batches) for pipeline in self.pipelines)
        if count == plan.problem.workload.micro_batches:
            return plan
        try:
            return repeat(plan, count)
        except PlanError as error:
            raise RunTraceError(f"the run is of another plan: {error}") from None

    def require_model(self, model: ModelGraph) -> None:
        """Raises RunTraceError unless the run is of this model (its costs may differ)."""
        if self.model_fingerprint != model.fingerprint:
            raise RunTraceError(
                f"the run is of another model: {shown(self.model)} with fingerprint {name_in(self.model_fingerprint)}, "
                f"not {shown(model.name)} with {model.fingerprint}"
            )
        strange = next((name for stage in self.stages for name in stage if name not in model.index), None)
        if strange is not None:
            raise RunTraceError(f"the run is of another model: it has layer {shown(strange)}")
        if self.micro_batch_size != model.micro_batch_size:
            raise RunTraceError(
                f"the run had {self.micro_batch_size} samples a micro-batch, the model has {model.micro_batch_size}"
            )


def plan_fingerprint(plan: Plan) -> str:
    """Hash of what a plan makes the devices do: everything but costs, machines, forecast and provenance."""
    workload = plan.problem.workload.to_dict()
    workload.pop("memory_limit_bytes", None)
    content = [
        plan.problem.model.fingerprint,
        plan.problem.model.micro_batch_size,
        workload,
        plan.stages,
        [[p.forward, p.backward, p.micro_batches] for p in plan.pipelines],
        plan.stash,
        plan.weights,
        [[str(op) for op in order] for order in plan.orders],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
