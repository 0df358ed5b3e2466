"""The jobs of one plan under many costs: what waits for what is the same, only compute ops take another time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..graph import Floats, Homes, Machine, StageCosts, Structured, run_many, run_sharing
from ..plan import COLLECTIVES, RECEIVES, Kind
from .jobs import Jobs, moving_seconds


def with_seconds(plan: Structured, costs: StageCosts, jobs: Jobs, seconds: Floats) -> Iterator[tuple[StageCosts, Jobs]]:
    """The costs and the served jobs under every row of `seconds`: of F, I and W of every stage's layers, at speed 1.

    seconds: shape (rows, stages, 3); I and W together are a whole backward. What ops cost beside their layers, and all
    else, is as in these jobs.
    """
    op_s = costs.overhead.op_s
    around = np.stack([costs.around_s, costs.around_s, np.full(len(costs.around_s), op_s)], axis=1)
    seconds = seconds + around
    ops, forward, inputs, weights = jobs.ops, *np.moveaxis(seconds, 2, 0)
    table = np.zeros((len(seconds), len(Kind), seconds.shape[1]))
    for kind, column in (
        (Kind.F, forward), (Kind.R, forward), (Kind.B, inputs + weights - op_s), (Kind.I, inputs), (Kind.W, weights)
    ):  # fmt: skip
        table[:, kind] = column
    durations = np.repeat(jobs.alone[None, :], len(seconds), axis=0)
    mine = ops.where(Kind.F, Kind.R, Kind.B, Kind.I, Kind.W)
    machine = Machine.of(plan.problem.cluster)
    moving_s = moving_seconds(costs, ops)[mine]
    durations[:, mine] = (table[:, ops.kind[mine], ops.stage[mine]] + moving_s) / machine.speed[ops.device[mine]]
    again = ops.where(Kind.R)
    again = again[Homes.of(plan, ops.width).partly(ops, again)] if len(again) else again
    if len(again):  # as much longer or shorter as the forward
        pace = forward[:, ops.stage[again]] / np.where(costs.forward_s > 0, costs.forward_s, 1.0)[ops.stage[again]]
        durations[:, again] = jobs.alone[again] * pace
    for row, found in zip(seconds, _served(jobs, durations), strict=True):
        own = dict(zip(("forward_s", "backward_input_s", "backward_weight_s"), row.T, strict=True))
        yield replace(costs, **own), found


def _served(jobs: Jobs, durations: Floats) -> Iterator[Jobs]:
    """The jobs with every row of these durations at full speed."""
    ops, waits = jobs.ops, jobs.precedences
    idle, edges = ops.where(*sorted(RECEIVES | COLLECTIVES)), (waits.before, waits.after, waits.lag)
    if jobs.sharing is not None:
        first, resource = jobs.occupied
        resources = first, resource, int(resource.max(initial=-1)) + 1
        for alone in durations:
            start, duration, rank, _ = run_sharing(alone, edges, resources, idle, jobs.sharing)
            yield replace(jobs, duration=duration, start=start, rank=rank, alone=alone)
        return
    starts, ranks = run_many(durations, edges, *jobs.occupied, idle)
    for duration, start, rank in zip(durations, starts, ranks, strict=True):
        yield replace(jobs, duration=duration, start=start, rank=rank, alone=duration)
