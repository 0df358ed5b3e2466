"""What plans and candidates have in common: everything but the order of ops."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..plan import Kind, Pipeline, Problem
from ..problem import FLUSH, WEIGHT_POLICIES, StageCosts
from .columns import Floats, Ints

_PASSES = [kind.value for kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)]


MOVES_BESIDE = {
    Kind.F: (Kind.OFFLOAD, Kind.SEND_S),
    Kind.B: (Kind.FETCH, Kind.RECV_S),
    Kind.I: (Kind.FETCH, Kind.RECV_S),
}
"""What a device posts for the stash of an op that it runs: each costs it as much as a tensor between stages."""


class Structured(Protocol):
    """What plans and candidates have in common: everything but the order."""

    @property
    def problem(self) -> Problem: ...
    @property
    def stages(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def pipelines(self) -> tuple[Pipeline, ...]: ...
    @property
    def stash(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def weights(self) -> str: ...


def costs_of(plan: Structured) -> StageCosts:
    """What the stages of a plan cost on its cluster, ops' overheads included: what all who ask for seconds read.

    Raises PlanError when they do not cut the layer graph.
    """
    return StageCosts.of(plan.problem.model, plan.stages, plan.problem.cluster.around)


def beside_layers_s(costs: StageCosts, kind: Ints | Kind, stage: Ints | int) -> Floats:
    """Of the seconds at speed 1 of these ops, what they cost beside their stages' layers, a STEP beside its bytes."""
    around = np.where(np.equal(kind, Kind.W.value), costs.overhead.op_s, costs.around_s[stage])
    trains = np.equal(kind, Kind.STEP.value) & (costs.trained_bytes[stage] > 0)
    stepping = np.where(trains, costs.overhead.step_s, 0.0)
    return np.asarray(np.where(np.isin(kind, _PASSES), around, stepping))


def update_size(plan: Structured) -> int:
    """Micro-batches an update: all of a synchronous plan's."""
    workload = plan.problem.workload
    if plan.weights == FLUSH:
        return workload.micro_batches
    return workload.update_every or WEIGHT_POLICIES[plan.weights].least_update(len(plan.stages))


def update_ends(plan: Structured) -> list[int]:
    """The micro-batch in the STEP of every update: its last one, or -1 in a synchronous plan."""
    if plan.weights == FLUSH:
        return [-1]
    size = update_size(plan)
    return list(range(size - 1, plan.problem.workload.micro_batches, size))


def route(plan: Structured) -> dict[int, int]:
    """Pipeline of every micro-batch; the first one where several claim it (the checker names that)."""
    found: dict[int, int] = {}
    for index, pipeline in enumerate(plan.pipelines):
        for micro_batch in pipeline.micro_batches:
            found.setdefault(micro_batch, index)
    return found
