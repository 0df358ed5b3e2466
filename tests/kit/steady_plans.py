"""Plans without a flush that several tests plan with."""

from __future__ import annotations

from instances import named, uniform

from contraflow.planner.plan import Kind, Plan
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import ASYNCHRONOUS, build

POLICIES = [name for name in WEIGHT_POLICIES if name != FLUSH]
NAMES = [name for name in ASYNCHRONOUS if name != "pipefb"]
"""Schedules with one device a stage."""


def machine(devices: int, bandwidth: float | None = None, link: Link = Link(), memory: int = 1 << 30) -> Cluster:  # noqa: B008
    return Cluster((NodeGroup(1, devices, DeviceType("device", memory, 1.0, bandwidth), link),))


def planned(name: str, devices: int, batches: int, update: int | None = None, **costs: int) -> Plan:
    """A named schedule of uniform stages: forward 1 s, backward 2 s, 3 bytes of parameters, messages free."""
    stages = build(name, devices, batches).stages
    model = uniform(stages, 1.0, 2.0, **({"parameter_bytes": 3} | costs))
    return named(name, devices, batches, model=model, workload=Workload(batches, update_every=update))


def passes(plan: Plan, device: int) -> str:
    """A device's ops in line, without their stage."""
    line = [op for op in plan.orders[device] if op.kind in (Kind.F, Kind.B, Kind.STEP, Kind.PREDICT)]
    return " ".join(str(op)[1:] for op in line)
