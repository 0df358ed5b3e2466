"""Copies of weights that an asynchronous plan's devices hold beyond the newest version."""

from __future__ import annotations

import numpy as np

from ..graph import Flags, Homes, Ints, Ops, StageCosts, Structured, kept_copies, kept_versions
from ..plan import Kind, Plan
from ..problem import WEIGHT_POLICIES
from .events import Events


def predicted_copies(ops: Ops) -> tuple[Ints, Ints]:
    """Every PREDICT, and the last op that reads what it made: the F, the B, or the W of a split backward."""
    predicts, working = ops.where(Kind.PREDICT), ops.working
    if not len(predicts):
        return predicts, predicts
    predicts = predicts[~for_sending(ops, predicts)]
    user = working[np.minimum(np.searchsorted(working, predicts) + 1, len(working) - 1)]
    weights = ops.at(ops.table(Kind.W), user)
    split = (ops.kind[user] == Kind.I.value) & (weights >= 0)
    return predicts, np.where(split, weights, user)


def for_sending(ops: Ops, predicts: Ints) -> Flags:
    """Which of these PREDICTs make what the SEND_P just behind them sends."""
    behind = np.minimum(predicts + 1, len(ops) - 1)
    same = (ops.stage[behind] == ops.stage[predicts]) & (ops.micro_batch[behind] == ops.micro_batch[predicts])
    return np.asarray(same & (ops.kind[behind] == Kind.SEND_P.value), dtype=np.bool_)


def received_until(ops: Ops, receive: Ints) -> Ints:
    """The op with which each RECV_P's version takes the place of the one before: its first F, or the next RECV_P."""
    again = ops.next_of_stage(receive, Kind.RECV_P)
    first = ops.next_of_stage(receive, Kind.F)
    return np.where((first < 0) | ((again >= 0) & (again < first)), again, first)


def last_gradients(plan: Structured, costs: StageCosts, ops: Ops) -> dict[int, int]:
    """Bytes by device of the last update's gradients, where predictions of the plan's optimizer need them."""
    workload = plan.problem.workload
    if not workload.keeps_gradient(WEIGHT_POLICIES[plan.weights].momentum_first):
        return {}
    predicts = ops.where(Kind.PREDICT)
    found: dict[int, int] = {}
    for device, stage in sorted(set(zip(ops.device[predicts].tolist(), ops.stage[predicts].tolist(), strict=True))):
        size = workload.gradient_bytes(int(costs.trained_bytes[stage]))
        found[device] = found.get(device, 0) + size
    return found


def most_copies(plan: Plan) -> tuple[int, ...]:
    """Of every stage, the most copies of its weights that a device holds at once beyond the newest version.

    Of the order of ops only: a prediction counts as one copy for as long as the pass that it serves.
    """
    most = [0] * len(plan.stages)
    for order, kept in zip(plan.orders, kept_versions(plan), strict=True):
        change: dict[int, list[int]] = {}
        for one in kept:
            change.setdefault(one.replaced, []).append(one.stage)
            change.setdefault(one.until + 1, []).append(~one.stage)
        held = [0] * len(plan.stages)
        for place, op in enumerate(order):
            for stage in change.get(place, ()):
                held[max(stage, ~stage)] += 1 if stage >= 0 else -1
            most[op.stage] = max(most[op.stage], held[op.stage] + (op.kind is Kind.PREDICT))
    return tuple(most)


def version_events(
    events: Events, plan: Structured, costs: StageCosts, static: list[dict[str, int]], category: int
) -> None:
    """Adds changes of memory: versions that outlive their replacement, predicted weights, parameters on their way.

    Last gradients that predictions need go into `static`, bytes by device and category.
    """
    ops = events.jobs.ops
    for begin, end in (kept_copies(plan, ops)[:2], predicted_copies(ops)):
        size = costs.trained_bytes[ops.stage[begin]]
        events.start(begin, size, category)
        leaves = ops.kind[end] == Kind.OFFLOAD.value
        events.finish(end[~leaves], -size[~leaves], category, of=begin[~leaves])
        events.left(end[leaves], -size[leaves], category)
    _sent_versions(events, category)
    _fetched_versions(events, plan, costs, category)
    for device, count in last_gradients(plan, costs, ops).items():
        static[device]["gradients"] += count


def _sent_versions(events: Events, category: int) -> None:
    """New parameters on their way: a copy until they have left, and the incoming version until it is used."""
    ops, found = events.jobs.ops, events.jobs.messages
    chosen = np.flatnonzero(ops.kind[found.send] == Kind.SEND_P.value)
    send, receive, size = found.send[chosen], found.receive[chosen], found.bytes[chosen]
    predicts = ops.where(Kind.PREDICT)
    made = predicts[for_sending(ops, predicts)] if len(predicts) else predicts
    predicted = np.isin(send, made + 1)
    events.start(send[predicted] - 1, size[predicted], category)
    events.post(send[~predicted], size[~predicted], category)
    events.left(send, -size, category)
    events.post(receive, size, category)
    used = received_until(ops, receive)
    events.start(used[used >= 0], -size[used >= 0], category, of=receive[used >= 0])


def _fetched_versions(events: Events, plan: Structured, costs: StageCosts, category: int) -> None:
    """Versions that come back from the host with their stash: until their backward has ended, its W included."""
    ops = events.jobs.ops
    fetch = ops.where(Kind.FETCH)
    fetch = fetch[Homes.of(plan, ops.width).versioned(ops, fetch)]
    if not len(fetch):
        return
    size, user = costs.trained_bytes[ops.stage[fetch]], ops.at(ops.table(Kind.B, Kind.I), fetch)
    weights = ops.at(ops.table(Kind.W), fetch)
    events.arrives(fetch, user, size, category)
    events.finish(np.where(weights >= 0, weights, user), -size, category)
