"""Who holds what of a stage: trained replicas, copies that only run forwards, and the bytes that stay all step."""

from __future__ import annotations

from collections.abc import Sequence

from ..problem import STEP_COUNTERS, StageCosts, Workload, part_bytes
from .structured import Structured


def forward_devices(plan: Structured, stage: int) -> tuple[int, ...]:
    """Devices that run a stage's forward, ascending."""
    return tuple(sorted({p.forward[stage] for p in plan.pipelines if p.micro_batches}))


def forward_only(plan: Structured, stage: int, owners: Sequence[int]) -> list[int]:
    """Devices that run a stage's forward and never its backward, ascending."""
    return [device for device in forward_devices(plan, stage) if device not in owners]


def holders(plan: Structured) -> dict[int, tuple[int, ...]]:
    """Devices that hold a trained replica of each stage (those that run its backward), ascending."""
    found: dict[int, set[int]] = {stage: set() for stage in range(len(plan.stages))}
    for pipeline in plan.pipelines:
        if pipeline.micro_batches:
            for stage, device in enumerate(pipeline.backward):
                found[stage].add(device)
    return {stage: tuple(sorted(devices)) for stage, devices in found.items()}


def training_bytes(workload: Workload, parameters: int, tensors: int, trained: int, parts: int = 1) -> dict[str, int]:
    """Bytes by category that a device holds to train `trained` of `parameters` bytes, in so many tensors.

    `parts`: the optimizer is shared among so many devices (`Workload.parts`), each with an equal part, the last padded.
    """
    counters = 4 * tensors if workload.optimizer in STEP_COUNTERS else 0
    part = part_bytes(trained, parts)
    return {
        "parameters": parameters - trained + parts * part,
        "gradients": workload.gradient_bytes(parts * part),
        "optimizer": workload.optimizer_bytes(part) + counters,
    }


def stage_bytes(plan: Structured, costs: StageCosts, stage: int, owners: Sequence[int]) -> dict[int, dict[str, int]]:
    """Per device, the bytes of a stage of `static_bytes`, without layers that are tied to others."""
    workload, own, buffers = plan.problem.workload, int(costs.own_bytes[stage]), int(costs.buffer_bytes[stage])
    trained, tensors = int(costs.own_trained_bytes[stage]), int(costs.parameter_tensors[stage])
    forwards = forward_devices(plan, stage)
    merged = (1 + workload.micro_batches) * buffers if len(forwards) > 1 else 0
    held = training_bytes(workload, own, tensors, trained, workload.parts(len(owners)))
    found = {device: held | {"buffers": buffers} for device in owners}
    found |= {device: {"parameters": own, "buffers": buffers} for device in forward_only(plan, stage, owners)}
    for device in forwards:
        found[device]["buffers"] += merged
    return found


def static_bytes(plan: Structured, costs: StageCosts) -> list[dict[str, int]]:
    """Per device, the bytes that stay all step by category: parameters, gradients, optimizer, buffers.

    Where several devices run a stage's forward, each also holds every micro-batch's statistics of its buffers
    (BatchNorm) until they are merged, and counters. What stages of one device share counts once.
    """
    workload, owners_of = plan.problem.workload, holders(plan)
    devices: list[dict[str, int]] = [{} for _ in range(len(plan.problem.cluster))]

    def add(device: int, category: str, count: int) -> None:
        devices[device][category] = devices[device].get(category, 0) + count

    for stage, owners in owners_of.items():
        for device, held in stage_bytes(plan, costs, stage, owners).items():
            for category, count in held.items():
                add(device, category, count)
    for tie in costs.ties:
        copies = tie.copies(owners_of)
        for device in copies:
            for category, count in training_bytes(workload, tie.bytes, tie.tensors, tie.trained_bytes).items():
                add(device, category, count)
        lent = {device for stage in tie.stages for device in forward_only(plan, stage, owners_of[stage])}
        for device in lent - copies.keys():
            add(device, "parameters", tie.bytes)
    return devices
