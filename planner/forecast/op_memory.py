"""What single ops of a list declare: the bytes that each takes when it starts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..graph import NOWHERE, Ops, copied_bytes, costs_of
from ..plan import Kind, Plan
from .events import WORKSPACE
from .memory import memory_events
from .timeline import simulate_orders


class Taken(NamedTuple):
    """Bytes an op takes at its start beyond those it releases there, at least 0.

    `kept`: without its workspace, which is the most that any part of it needs.
    """

    bytes: int
    kept: int


def bytes_taken(plan: Plan, device: int) -> tuple[Taken, ...]:
    """What every op of a device's list declares.

    What a FETCH brings back comes beside the ops, whenever its copy starts: it is nobody's. Raises as `simulate`.
    """
    costs = costs_of(plan)
    timeline = simulate_orders(plan, costs, plan.orders)
    events, _ = memory_events(plan, costs, timeline.jobs, timeline.step_s)
    first = sum(len(order) for order in plan.orders[:device])
    starts = events.line.at(np.arange(first, first + len(plan.orders[device])))
    sums = []
    for left_out in ((), (WORKSPACE,)):
        parts = [part for part in events.listed if part[2] not in left_out]
        instant = np.concatenate([NOWHERE, *(part[0] for part in parts)])
        delta = np.concatenate([NOWHERE, *(part[1] for part in parts)])
        change = np.bincount(instant, weights=delta, minlength=events.line.count).astype(np.int64)
        sums.append(change[starts].clip(min=0).tolist())
    return tuple(map(Taken, *sums))


def copied_to_host(plan: Plan, device: int) -> dict[int, int]:
    """Bytes that every OFFLOAD and FETCH of a device's list copies, by its place there."""
    costs, ops = costs_of(plan), Ops.of(plan.orders, len(plan.stages))
    copies = ops.where(Kind.OFFLOAD, Kind.FETCH)
    mine = copies[ops.device[copies] == device]
    first = sum(len(order) for order in plan.orders[:device])
    return dict(zip((mine - first).tolist(), copied_bytes(plan, costs, ops, mine).tolist(), strict=True))


def most_host_bytes(plan: Plan, device: int) -> int:
    """The most that a device's list can have at the host at once, however late its copies end.

    An offloaded stash is there at the latest until its backward starts; one that another device fetches is there twice,
    on this device's side until the end of the run.
    """
    copied = copied_to_host(plan, device)
    held = most = 0
    there: dict[tuple[int, int], int] = {}
    for place, op in enumerate(plan.orders[device]):
        key = (op.stage, op.micro_batch)
        if op.kind is Kind.FETCH and key in there:
            continue
        if place in copied:
            there[key] = copied[place]
            held += copied[place]
            most = max(most, held)
        elif op.kind in (Kind.B, Kind.I):
            held -= there.pop(key, 0)
    return most
