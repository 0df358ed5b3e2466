"""Do the updates of an asynchronous plan come out, and does every pass find the weights that its policy promises?

Reads versions off the op lists on its own: the version of a stage at a place is the number of its STEPs before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..graph import POLICIES, Homes, Ints, StageCosts, update_size
from ..plan import Kind, Op, Plan
from ..problem import BATCH, CURRENT, FLUSH, WEIGHT_POLICIES, WeightPolicy
from .columns import Listed, Violation


def update_structure(plan: Plan) -> Iterator[Violation]:
    """What is wrong with the weight policy, before any op list is looked at."""
    policy, count = WEIGHT_POLICIES.get(plan.weights), plan.problem.workload.micro_batches
    if policy is None:
        known = ", ".join(WEIGHT_POLICIES)
        yield Violation("weights", "plan", f"unknown weight policy {plan.weights!r}; known: {known}")
        return
    yield from _weights_offloaded(plan, policy)
    if plan.weights == FLUSH:
        return
    if plan.problem.workload.sharded:
        message = f"shards optimizers, which only plans with a flush do, and the weight policy is {plan.weights!r}"
        yield Violation("sharded", "plan", message)
    size = update_size(plan)
    if count % size:
        yield Violation("update", "plan", f"updates of {size} micro-batches do not divide {count} micro-batches")


def _weights_offloaded(plan: Plan, policy: WeightPolicy) -> Iterator[Violation]:
    """A version goes to the host from where its forward ran to where its backward runs, if that uses it."""
    for number, (pipeline, row) in enumerate(zip(plan.pipelines, plan.stash, strict=False)):
        for stage, text in enumerate(row):
            homes = {*pipeline.forward[stage : stage + 1], *pipeline.backward[stage : stage + 1]}
            known = POLICIES.get(text)
            versioned = known is not None and known.versioned
            if versioned and not policy.stashed:
                message = f"stage {stage}: offloads a version that no backward uses with weight policy {plan.weights!r}"
                yield Violation("stash", f"pipeline {number}", message)
            elif versioned and len(homes) > 1:
                where = " and ".join(map(str, sorted(homes)))
                message = f"stage {stage}: offloads a version with forward and backward on devices {where}"
                yield Violation("stash", f"pipeline {number}", message)


def tied_apart(costs: StageCosts, homes: Homes) -> Iterator[Violation]:
    """Without a flush, stages that share parameters are updated one by one: no device may run two of them."""
    if not homes.update:
        return
    there = homes.held | homes.runs(homes.device)
    for tie in costs.ties:
        for device in np.flatnonzero(there[:, tie.stages].sum(axis=1) > 1).tolist():
            mine = [stage for stage in tie.stages if there[device, stage]]
            message = f"runs stages {', '.join(map(str, mine))}, which share parameters: only with a flush"
            yield Violation("ties", f"device {device}", message)


@dataclass(frozen=True)
class _Passes:
    """Tables [stage, micro-batch] of a plan whose op sets are right.

    newest: version of the stage at F's place; on a device that only runs forwards, what has arrived. version: the one
    that F uses. update: number of the micro-batch's update, which is the newest version at its backward.
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
    """How many STEPs (or arrivals) of its stage stand before each of these places [stage, micro-batch] in its list."""
    columns = listed.columns
    steps = np.flatnonzero((columns.kind == Kind.STEP) | (columns.kind == Kind.RECV_P))
    group = columns.device * len(place) + columns.stage
    key = np.sort(group[steps] * (len(listed) + 1) + steps)
    first = np.searchsorted(key, group[place] * (len(listed) + 1))
    return np.asarray(np.searchsorted(key, group[place] * (len(listed) + 1) + place) - first, dtype=np.int64)


def update_rules(plan: Plan, listed: Listed) -> list[Violation]:
    """Versions, staleness and predictions of a plan whose op sets are right."""
    policy, ahead = WEIGHT_POLICIES[plan.weights], np.zeros(len(listed), dtype=np.int64)
    if plan.weights == FLUSH:
        return [*_predictions(listed, ahead)]
    passes = _Passes.of(listed, policy)
    found, limit = [*_unmade(listed, passes)], plan.problem.workload.staleness_limit
    if limit is not None:
        found += _stale(passes, limit)
    found += _too_few(plan, passes, policy)
    if policy.predicts:
        _set_ahead(listed, passes, policy, ahead)
    return [*found, *_predictions(listed, ahead)]


def _set_ahead(listed: Listed, passes: _Passes, policy: WeightPolicy, ahead: Ints) -> None:
    """Writes for every place how many updates ahead its weights are predicted.

    A forward where its stage is stepped, and every backward; what is sent to other devices as far as for the first
    forward that uses it there.
    """
    homes, forward = listed.homes, listed.table(Kind.F)
    half = np.arange(len(forward))[:, None] // 2 if policy.half_depth else np.zeros((len(forward), 1), dtype=np.int64)
    back = np.maximum(listed.table(Kind.B), listed.table(Kind.I))
    ahead[back] = half
    wanted = passes.update - passes.newest + policy.extra + half
    own = homes.held[homes.device, np.arange(len(forward))[:, None]]
    ahead[forward[own]] = wanted[own]
    users: dict[tuple[int, int, int], tuple[int, int]] = {}
    for stage, m in np.argwhere(~own & (passes.newest > 0)).tolist():
        end = int(homes.update_ends[passes.newest[stage, m] - 1])
        key = stage, end, int(homes.device[stage, m])
        users[key] = min(users.get(key, (len(listed), 0)), (int(forward[stage, m]), int(wanted[stage, m])))
    for place in np.flatnonzero(listed.columns.kind == Kind.SEND_P).tolist():
        op = listed.op(place)
        ahead[place] = users.get((op.stage, op.micro_batch, op.peer), (0, 0))[1]


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


def _too_few(plan: Plan, passes: _Passes, policy: WeightPolicy) -> Iterator[Violation]:
    """Two buffered versions are not enough for more micro-batches in flight than an update and its first one."""
    size, stages = update_size(plan), len(plan.stages)
    if policy.takes == BATCH and size < stages and int((passes.update - passes.version).max()) > 1:
        message = f"weight policy {plan.weights!r} needs at least {stages} micro-batches an update, has {size}"
        yield Violation("update", "plan", f"{message}: one for every stage")


def _predictions(listed: Listed, ahead: Ints) -> Iterator[Violation]:
    """Every PREDICT against what runs on predicted weights, or sends them: by place, so many updates ahead."""
    columns, in_line = listed.columns, np.flatnonzero(listed.in_line)
    predicts = np.flatnonzero(columns.kind == Kind.PREDICT)
    if not len(predicts) and not ahead.any():
        return
    found = np.zeros(len(listed), dtype=np.int64)
    for place in predicts.tolist():
        op, where = listed.op(place), f"device {columns.device[place]}"
        user = _served(listed, in_line, place)
        served = listed.op(user)
        if columns.device[user] != columns.device[place] or served[1:3] != op[1:3] or served.kind is Kind.PREDICT:
            yield Violation("prediction", where, f"{op} does not stand directly before a pass of its micro-batch")
        elif served.kind not in (Kind.F, Kind.B, Kind.I, Kind.SEND_P):
            yield Violation("prediction", where, f"{op} stands before {served}, which runs on no predicted weights")
        else:
            found[user] = op.peer
    for place in np.flatnonzero(found != ahead).tolist():
        yield _miscounted(listed, place, int(found[place]), int(ahead[place]))


def _served(listed: Listed, in_line: Ints, place: int) -> int:
    """Place of what a PREDICT is for: the SEND_P of its stage and update just behind it, else the next op in line."""
    if place + 1 < len(listed):
        behind = listed.op(place + 1)
        if behind.kind is Kind.SEND_P and behind[1:3] == listed.op(place)[1:3]:
            return place + 1
    after = np.searchsorted(in_line, place) + 1
    return int(in_line[after]) if after < len(in_line) else place


def _miscounted(listed: Listed, place: int, found: int, wanted: int) -> Violation:
    served, where = listed.op(place), f"device {listed.columns.device[place]}"
    predict = Op(Kind.PREDICT, served.stage, served.micro_batch, found or wanted)
    takes = "sends weights" if served.kind is Kind.SEND_P else "runs on weights"
    if not found:
        return Violation("missing-op", where, f"{predict} is missing: {served} {takes} of {wanted} updates ahead")
    if not wanted:
        return Violation("unexpected-op", where, f"{predict} does not belong here: {served} {takes} as they are")
    return Violation(
        "prediction", where, f"{predict} predicts {found} updates ahead, {served} {takes} of {wanted} ahead"
    )
