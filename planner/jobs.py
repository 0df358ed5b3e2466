"""From a plan's op lists to jobs: compute ops, messages and reductions with durations, precedences, resources.

Device order, data dependencies and the message order of every device pair all become precedences, so a plan
that deadlocks is one whose jobs cannot all be served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from .errors import PlanError
from .kernel import run_jobs
from .operations import StageCosts, Structured, holders, reduce_seconds, ring, step_seconds
from .plan import COMPUTE, Kind, Op

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_IS_COMPUTE = np.array([kind in COMPUTE for kind in Kind])


@dataclass(frozen=True)
class Ops:
    """Every op of every device as columns, device after device in list order."""

    kind: Ints
    stage: Ints
    micro_batch: Ints
    peer: Ints
    device: Ints
    previous: Ints  # the last compute op at or before this op's place, excluding itself; -1: none

    @classmethod
    def of(cls, orders: Sequence[Sequence[Op]]) -> Ops:
        count = sum(map(len, orders))
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(orders)), dtype=np.int64, count=4 * count)
        kind, stage, micro_batch, peer = flat.reshape(count, 4).T.copy()
        device = np.repeat(np.arange(len(orders)), [len(order) for order in orders])
        place = np.arange(count)
        last = np.where(_IS_COMPUTE[kind], place, -1) if count else place
        last = np.maximum.accumulate(last) if count else last
        previous = np.concatenate([[-1], last[:-1]])[:count].astype(np.int64)
        first = np.searchsorted(device, device)
        previous = np.where(previous < first, -1, previous)
        return cls(kind, stage, micro_batch, peer, device, previous)

    def where(self, *kinds: Kind) -> Ints:
        """Positions of ops of these kinds."""
        return np.flatnonzero(np.isin(self.kind, kinds))


@dataclass(frozen=True)
class Messages:
    """Messages as columns: positions of their SEND and RECV ops, and bytes."""

    send: Ints
    receive: Ints
    bytes: Ints

    @classmethod
    def of(cls, ops: Ops, costs: StageCosts) -> Messages:
        stages = len(costs.forward_s)
        width = int(ops.micro_batch.max(initial=0)) + 2

        def key(place: Ints, producer_side: Ints, consumer_side: Ints, forward: bool) -> Ints:
            low, high = producer_side[place], consumer_side[place]
            if ((low < 0) | (low >= stages) | (high < 0) | (high >= stages)).any():
                raise PlanError("a message names a stage that does not exist")
            side = 0 if forward else 1
            return ((low * stages + high) * 2 + side) * width + ops.micro_batch[place]

        send, receive = [], []
        for kinds, forward in (((Kind.SEND_F, Kind.RECV_F), True), ((Kind.SEND_B, Kind.RECV_B), False)):
            a, b = ops.where(kinds[0]), ops.where(kinds[1])
            first, second = (ops.stage, ops.peer) if forward else (ops.peer, ops.stage)
            send_key, receive_key = key(a, first, second, forward), key(b, second, first, forward)
            a, b = a[np.argsort(send_key, kind="stable")], b[np.argsort(receive_key, kind="stable")]
            if not np.array_equal(np.sort(send_key), np.sort(receive_key)):
                raise PlanError("some message has no SEND or no RECV")
            send.append(a)
            receive.append(b)
        s, r = np.concatenate(send), np.concatenate(receive)
        order = np.argsort(s, kind="stable")
        s, r = s[order], r[order]
        size = np.full((stages, stages), -1, dtype=np.int64)
        for producer, consumer, count in costs.edges:
            size[producer, consumer] = size[consumer, producer] = count
        found = size[ops.stage[s], ops.peer[s]]
        if (found < 0).any():
            raise PlanError("a message connects two stages that share no edge")
        return cls(s, r, found)


@dataclass(frozen=True)
class Jobs:
    """The served jobs: job numbers 0..ops-1 are the ops' own (compute only), then messages, then reductions."""

    ops: Ops
    messages: Messages
    duration: Floats
    start: Floats
    rank: Ints
    message_job: Ints
    message_latency_s: Floats
    reduce_job: dict[int, int]
    complete: bool

    @property
    def end(self) -> Floats:
        """End of every job: for messages, when the link is free again."""
        return self.start + self.duration


class _Edges:
    """Collects precedences before -> after with a lag in seconds."""

    def __init__(self) -> None:
        self.parts: list[tuple[Ints, Ints, Floats]] = []

    def add(self, before: Ints, after: Ints, lag: Floats | float = 0.0) -> None:
        keep = (before >= 0) & (after >= 0)
        self.parts.append((before[keep], after[keep], np.broadcast_to(lag, keep.shape)[keep]))

    def columns(self) -> tuple[Ints, Ints, Floats]:
        before, after, lag = zip(*self.parts, strict=True)
        return np.concatenate(before), np.concatenate(after), np.concatenate(lag).astype(np.float64)


def compute_seconds(plan: Structured, costs: StageCosts, ops: Ops) -> Floats:
    """Seconds of every compute op (0 for the others): stage cost over the device's speed."""
    speed = np.array([device.kind.speed for device in plan.problem.cluster.devices])
    table = np.zeros((len(Kind), len(costs.forward_s)))
    table[Kind.F] = table[Kind.R] = costs.forward_s
    table[Kind.B] = costs.backward_s
    table[Kind.I] = costs.backward_input_s
    table[Kind.W] = costs.backward_weight_s
    seconds = table[ops.kind, ops.stage] / speed[ops.device]
    for place in ops.where(Kind.STEP):
        seconds[place] = step_seconds(plan, costs, int(ops.stage[place]), int(ops.device[place]))
    return np.asarray(seconds, dtype=np.float64)


def _consumers(ops: Ops) -> dict[str, Ints]:
    """Dense tables: position of the F, of the B (or I) and of the R of every (stage, micro-batch); -1: none."""
    shape = (int(ops.stage.max(initial=0)) + 1, int(ops.micro_batch.max(initial=0)) + 1)
    tables = {}
    for name, kinds in (("F", (Kind.F,)), ("B", (Kind.B, Kind.I)), ("R", (Kind.R,)), ("W", (Kind.B, Kind.W))):
        table = np.full(shape, -1, dtype=np.int64)
        place = ops.where(*kinds)
        table[ops.stage[place], ops.micro_batch[place]] = place
        tables[name] = table
    return tables


def build(plan: Structured, costs: StageCosts, orders: Sequence[Sequence[Op]]) -> Jobs:
    """Jobs of these op lists, served. Raises PlanError when messages do not match."""
    ops = Ops.of(orders)
    if len(ops.kind) and (ops.stage.max() >= len(plan.stages) or ops.stage.min() < 0):
        raise PlanError("an op names a stage that does not exist")
    found = Messages.of(ops, costs)
    count, m = len(ops.kind), len(found.send)
    message_job = np.arange(count, count + m)
    edges = _Edges()
    compute = np.flatnonzero(_IS_COMPUTE[ops.kind]) if count else np.zeros(0, dtype=np.int64)
    edges.add(ops.previous[compute], compute)
    occupation, latency = _message_times(plan, ops, found)
    _message_edges(edges, ops, found, message_job, latency)
    reduces = _reductions(plan, costs, ops, edges, count + m)
    duration = np.concatenate([compute_seconds(plan, costs, ops), occupation, [d for _, d, _ in reduces]])
    first, resource = _resources(plan, ops, found, count, [pairs for _, _, pairs in reduces])
    devices = len(plan.problem.cluster)
    start, rank, served = run_jobs(duration, *edges.columns(), first, resource, devices * devices + 2 * devices)
    reduce_job = {stage: count + m + k for k, (stage, _, _) in enumerate(reduces)}
    done = served == len(duration)
    return Jobs(ops, found, duration, start, rank, message_job, latency, reduce_job, done)


def _message_times(plan: Structured, ops: Ops, found: Messages) -> tuple[Floats, Floats]:
    devices = len(plan.problem.cluster)
    source, target = ops.device[found.send], ops.device[found.receive]
    pairs, inverse = np.unique(source * devices + target, return_inverse=True)
    links = [plan.problem.cluster.link(int(p) // devices, int(p) % devices) for p in pairs]
    bandwidth = np.array([link.bandwidth for link in links])[inverse] if links else np.zeros(0)
    latency = np.array([link.latency_s for link in links])[inverse] if links else np.zeros(0)
    occupation = np.divide(found.bytes, bandwidth) if links else np.zeros(0)
    return np.asarray(occupation, dtype=np.float64), latency


def _message_edges(edges: _Edges, ops: Ops, found: Messages, job: Ints, latency: Floats) -> None:
    tables = _consumers(ops)
    receive = found.receive
    edges.add(ops.previous[found.send], job)
    edges.add(ops.previous[receive], job)
    forward = ops.kind[receive] == Kind.RECV_F
    stage, micro_batch = ops.stage[receive], ops.micro_batch[receive]
    rows = np.minimum(stage, tables["F"].shape[0] - 1)
    user = np.where(forward, tables["F"][rows, micro_batch], tables["B"][rows, micro_batch])
    edges.add(job, user, latency)
    # per ordered pair, in the sender's order
    width = int(ops.device.max(initial=0)) + 1
    pair = ops.device[found.send] * width + ops.device[receive]
    order = np.argsort(pair, kind="stable")
    same = pair[order][1:] == pair[order][:-1]
    edges.add(job[order][:-1][same], job[order][1:][same])
    # the receiver's order of the same pair; equal to the sender's in a correct plan
    order = np.lexsort((receive, pair))
    same = pair[order][1:] == pair[order][:-1]
    edges.add(job[order][:-1][same], job[order][1:][same])


def _reductions(
    plan: Structured, costs: StageCosts, ops: Ops, edges: _Edges, next_job: int
) -> list[tuple[int, float, list[tuple[int, int]]]]:
    """(stage, seconds on the links, device pairs) of every reduction, with its precedences added."""
    place = ops.where(Kind.REDUCE)
    steps = ops.where(Kind.STEP)
    owners = holders(plan)
    found: list[tuple[int, float, list[tuple[int, int]]]] = []
    for stage in np.unique(ops.stage[place]).tolist():
        devices = owners[stage]
        count = plan.problem.workload.gradient_bytes(int(costs.parameter_bytes[stage]))
        seconds, latency = reduce_seconds(plan, stage, devices, count)
        job = next_job + len(found)
        mine = place[ops.stage[place] == stage]
        edges.add(ops.previous[mine], np.full(len(mine), job))
        after = steps[ops.stage[steps] == stage]
        edges.add(np.full(len(after), job), after, latency)
        found.append((stage, seconds, ring(devices) if count else []))
    return found


def _resources(
    plan: Structured, ops: Ops, found: Messages, count: int, reductions: list[list[tuple[int, int]]]
) -> tuple[Ints, Ints]:
    """Resources of every job as offsets into one list: a link inside a node, two NICs between nodes."""
    devices = len(plan.problem.cluster)
    node = np.array([device.node for device in plan.problem.cluster.devices])

    def of_pairs(source: Ints, target: Ints) -> tuple[Ints, Ints]:
        inside = node[source] == node[target]
        first = np.where(inside, source * devices + target, devices * devices + source)
        second = np.where(inside, -1, devices * devices + devices + target)
        return first, second

    first, second = of_pairs(ops.device[found.send], ops.device[found.receive])
    table = np.stack([first, second], axis=1).reshape(-1)
    used = [1 + int(k) for k in (second >= 0)] if len(second) else []
    listed = [table[table >= 0]]
    for pairs in reductions:
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        a, b = of_pairs(ends[:, 0], ends[:, 1])
        mine = np.unique(np.concatenate([a, b[b >= 0]]))
        listed.append(mine)
        used.append(len(mine))
    offsets = np.zeros(count + len(used) + 1, dtype=np.int64)
    offsets[count + 1 :] = np.cumsum(used, dtype=np.int64) if used else []
    return offsets, np.concatenate(listed).astype(np.int64)
