"""Exact memory of every device and host over the simulated step: who allocates what, when, and what made the peak.

An op allocates at its start and releases at its end; at equal times releases come first (design: instants). What is
posted at one time takes place in list order: a message that leaves makes room for what is listed behind its SEND only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..graph import (
    Homes,
    Ints,
    Ops,
    StageCosts,
    Structured,
    beside_bytes,
    predict_workspace,
    stash_policies,
    static_bytes,
    step_workspace,
)
from ..plan import Kind
from ..problem import FLUSH
from .curves import DeviceMemory, curves
from .events import BUFFER, CATEGORIES, GUEST, MESSAGE, STASH, VERSION, WORKSPACE, Events
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
    _message_events(events, plan, costs)
    _local_events(events, plan, costs)
    _away_events(events, plan, costs)
    static = static_bytes(plan, costs)
    if plan.weights != FLUSH:
        version_events(events, plan, costs, static, VERSION)
    return events, static


def _compute_events(events: Events, plan: Structured, costs: StageCosts) -> None:
    ops = events.jobs.ops
    if costs.workspace_bytes.any() or any(size.any() for size in costs.workspaces):
        for work, space in _workspaces(plan, costs, ops):
            events.start(work, space, WORKSPACE)
            events.finish(work, -space, WORKSPACE)
    for kind, workspace in ((Kind.STEP, step_workspace), (Kind.PREDICT, predict_workspace)):
        running = ops.where(kind)
        space = workspace(plan)[ops.stage[running]] if len(running) else running
        if space.any():
            events.start(running, space, WORKSPACE)
            events.finish(running, -space, WORKSPACE)
    _made_events(events, plan, costs)
    whole = ops.where(Kind.B)
    events.finish(whole, -costs.stash_bytes[ops.stage[whole]], STASH)
    halves, weights = ops.where(Kind.I), ops.where(Kind.W)
    if len(halves) or len(weights):
        change = costs.weight_stash_bytes - costs.stash_bytes
        events.start(halves, np.maximum(change, 0)[ops.stage[halves]], STASH)
        events.finish(halves, np.minimum(change, 0)[ops.stage[halves]], STASH)
        events.finish(weights, -costs.weight_stash_bytes[ops.stage[weights]], STASH)


def _workspaces(plan: Structured, costs: StageCosts, ops: Ops) -> Iterator[tuple[Ints, Ints]]:
    """Compute ops and their workspaces, those of forwards as if they left whole stashes."""
    work, again = costs.workspaces, ops.where(Kind.R)
    of_kinds = ((Kind.F, work.forward), (Kind.B, work.backward), (Kind.I, work.inputs), (Kind.W, work.weights))
    for kind, space in of_kinds:
        running = ops.where(kind)
        yield running, space[ops.stage[running]]
    if len(again):
        stage, partly = ops.stage[again], Homes.of(plan, ops.width).partly(ops, again)
        yield again, np.where(partly, costs.workspace_bytes[stage], work.remake[stage])


def _made_events(events: Events, plan: Structured, costs: StageCosts) -> None:
    """What forwards leave: a stash, or what an R makes it from again, in which case the R makes the rest."""
    ops = events.jobs.ops
    forward, again = ops.where(Kind.F), ops.where(Kind.R)
    rows = stash_policies(plan)
    if not any(row.remade for row in rows):
        events.start(forward, costs.stash_bytes[ops.stage[forward]], STASH)
        return
    homes = Homes.of(plan, ops.width)
    dropped, partial = homes.remade[ops.stage[forward], ops.micro_batch[forward]], homes.partly(ops, forward)
    kept = forward[dropped & ~partial]
    extra = costs.kept_input_bytes[ops.stage[kept]]
    events.start(kept, extra, MESSAGE)
    remade = ops.at(ops.table(Kind.R), kept)
    events.start(remade[remade >= 0], -extra[remade >= 0], MESSAGE)
    for which, part in ((kept, False), (forward[partial], True)):
        size = beside_bytes(costs, part)[ops.stage[which]]
        events.start(which, size, WORKSPACE)
        events.finish(which, -size, WORKSPACE)
    rest = homes.partly(ops, again)
    makes = np.concatenate([forward[~dropped], again[~rest]])
    events.start(makes, costs.stash_bytes[ops.stage[makes]], STASH)
    if partial.any() or rest.any():
        left, remade = forward[partial], again[rest]
        events.start(left, (costs.stash_bytes - costs.selective_bytes)[ops.stage[left]], STASH)
        events.start(remade, costs.selective_bytes[ops.stage[remade]], STASH)


def _hold_input(events: Events, plan: Structured, costs: StageCosts, forward: Ints, size: Ints) -> None:
    """Releases a stage's incoming tensor: into the stash when that is made, the rest when that op ends.

    Made again on another device, the stash takes the tensor there, as `_away_events` has it.
    """
    ops = events.jobs.ops
    if not len(forward):
        return
    remake = ops.at(ops.table(Kind.R), forward) if len(ops.where(Kind.R)) else np.full(len(forward), -1)
    if any(row.partial for row in stash_policies(plan)):
        remake = np.where(Homes.of(plan, ops.width).partly(ops, forward), -1, remake)
    maker = np.where(remake >= 0, remake, forward)
    inside = np.minimum(size, costs.stash_bytes[ops.stage[maker]])
    events.start(maker, -inside, MESSAGE)
    if (inside != size).any():
        events.finish(maker, inside - size, MESSAGE)


def _message_events(events: Events, plan: Structured, costs: StageCosts) -> None:
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
            _hold_input(events, plan, costs, user, size)
        else:
            events.finish(user, -size, MESSAGE)


def _local_events(events: Events, plan: Structured, costs: StageCosts) -> None:
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
            events.start(producers[edge, m], size, MESSAGE, of=consumers[edge, m])
            _hold_input(events, plan, costs, consumers[edge, m], size)
        else:
            events.start(consumers[edge, m], size, MESSAGE, of=producers[edge, m])
            events.finish(producers[edge, m], -size, MESSAGE)
    if costs.input_bytes.any():
        fed = ops.where(Kind.F)
        fed = fed[costs.input_bytes[ops.stage[fed]] > 0]
        size = costs.input_bytes[ops.stage[fed]]
        events.start(fed, size, MESSAGE)
        _hold_input(events, plan, costs, fed, size)


def _away_events(events: Events, plan: Structured, costs: StageCosts) -> None:
    """What leaves its device: for the host, for another device that holds it, or for its backward's."""
    ops = events.jobs.ops
    copies = len(ops.where(Kind.OFFLOAD)) + len(ops.where(Kind.FETCH)) > 0
    if not copies and events.jobs.messages.arriving is None:
        return
    homes = Homes.of(plan, ops.width)
    moved = [
        (number, content.bytes(costs), CATEGORIES.index(content.category))
        for number, row in enumerate(homes.rows)
        for content in row.moved
    ]
    for number, size, category in moved if copies else ():
        _hosted_events(events, homes, number, size, category)
    for number, size, category in moved if events.jobs.messages.arriving is not None else ():
        _sent_events(events, homes, number, size, category)


def _mine(homes: Homes, ops: Ops, places: Ints, row: int) -> Ints:
    """Those of these ops that are about a stash with this row's policy."""
    return places[homes.row[ops.stage[places], ops.micro_batch[places]] == row] if len(homes.rows) > 1 else places


def _hosted_events(events: Events, homes: Homes, row: int, size: Ints, category: int) -> None:
    ops = events.jobs.ops
    offload, fetch = (_mine(homes, ops, ops.where(kind), row) for kind in (Kind.OFFLOAD, Kind.FETCH))
    events.left(offload, -size[ops.stage[offload]], category)
    events.arrives(fetch, homes.takers(ops, fetch), size[ops.stage[fetch]], category)


def _sent_events(events: Events, homes: Homes, row: int, size: Ints, category: int) -> None:
    ops, found = events.jobs.ops, events.jobs.messages
    assert found.arriving is not None, "some stash is sent"
    sent = ops.kind[found.send] == Kind.SEND_S.value
    if len(homes.rows) > 1:
        sent &= homes.row[ops.stage[found.send], np.maximum(ops.micro_batch[found.send], 0)] == row
    send, receive, arriving = found.send[sent], found.receive[sent], found.arriving[sent]
    back = ops.abroad(send)
    for which, leaves, comes in (
        (~arriving, category, GUEST),
        (back, GUEST, category),
        (arriving & ~back, category, category),
    ):
        events.left(send[which], -size[ops.stage[send[which]]], leaves)
        events.post(receive[which], size[ops.stage[receive[which]]], comes)
