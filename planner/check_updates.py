"""Do the updates of an asynchronous plan come out, and does every pass find the weights that its policy promises?

Reads versions off the op lists on its own: the version of a stage at a place is the number of its STEPs before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .check_columns import Homes, Ints, Listed, Violation, update_micro_batches
from .operations import StageCosts
from .plan import Kind, Op, Plan
from .weight_policy import BATCH, CURRENT, FLUSH, WEIGHT_POLICIES, WeightPolicy


def update_structure(plan: Plan) -> Iterator[Violation]:
    """What is wrong with the weight policy, before any op list is looked at."""
    policy, stages, count = WEIGHT_POLICIES.get(plan.weights), len(plan.stages), plan.problem.workload.micro_batches
    if policy is None:
        known = ", ".join(WEIGHT_POLICIES)
        yield Violation("weights", "plan", f"unknown weight policy {plan.weights!r}; known: {known}")
        return
    size = update_micro_batches(plan)
    if not size:
        return
    if count % size:
        yield Violation("update", "plan", f"updates of {size} micro-batches do not divide {count} micro-batches")
    if policy.takes == BATCH and size < stages:
        message = f"weight policy {plan.weights!r} needs at least {stages} micro-batches an update, has {size}"
        yield Violation("update", "plan", f"{message}: one for every stage")
    for number, pipeline in enumerate(plan.pipelines):
        for stage, (home, back) in enumerate(zip(pipeline.forward, pipeline.backward, strict=False)):
            if home != back:
                message = f"stage {stage} runs forward on device {home} and backward on {back}: only with a flush"
                yield Violation("weights", f"pipeline {number}", message)


def tied_apart(costs: StageCosts, homes: Homes) -> Iterator[Violation]:
    """Without a flush, stages that share parameters are updated one by one: no device may train two of them."""
    if not homes.update:
        return
    for tie in costs.ties:
        for device in np.flatnonzero(homes.held[:, tie.stages].sum(axis=1) > 1).tolist():
            mine = [stage for stage in tie.stages if homes.held[device, stage]]
            message = f"trains stages {', '.join(map(str, mine))}, which share parameters: only with a flush"
            yield Violation("ties", f"device {device}", message)


@dataclass(frozen=True)
class _Passes:
    """Tables [stage, micro-batch] of a plan whose op sets are right.

    newest: version of the stage at F's place. version: the one that F uses. update: number of the micro-batch's
    update, which is the newest version at its backward.
    """

    newest: Ints
    version: Ints
    update: Ints

    @classmethod
    def of(cls, listed: Listed, policy: WeightPolicy) -> _Passes:
        homes = listed.homes
        forward = listed.table(Kind.F)
        newest = _steps_before(listed, forward)
        update = np.broadcast_to(np.arange(forward.shape[1]) // homes.update, forward.shape)
        if policy.takes == CURRENT:
            return cls(newest, newest, update)
        entry = newest[0]
        if policy.takes == BATCH:
            entry = np.repeat(entry.reshape(-1, homes.update).min(axis=1), homes.update)
        return cls(newest, np.broadcast_to(entry, forward.shape), update)


def _steps_before(listed: Listed, place: Ints) -> Ints:
    """How many STEPs of its stage stand before each of these places [stage, micro-batch], on the same device."""
    columns = listed.columns
    steps = np.flatnonzero(columns.kind == Kind.STEP)
    group = columns.device * len(place) + columns.stage
    key = np.sort(group[steps] * (len(listed) + 1) + steps)
    first = np.searchsorted(key, group[place] * (len(listed) + 1))
    return np.asarray(np.searchsorted(key, group[place] * (len(listed) + 1) + place) - first, dtype=np.int64)


def update_rules(plan: Plan, listed: Listed) -> list[Violation]:
    """Versions, staleness and predictions of a plan whose op sets are right."""
    policy, stages = WEIGHT_POLICIES[plan.weights], len(plan.stages)
    if plan.weights == FLUSH:
        nothing = np.zeros_like(listed.homes.device)
        return [*_predictions(listed, nothing, nothing)] if (listed.columns.kind == Kind.PREDICT).any() else []
    passes = _Passes.of(listed, policy)
    half = np.arange(stages)[:, None] // 2 if policy.half_depth else np.zeros((stages, 1), dtype=np.int64)
    ahead = passes.update - passes.newest + policy.extra + half if policy.predicts else np.zeros_like(passes.newest)
    limit = plan.problem.workload.staleness_limit
    found = [*_unmade(listed, passes)]
    if limit is not None:
        found += _stale(passes, limit)
    return [*found, *_predictions(listed, ahead, np.broadcast_to(half, ahead.shape))]


def _unmade(listed: Listed, passes: _Passes) -> Iterator[Violation]:
    for stage, m in np.argwhere(passes.version > passes.newest).tolist():
        device, op = listed.homes.device[stage, m], Op(Kind.F, stage, m)
        versions = f"version {passes.version[stage, m]} of its weights, the newest there is {passes.newest[stage, m]}"
        yield Violation("version", f"device {device}", f"{op} needs {versions}")


def _stale(passes: _Passes, limit: int) -> Iterator[Violation]:
    staleness = passes.update - passes.version
    for stage in np.flatnonzero((staleness > limit).any(axis=1)).tolist():
        m = int(staleness[stage].argmax())
        message = f"the weights of {Op(Kind.F, stage, m)} are {staleness[stage, m]} updates old, the limit is {limit}"
        yield Violation("staleness", f"stage {stage}", message)


def _predictions(listed: Listed, ahead: Ints, back_ahead: Ints) -> Iterator[Violation]:
    """Every PREDICT against the passes that run on predicted weights: so many updates ahead, forward and backward."""
    columns, in_line = listed.columns, np.flatnonzero(listed.in_line)
    given: dict[int, int] = {}
    for place in np.flatnonzero(columns.kind == Kind.PREDICT).tolist():
        op, where = listed.op(place), f"device {columns.device[place]}"
        after = np.searchsorted(in_line, place) + 1
        user = int(in_line[after]) if after < len(in_line) else place
        served = listed.op(user)
        if columns.device[user] != columns.device[place] or served[1:3] != op[1:3] or served == op:
            yield Violation("prediction", where, f"{op} does not stand directly before a pass of its micro-batch")
        elif served.kind not in (Kind.F, Kind.B, Kind.I):
            yield Violation("prediction", where, f"{op} stands before {served}, which runs on no predicted weights")
        else:
            given[user] = op.peer
    back = np.maximum(listed.table(Kind.B), listed.table(Kind.I))
    for table, wanted in ((listed.table(Kind.F), ahead), (back, back_ahead)):
        found = np.zeros(len(listed), dtype=np.int64)
        found[list(given)] = list(given.values())
        for stage, m in np.argwhere(found[table] != wanted).tolist():
            place = int(table[stage, m])
            yield _miscounted(listed, place, int(found[place]), int(wanted[stage, m]))


def _miscounted(listed: Listed, place: int, found: int, wanted: int) -> Violation:
    served, where = listed.op(place), f"device {listed.columns.device[place]}"
    predict = Op(Kind.PREDICT, served.stage, served.micro_batch, found or wanted)
    if not found:
        return Violation("missing-op", where, f"{predict} is missing: {served} runs {wanted} updates ahead")
    if not wanted:
        return Violation(
            "unexpected-op", where, f"{predict} does not belong here: {served} runs on no predicted weights"
        )
    return Violation("prediction", where, f"{predict} predicts {found} updates ahead, {served} runs {wanted} ahead")
