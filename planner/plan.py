"""Plan: the one artefact. Stages, pipelines, per-device op lists and the forecast. Data only, no behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import ClassVar, NamedTuple

from .basics import MOST_STEP_BYTES, ModelError, WorkloadError, shown
from .problem import Cluster, ModelGraph, Workload


class Kind(IntEnum):
    """What an op does. The text names are those of torch.distributed.pipelining where it has one."""

    F = 0
    B = 1
    I = 2  # noqa: E741 - the field's name
    W = 3
    R = 4
    SEND_F = 5
    RECV_F = 6
    SEND_B = 7
    RECV_B = 8
    REDUCE = 9
    STEP = 10
    OFFLOAD = 11
    FETCH = 12
    FREE = 13
    SEND_S = 14
    RECV_S = 15
    SEND_P = 16
    RECV_P = 17
    TIE = 18
    PREDICT = 19
    GATHER = 20


COMPUTE = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.STEP, Kind.PREDICT})
IN_LINE = COMPUTE | {Kind.FREE}
"""Ops that a device runs one after the other in list order; the others are posted at their place."""
SENDS = frozenset({Kind.SEND_F, Kind.SEND_B, Kind.SEND_S, Kind.SEND_P})
RECEIVES = frozenset({Kind.RECV_F, Kind.RECV_B, Kind.RECV_S, Kind.RECV_P})
COPIES = frozenset({Kind.OFFLOAD, Kind.FETCH})
COLLECTIVES = frozenset({Kind.REDUCE, Kind.TIE, Kind.GATHER})
"""Sums of gradients over several devices, and what gives all of them all parameters: posted, one event for all."""

_MARKS = {Kind.TIE: "=", Kind.PREDICT: "+"}


class Op(NamedTuple):
    """One operation of a device.

    `stage` is the stage that computes, or for a message the stage on this device's side that sends or receives
    it; `peer` is then the stage at the other end (-1 otherwise). `micro_batch` is -1 for REDUCE, TIE, STEP, GATHER and
    parameters; in a plan that updates weights more than once, it is the last micro-batch of the update.

    Activations: SEND_F(stage=producer, peer=consumer) meets RECV_F(stage=consumer, peer=producer).
    Gradients: SEND_B(stage=consumer, peer=producer) meets RECV_B(stage=producer, peer=consumer).
    Stashes: SEND_S and RECV_S both name the stash's own stage; `peer` is the *device* at the other end. Parameters:
    SEND_P and RECV_P likewise, from a device that stepped a stage to one that only runs its forward.
    OFFLOAD copies a stash to the host and FETCH brings it back, both on the device's copy engines. FREE makes the
    ops after it wait until the stash's OFFLOAD (or outgoing SEND_S) has ended, so that its memory can be used.
    REDUCE sums a stage's gradients over its replicas. TIE sums the gradient of tied parameters over all devices that
    hold a copy: `stage` is the lowest member stage that this device trains, `peer` the group's number in the model.
    GATHER follows the STEP of a stage whose replicas share its optimizer (`Workload.sharded`): REDUCE then leaves every
    replica the sum of its part, STEP updates that part, GATHER brings all parts to all replicas.

    PREDICT writes the weights that the stage will have `peer` updates later, for the next op in line: the F, B or I of
    its stage and micro-batch; the W of a split backward uses them too. Where a stage's forward runs on another device,
    its owner predicts after a STEP, right before the SEND_P of that update, and the predicted weights are sent: `peer`
    is then how far the first forward that uses the version there is behind. That device's F uses the newest version
    whose RECV_P stands before it in its list, and predicts nothing.
    """

    kind: Kind
    stage: int
    micro_batch: int = -1
    peer: int = -1

    def __str__(self) -> str:
        text = f"{self.stage}{self.kind.name}"
        if self.micro_batch >= 0:
            text += str(self.micro_batch)
        if self.peer >= 0:
            text += f"{_MARKS.get(self.kind, '>' if self.kind in SENDS else '<')}{self.peer}"
        return text

    @property
    def collective(self) -> tuple[Kind, int, int]:
        """Of a REDUCE, TIE or GATHER: what tells it from the others, the same on all devices that take part."""
        return self.kind, self.peer if self.kind == Kind.TIE else self.stage, self.micro_batch


@dataclass(frozen=True)
class Pipeline:
    """One route through all stages: per stage the forward and the backward device, and who takes it.

    A stage's F runs on its forward device, its B (or I and W) and R on its backward device, which owns the parameters.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    micro_batches: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """What was asked: the model, the cluster and the workload.

    Raises WorkloadError where sizes would not add up, ModelError where the model is not one of the cluster's teams.
    """

    model: ModelGraph
    cluster: Cluster
    workload: Workload

    def __post_init__(self) -> None:
        if self.model.team != self.cluster.team:
            raise ModelError(
                f"model {shown(self.model.name)} has costs for teams of {self.model.team}, the cluster's devices are "
                f"teams of {self.cluster.team}"
            )
        count = self.model.total_bytes * self.workload.micro_batches
        if count > MOST_STEP_BYTES:
            each = f"{self.workload.micro_batches} micro-batches of {self.model.total_bytes} bytes"
            raise WorkloadError(f"{each} are {count} bytes, at most {MOST_STEP_BYTES} are planned with")


@dataclass(frozen=True)
class DeviceForecast:
    """What the simulator says of one device. `peak_parts`: bytes by category at the peak; sums to the peak."""

    busy_s: float
    bubble: float
    peak_bytes: int
    peak_at_s: float = 0.0
    peak_parts: tuple[tuple[str, int], ...] = ()


PROVEN_GAP = 1e-6
"""A plan whose gap is no larger is optimal."""


def gap_of(seconds: float, bound_s: float) -> float:
    """How far seconds are above a bound, as a share of it."""
    if bound_s > 0:
        return seconds / bound_s - 1
    return 0.0 if seconds == 0 else math.inf


@dataclass(frozen=True)
class Forecast:
    """Predicted step: seconds, proven bound, gap = step_s / bound_s - 1, and every device.

    Where weights are updated without a flush, `step_s` is the whole run of the plan's micro-batches, from an empty
    pipeline to an empty pipeline, and `period_s` the seconds a micro-batch takes once the pipeline is full; bound and
    gap then speak of the period.
    """

    step_s: float
    devices: tuple[DeviceForecast, ...]
    bound_s: float = 0.0
    gap: float | None = None
    status: str = "feasible"
    period_s: float | None = None

    @property
    def objective_s(self) -> float:
        """What the search minimises: the period where there is one, else the step."""
        return self.step_s if self.period_s is None else self.period_s

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak bytes per device."""
        return tuple(device.peak_bytes for device in self.devices)

    @property
    def bubble(self) -> float:
        """Idle share of all devices over the step."""
        return sum(device.bubble for device in self.devices) / max(1, len(self.devices))


@dataclass(frozen=True)
class Provenance:
    """Where a plan came from: `source` is the schedule's name or the search, `space` what the forecast's bound covers.

    `among`: the part of that space of which more is proven, where there is one; no plan of it takes less than
    `among_bound_s` seconds, of the step or, without a flush, of the period. `points`: of a family, what came of each
    point (teams, micro-batch size) that was searched together with the plan's own.
    """

    version: str = ""
    seed: int = 0
    source: str = ""
    solver: str = ""
    seconds: float = 0.0
    space: str = ""
    among: str = ""
    among_bound_s: float | None = None
    points: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything the executor needs plus the forecast.

    Attributes:
        stages: layer names of every stage.
        pipelines: at least one; every micro-batch takes exactly one.
        orders: for every device its ops in order.
        stash: per pipeline, per stage: "keep", "recompute", "offload", "offload+weights" (with the version of the
            weights that the backward uses), or "ship>D": to device D and back. What is
            kept goes from the forward to the backward device where they differ. A choice for single micro-batches
            is one more pipeline on the same devices.
        weights: weight policy, see `weight_policy`; "flush" is synchronous.
    """

    problem: Problem
    stages: tuple[tuple[str, ...], ...]
    pipelines: tuple[Pipeline, ...]
    orders: tuple[tuple[Op, ...], ...]
    stash: tuple[tuple[str, ...], ...]
    weights: str = "flush"
    forecast: Forecast | None = None
    provenance: Provenance = field(default_factory=Provenance)
    drawn: ClassVar[Callable[[Plan], str] | None] = None
    """Draws a plan for notebooks; set by the planner's face, since data knows no pictures."""

    def with_forecast(self, forecast: Forecast) -> Plan:
        """The same plan with another forecast."""
        return replace(self, forecast=forecast)

    def _repr_html_(self) -> str | None:
        """The plan's page in a frame: how notebooks show it."""
        return None if Plan.drawn is None else Plan.drawn(self)
