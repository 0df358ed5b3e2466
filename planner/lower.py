"""From compute orders to complete op lists: places SEND, RECV, REDUCE and STEP, and forecasts the plan.

A SEND follows its producer at once. A RECV is posted at the last place in its device's list that does not delay
the message: the compute op after it runs while the message travels, and its buffer lives no longer than it must.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from .jobs import build
from .operations import Candidate, StageCosts, Structured, holders, route
from .plan import COMPUTE, Kind, Op, Plan, Provenance
from .simulate import Deadlock, simulate, simulate_orders

Orders = Sequence[Sequence[Op]]


def assemble(candidate: Candidate, compute_orders: Orders, source: str = "") -> Plan:
    """The complete plan of these compute orders (F, B, I, W, R per device) with its forecast.

    Raises Deadlock when the orders wait for each other in a circle.
    """
    orders = complete(candidate, candidate.costs, compute_orders)
    forecast = simulate_orders(candidate, candidate.costs, orders).forecast()
    provenance = Provenance(source=source)
    return Plan(
        candidate.problem,
        candidate.stages,
        candidate.pipelines,
        orders,
        candidate.stash,
        "flush",
        forecast,
        provenance,
    )


def complete(candidate: Candidate, costs: StageCosts, compute_orders: Orders) -> tuple[tuple[Op, ...], ...]:
    """Op lists with every SEND, RECV, REDUCE and STEP in place."""
    devices = len(candidate.problem.cluster)
    padded = [list(compute_orders[d]) if d < len(compute_orders) else [] for d in range(devices)]
    sending = _with_sends(candidate, costs, padded)
    early = _receives_first(candidate, sending)
    jobs = build(candidate, costs, early)
    if not jobs.complete:
        raise Deadlock("the compute orders wait for each other in a circle")
    flat = [op for order in early for op in order]
    start = jobs.start[jobs.message_job]
    incoming: dict[int, list[tuple[float, int, Op, int]]] = defaultdict(list)
    for k, (send, receive) in enumerate(zip(jobs.messages.send.tolist(), jobs.messages.receive.tolist(), strict=True)):
        source, target = int(jobs.ops.device[send]), int(jobs.ops.device[receive])
        incoming[target].append((float(start[k]), k, flat[receive], source))
    offsets = np.cumsum([0, *map(len, early)])
    tails = _tails(candidate, padded)
    return tuple(
        (*_post_receives(sending[d], _ends(jobs.end, early[d], int(offsets[d])), incoming[d]), *tails[d])
        for d in range(devices)
    )


def _with_sends(candidate: Structured, costs: StageCosts, orders: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """Op lists with SENDs after their producers and REDUCE after each stage's last backward."""
    path = route(candidate)
    producers, consumers = costs.producers, costs.consumers
    replicated = {stage for stage, devices in holders(candidate).items() if len(devices) > 1}
    sending: list[list[Op]] = []
    for d, order in enumerate(orders):
        listed: list[Op] = []
        last = {op.stage: k for k, op in enumerate(order) if op.kind in (Kind.B, Kind.W)}
        for k, op in enumerate(order):
            listed.append(op)
            kind, stage, m, _ = op
            if kind == Kind.F:
                devices = candidate.pipelines[path[m]].forward
                for peer in consumers[stage]:
                    if devices[peer] != d:
                        listed.append(Op(Kind.SEND_F, stage, m, peer))
            elif kind in (Kind.B, Kind.I):
                devices = candidate.pipelines[path[m]].backward
                for peer in producers[stage]:
                    if devices[peer] != d:
                        listed.append(Op(Kind.SEND_B, stage, m, peer))
            if stage in replicated and last.get(stage) == k:
                listed.append(Op(Kind.REDUCE, stage))
        sending.append(listed)
    return sending


def _receives_first(candidate: Structured, sending: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """The lists with all RECVs at the front, those of each device pair in the order in which the sender sends."""
    path = route(candidate)
    heads: list[list[Op]] = [[] for _ in sending]
    for order in sending:
        for op in order:
            if op.kind == Kind.SEND_F:
                target = candidate.pipelines[path[op.micro_batch]].forward[op.peer]
                heads[target].append(Op(Kind.RECV_F, op.peer, op.micro_batch, op.stage))
            elif op.kind == Kind.SEND_B:
                target = candidate.pipelines[path[op.micro_batch]].backward[op.peer]
                heads[target].append(Op(Kind.RECV_B, op.peer, op.micro_batch, op.stage))
    return [[*heads[d], *sending[d]] for d in range(len(sending))]


def _ends(end: np.ndarray, order: Sequence[Op], offset: int) -> list[float]:
    return [float(end[offset + k]) for k, op in enumerate(order) if op.kind in COMPUTE]


def _post_receives(
    order: Sequence[Op], ends: Sequence[float], incoming: Iterable[tuple[float, int, Op, int]]
) -> list[Op]:
    """The list with its RECVs placed before the compute op that runs when the message starts."""
    user: dict[tuple[bool, int, int], int] = {}
    compute = [op for op in order if op.kind in COMPUTE]
    for k, op in enumerate(compute):
        user[op.kind in (Kind.B, Kind.I), op.stage, op.micro_batch] = min(
            k, user.get((op.kind in (Kind.B, Kind.I), op.stage, op.micro_batch), k)
        )
    slots: dict[int, list[Op]] = defaultdict(list)
    latest: dict[int, int] = {}
    placed = []
    for start, number, op, source in sorted(incoming, reverse=True):
        needed = user[op.kind == Kind.RECV_B, op.stage, op.micro_batch]
        slot = min(bisect_right(ends, start), needed, latest.get(source, len(compute)))
        latest[source] = slot
        placed.append((slot, start, number, op))
    for slot, _, _, op in sorted(placed):
        slots[slot].append(op)
    result: list[Op] = []
    position = 0
    for op in order:
        if op.kind in COMPUTE:
            result += slots.pop(position, [])
            position += 1
        result.append(op)
    return result


def _tails(candidate: Structured, orders: Orders) -> list[list[Op]]:
    """Optimizer steps at the end of every device's list, in the order in which the stages' backwards end."""
    owners = holders(candidate)
    tails = []
    for d, order in enumerate(orders):
        last = {op.stage: k for k, op in enumerate(order) if op.kind in (Kind.B, Kind.W)}
        mine = [stage for stage, devices in owners.items() if d in devices]
        tails.append([Op(Kind.STEP, stage) for stage in sorted(mine, key=lambda s: last.get(s, -1))])
    return tails


def send_deadlines(plan: Plan) -> list[list[tuple[int, ...]]]:
    """Per device, per op of its list: places of the device's SENDs that have left before that op starts.

    Each SEND is listed once, at the first compute op that the forecast starts after it has completed. An
    executor that waits for them there holds no more memory than forecast, and cannot deadlock: these waits
    agree with the order in which the simulation served the jobs.
    """
    jobs = simulate(plan).jobs
    lists: list[list[tuple[int, ...]]] = []
    end, offset = jobs.end, 0
    done = {int(s): k for k, s in enumerate(jobs.messages.send)}
    for order in plan.orders:
        compute = [k for k, op in enumerate(order) if op.kind in COMPUTE]
        starts = np.array([jobs.start[offset + k] for k in compute])
        waits: dict[int, list[int]] = defaultdict(list)
        for k in range(len(order)):
            message = done.get(offset + k)
            if message is None:
                continue
            job = int(jobs.message_job[message])
            at = int(np.searchsorted(starts, end[job], side="left"))
            while at < len(compute) and jobs.rank[offset + compute[at]] < jobs.rank[job]:
                at += 1
            if at < len(compute):
                waits[compute[at]].append(k)
        lists.append([tuple(waits.get(k, ())) for k in range(len(order))])
        offset += len(order)
    return lists
