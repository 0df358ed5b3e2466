"""Exact memory of every device and host over the simulated step: who allocates what, when, and what made the peak.

An op allocates at its start and releases at its end; at equal times releases come first (design: instants). What is
posted at one time takes place in list order: a message that leaves makes room for what is listed behind its SEND only.
"""

from __future__ import annotations

import numpy as np

from ..graph import (
    Flags,
    Ints,
    StageCosts,
    Structured,
    predict_workspace,
    route,
    stash_policy,
    static_bytes,
    step_workspace,
)
from ..plan import Kind
from ..problem import FLUSH
from .curves import DeviceMemory, curves
from .events import BUFFER, GUEST, MESSAGE, STASH, VERSION, WORKSPACE, Events
from .jobs import Jobs
from .statistics_rows import statistics_events
from .version_copies import version_events


def profile_memory(plan: Structured, costs: StageCosts, jobs: Jobs, step_s: float) -> list[DeviceMemory]:
    """Memory over time of every device."""
    return curves(*memory_events(plan, costs, jobs, step_s))


def memory_events(
    plan: Structured, costs: StageCosts, jobs: Jobs, step_s: float
) -> tuple[Events, list[dict[str, int]]]:
    """All changes of memory on all devices, and what each holds all the time by category."""
    events = Events(jobs, step_s)
    _compute_events(events, plan, costs)
    statistics_events(events, plan, costs, BUFFER)
    _message_events(events, costs)
    _local_events(events, costs)
    _away_events(events, costs)
    static = static_bytes(plan, costs)
    if plan.weights != FLUSH:
        version_events(events, plan, costs, static, VERSION)
    return events, static


def _compute_events(events: Events, plan: Structured, costs: StageCosts) -> None:
    ops = events.jobs.ops
    if costs.workspace_bytes.any():
        work = ops.where(Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
        space = costs.workspace_bytes[ops.stage[work]]
        events.start(work, space, WORKSPACE)
        events.finish(work, -space, WORKSPACE)
    for kind, workspace in ((Kind.STEP, step_workspace), (Kind.PREDICT, predict_workspace)):
        running = ops.where(kind)
        space = workspace(plan)[ops.stage[running]] if len(running) else running
        if space.any():
            events.start(running, space, WORKSPACE)
            events.finish(running, -space, WORKSPACE)
    forward = ops.where(Kind.F)
    dropped = _recomputed(plan, ops.stage[forward], ops.micro_batch[forward])
    makes = forward
    if dropped is not None:
        makes = np.concatenate([forward[~dropped], ops.where(Kind.R)])
        kept = forward[dropped]
        extra = costs.kept_input_bytes[ops.stage[kept]]
        events.start(kept, extra, MESSAGE)
        inner = costs.inner_bytes[ops.stage[kept]]
        events.start(kept, inner, WORKSPACE)
        events.finish(kept, -inner, WORKSPACE)
        again = ops.at(ops.table(Kind.R), kept)
        events.start(again[again >= 0], -extra[again >= 0], MESSAGE)
    events.start(makes, costs.stash_bytes[ops.stage[makes]], STASH)
    whole = ops.where(Kind.B)
    events.finish(whole, -costs.stash_bytes[ops.stage[whole]], STASH)
    halves, weights = ops.where(Kind.I), ops.where(Kind.W)
    if len(halves) or len(weights):
        change = costs.weight_stash_bytes - costs.stash_bytes
        events.start(halves, np.maximum(change, 0)[ops.stage[halves]], STASH)
        events.finish(halves, np.minimum(change, 0)[ops.stage[halves]], STASH)
        events.finish(weights, -costs.weight_stash_bytes[ops.stage[weights]], STASH)


def _recomputed(plan: Structured, stage: Ints, micro_batch: Ints) -> Flags | None:
    """Which of these forwards keep only their input; None where none does."""
    if not any(stash_policy(policy).remade for row in set(plan.stash) for policy in row):
        return None
    table = np.array([[stash_policy(policy).remade for policy in row] for row in plan.stash], dtype=np.bool_)
    pipeline = np.zeros(int(micro_batch.max(initial=0)) + 1, dtype=np.int64)
    for m, index in route(plan).items():
        if m < len(pipeline):
            pipeline[m] = index
    return np.asarray(table[pipeline[micro_batch], stage], dtype=np.bool_)


def _hold_input(events: Events, costs: StageCosts, forward: Ints, size: Ints) -> None:
    """Releases a stage's incoming tensor: into the stash when that is made, the rest when that op ends.

    Made again on another device, the stash takes the tensor there, as `_away_events` has it.
    """
    ops = events.jobs.ops
    if not len(forward):
        return
    remake = ops.at(ops.table(Kind.R), forward) if len(ops.where(Kind.R)) else np.full(len(forward), -1)
    maker = np.where(remake >= 0, remake, forward)
    inside = np.minimum(size, costs.stash_bytes[ops.stage[maker]])
    events.start(maker, -inside, MESSAGE)
    if (inside != size).any():
        events.finish(maker, inside - size, MESSAGE)


def _message_events(events: Events, costs: StageCosts) -> None:
    ops, found = events.jobs.ops, events.jobs.messages
    forwards, backwards = ops.table(Kind.F), ops.table(Kind.B, Kind.I)
    for send_kind, makers in ((Kind.SEND_F, forwards), (Kind.SEND_B, backwards)):
        chosen = np.flatnonzero((ops.kind[found.send] == send_kind.value) & (found.bytes > 0))
        send, receive, size = found.send[chosen], found.receive[chosen], found.bytes[chosen]
        maker = ops.at(makers, send)
        events.start(maker, size, MESSAGE)
        events.left(send, -size, MESSAGE)
        events.post(receive, size, MESSAGE)
        user = ops.at(makers, receive)
        if send_kind == Kind.SEND_F:
            _hold_input(events, costs, user, size)
        else:
            events.finish(user, -size, MESSAGE)


def _local_events(events: Events, costs: StageCosts) -> None:
    """Tensors handed on inside a device, and the data that enters the model."""
    ops = events.jobs.ops
    forwards, backwards = ops.table(Kind.F), ops.table(Kind.B, Kind.I)
    edges = np.array([edge for edge in costs.edges if edge.bytes and len(ops)], dtype=np.int64).reshape(-1, 3)
    for table, forward in ((forwards, True), (backwards, False)):
        producers, consumers = table[edges[:, 0]], table[edges[:, 1]]
        local = (producers >= 0) & (consumers >= 0) & (ops.device[producers] == ops.device[consumers])
        edge, m = np.nonzero(local)
        size = edges[edge, 2]
        if forward:
            events.start(producers[edge, m], size, MESSAGE)
            _hold_input(events, costs, consumers[edge, m], size)
        else:
            events.start(consumers[edge, m], size, MESSAGE)
            events.finish(producers[edge, m], -size, MESSAGE)
    if costs.input_bytes.any():
        fed = ops.where(Kind.F)
        fed = fed[costs.input_bytes[ops.stage[fed]] > 0]
        size = costs.input_bytes[ops.stage[fed]]
        events.start(fed, size, MESSAGE)
        _hold_input(events, costs, fed, size)


def _away_events(events: Events, costs: StageCosts) -> None:
    """Stashes that leave their device: to the host, to another device that holds them, or to their backward's."""
    jobs = events.jobs
    ops, found = jobs.ops, jobs.messages
    offload, fetch = ops.where(Kind.OFFLOAD), ops.where(Kind.FETCH)
    if len(offload) or len(fetch):
        events.left(offload, -costs.stash_bytes[ops.stage[offload]], STASH)
        events.arrives(fetch, ops.at(ops.table(Kind.B, Kind.I), fetch), costs.stash_bytes[ops.stage[fetch]], STASH)
    if found.arriving is not None:
        sent = np.flatnonzero(ops.kind[found.send] == Kind.SEND_S.value)
        send, receive, size = found.send[sent], found.receive[sent], found.bytes[sent]
        back, arriving = ops.abroad(send), found.arriving[sent]
        inputs = ops.at(ops.table(Kind.R), send) >= 0
        for which, leaves, comes in (
            (~arriving, STASH, GUEST),
            (back, GUEST, STASH),
            (arriving & ~back & ~inputs, STASH, STASH),
            (arriving & ~back & inputs, MESSAGE, MESSAGE),
        ):
            events.left(send[which], -size[which], leaves)
            events.post(receive[which], size[which], comes)
