"""The simulated step: times of everything, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..basics import PlanError
from ..graph import StageCosts, Structured, require_policies
from ..plan import COLLECTIVES, COMPUTE, COPIES, DeviceForecast, Forecast, Kind, Op
from .curves import DeviceMemory
from .host_memory import host_memory
from .jobs import Jobs, build, overhead_seconds
from .memory import profile_memory

_COMPUTE = np.array([kind in COMPUTE for kind in Kind])


class Deadlock(PlanError):
    """The op lists wait for each other in a circle; the checker names the circle."""


class TimedOp(NamedTuple):
    """A compute op, copy or reduction with its times in seconds from the start of the step."""

    op: Op
    start_s: float
    end_s: float


class TimedMessage(NamedTuple):
    """A message: it occupies its link from start to end and arrives a latency later (seconds, bytes)."""

    op: Op
    source: int
    target: int
    start_s: float
    end_s: float
    arrival_s: float
    bytes: int


@dataclass(frozen=True)
class DeviceTimeline:
    """What one device computes, in order, and its memory over time."""

    ops: tuple[TimedOp, ...]
    busy_s: float
    memory: DeviceMemory


@dataclass(frozen=True)
class Timeline:
    """A simulated step. `step_s` is the end of the last op, reductions and optimizer steps included.

    `host_memory`: per node, its host's memory over time. `period_s`: see `Forecast`.
    """

    step_s: float
    jobs: Jobs
    costs: StageCosts
    orders: tuple[tuple[Op, ...], ...]
    device_memory: tuple[DeviceMemory, ...]
    busy_s: tuple[float, ...]
    host_memory: tuple[DeviceMemory, ...]
    period_s: float | None = None

    @cached_property
    def devices(self) -> tuple[DeviceTimeline, ...]:
        """Every device's ops with times. REDUCE, TIE and GATHER have the times of their reductions."""
        start, end, place = self.jobs.start, self.jobs.end, 0
        found = []
        for d, order in enumerate(self.orders):
            timed = []
            for op in order:
                if op.kind in COMPUTE:
                    timed.append(TimedOp(op, float(start[place]), float(end[place])))
                elif op.kind in COLLECTIVES:
                    job = self.jobs.reduce_job[op.collective]
                    timed.append(TimedOp(op, float(start[job]), float(end[job])))
                place += 1
            found.append(DeviceTimeline(tuple(timed), self.busy_s[d], self.device_memory[d]))
        return tuple(found)

    @cached_property
    def overhead_s(self) -> tuple[float, ...]:
        """By device: seconds of its computing that ops cost beside their layers."""
        found = overhead_seconds(self.costs, self.jobs.ops, self.jobs.speed)
        return tuple(np.bincount(self.jobs.ops.device, found, self.jobs.ops.devices).tolist())

    @cached_property
    def beside_layers_s(self) -> dict[Op, float]:
        """Of the seconds at speed 1 of every op, those that it costs beside its layers."""
        ops = self.jobs.ops
        found = overhead_seconds(self.costs, ops, np.ones(ops.devices))
        return dict(zip((op for order in self.orders for op in order), found.tolist(), strict=True))

    @cached_property
    def copies(self) -> tuple[tuple[TimedOp, ...], ...]:
        """Every device's OFFLOADs and FETCHes in list order, with the times they occupy the host link."""
        start, end, place = self.jobs.start, self.jobs.end, 0
        found = []
        for order in self.orders:
            found.append(
                tuple(
                    TimedOp(op, float(start[place + k]), float(end[place + k]))
                    for k, op in enumerate(order)
                    if op.kind in COPIES
                )
            )
            place += len(order)
        return tuple(found)

    @cached_property
    def messages(self) -> tuple[TimedMessage, ...]:
        """Every message in the order of the senders' lists."""
        jobs, flat = self.jobs, [op for order in self.orders for op in order]
        start, end = jobs.start[jobs.message_job], jobs.end[jobs.message_job]
        ends = zip(jobs.messages.send.tolist(), jobs.messages.receive.tolist(), strict=True)
        return tuple(
            TimedMessage(
                flat[send],
                int(jobs.ops.device[send]),
                int(jobs.ops.device[receive]),
                float(start[k]),
                float(end[k]),
                float(end[k] + jobs.message_latency_s[k]),
                int(jobs.messages.bytes[k]),
            )
            for k, (send, receive) in enumerate(ends)
        )

    def memory(self, device: int) -> tuple[list[float], list[int]]:
        """Times (seconds, never going back) and bytes of one device after every change."""
        found = self.device_memory[device]
        # what leaves over several links between two ops stands in list order, which need not be that of time
        order = np.argsort(found.times_s, kind="stable")
        change = np.diff(found.bytes, prepend=0)
        return found.times_s[order].tolist(), np.cumsum(change[order]).tolist()

    def forecast(self) -> Forecast:
        """The step and every device's busy time, bubble and peak; bound and status are for the caller to add."""
        devices = tuple(
            DeviceForecast(busy, _bubble(busy, self.step_s), m.peak_bytes, m.peak_at_s, m.peak_parts)
            for busy, m in zip(self.busy_s, self.device_memory, strict=True)
        )
        return Forecast(self.step_s, devices, period_s=self.period_s)


def _bubble(busy_s: float, step_s: float) -> float:
    return max(0.0, 1.0 - busy_s / step_s) if step_s > 0 else 0.0


def simulate_orders(plan: Structured, costs: StageCosts, orders: Sequence[Sequence[Op]]) -> Timeline:
    """Simulates op lists of a candidate. Raises Deadlock, or PlanError where messages do not match."""
    require_policies(plan)
    return timeline_of(plan, costs, build(plan, costs, orders), tuple(map(tuple, orders)))


def timeline_of(plan: Structured, costs: StageCosts, jobs: Jobs, orders: tuple[tuple[Op, ...], ...]) -> Timeline:
    """The timeline of jobs that come from these op lists. Raises Deadlock where not all jobs were served."""
    if not jobs.complete:
        raise Deadlock("the op lists wait for each other in a circle")
    ops, step_s = jobs.ops, jobs.step_s
    working = _COMPUTE[ops.kind]
    busy = np.bincount(ops.device[working], jobs.duration[: len(ops)][working], ops.devices)
    memory = tuple(profile_memory(plan, costs, jobs, step_s))
    host = host_memory(plan, costs, jobs, step_s)
    return Timeline(step_s, jobs, costs, orders, memory, tuple(busy.tolist()), host)
