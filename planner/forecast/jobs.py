"""From a plan's op lists to jobs: compute ops, messages, copies and reductions with durations, precedences, resources.

Device order, data dependencies and the message order of every device pair all become precedences, so a plan
that deadlocks is one whose jobs cannot all be served.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..basics import PerObject, PlanError
from ..graph import (
    NOWHERE,
    Flags,
    Floats,
    Homes,
    Ints,
    Messages,
    Ops,
    StageCosts,
    Structured,
    copied_bytes,
    holders,
    predict_seconds,
    reduce_seconds,
    ring,
    run_jobs,
    step_seconds,
)
from ..plan import COLLECTIVES, RECEIVES, Kind, Op
from ..problem import Cluster


class Precedences(NamedTuple):
    """`after` starts no earlier than `lag` seconds after `before` has ended; one entry a precedence."""

    before: Ints
    after: Ints
    lag: Floats


class Occupied(NamedTuple):
    """Shared resources: job j uses resource[first[j]:first[j + 1]], in order of service."""

    first: Ints
    resource: Ints


@dataclass(frozen=True)
class Jobs:
    """The served jobs: job numbers 0..ops-1 are the ops' own, then come reductions.

    A message is the job of its SEND; RECV, REDUCE and TIE ops are no jobs (their rank is -1). `reduce_job`: the job of
    every reduction by `Op.collective`.
    """

    ops: Ops
    messages: Messages
    duration: Floats
    start: Floats
    rank: Ints  # order of service: every job comes after all that it waits for
    message_latency_s: Floats
    reduce_job: dict[tuple[Kind, int, int], int]
    complete: bool
    precedences: Precedences
    occupied: Occupied

    @property
    def message_job(self) -> Ints:
        """Job of every message."""
        return self.messages.send

    @property
    def end(self) -> Floats:
        """End of every job: for messages and copies, when the link is free again."""
        return self.start + self.duration


@dataclass(frozen=True)
class _Machine:
    """A cluster as columns, one entry a device; `node_*` are those of the link inside the device's node."""

    speed: Floats
    node: Ints
    node_bandwidth: Floats
    node_latency_s: Floats
    host_link: Ints
    host_link_used_by: Ints  # devices on the same host link
    host_bandwidth: Floats
    host_latency_s: Floats
    steps_take_time: bool

    @classmethod
    def of(cls, cluster: Cluster) -> _Machine:
        return _known_machines.get(cluster, None, lambda: cls._of(cluster))

    @classmethod
    def _of(cls, cluster: Cluster) -> _Machine:
        groups = [cluster.node_groups[device.node] for device in cluster.devices]
        shared = np.array(cluster.host_links, dtype=np.int64)
        return cls(
            np.array([device.kind.speed for device in cluster.devices]),
            np.array([device.node for device in cluster.devices], dtype=np.int64),
            np.array([group.link.bandwidth for group in groups]),
            np.array([group.link.latency_s for group in groups]),
            shared,
            np.bincount(shared)[shared],
            np.array([group.host_link.bandwidth for group in groups]),
            np.array([group.host_link.latency_s for group in groups]),
            any(device.kind.memory_bandwidth is not None for device in cluster.devices),
        )


_known_machines: PerObject[_Machine] = PerObject(1)


class _Edges:
    """Collects precedences before -> after with a lag in seconds."""

    def __init__(self) -> None:
        self.parts: list[tuple[Ints, Ints, Floats | None]] = []

    def add(self, before: Ints, after: Ints, lag: Floats | None = None) -> None:
        keep = (before >= 0) & (after >= 0)
        self.parts.append((before[keep], after[keep], None if lag is None else lag[keep]))

    def columns(self) -> Precedences:
        before, after, lags = zip(*self.parts, strict=True)
        lag = [np.zeros(len(a)) if b is None else b for a, b in zip(after, lags, strict=True)]
        return Precedences(np.concatenate(before), np.concatenate(after), np.concatenate(lag))


@dataclass(frozen=True)
class _Reduction:
    collective: tuple[Kind, int, int]
    seconds: float
    pairs: list[tuple[int, int]]


def build(plan: Structured, costs: StageCosts, orders: Sequence[Sequence[Op]]) -> Jobs:
    """Jobs of these op lists, served. Raises PlanError when messages do not match."""
    ops = Ops.of(orders, len(plan.stages))
    return build_columns(plan, costs, ops, Messages.of(plan, costs, ops))


def build_columns(plan: Structured, costs: StageCosts, ops: Ops, found: Messages, receivers_order: bool = True) -> Jobs:
    """Jobs of op columns, served; without the receivers' order, a message only follows those sent before it."""
    machine, count = _Machine.of(plan.problem.cluster), len(ops)
    occupation, latency = _message_times(plan, machine, ops, found)
    duration = compute_seconds(plan, costs, ops, machine)
    duration[found.send] = occupation
    edges = _Edges()
    working = ops.working
    edges.add(ops.previous[working], working)
    _message_edges(edges, plan, ops, found, latency, receivers_order)
    if found.arriving is not None:
        _stash_edges(edges, ops, found, latency)
    if len(ops.where(Kind.SEND_P)):
        _parameter_edges(edges, ops, found, latency, receivers_order)
    copies = ops.where(Kind.OFFLOAD, Kind.FETCH)
    if len(copies):
        duration[copies] = copied_bytes(plan, costs, ops, copies) / machine.host_bandwidth[ops.device[copies]]
        _copy_edges(edges, Homes.of(plan, ops.width), ops, machine)
        _leaving_versions(edges, plan, ops)
    free = ops.where(Kind.FREE)
    if len(free):
        _free_edges(edges, ops, free)
    reductions = _reductions(plan, costs, ops, edges)
    duration = np.concatenate([duration, [r.seconds for r in reductions]]) if reductions else duration
    resources = _resources(machine, ops, found, copies, reductions)
    idle = ops.where(*sorted(RECEIVES | COLLECTIVES))
    waits = edges.columns()
    start, rank, served = run_jobs(duration, *waits, *resources, idle)
    reduce_job = {r.collective: count + k for k, r in enumerate(reductions)}
    complete = served == len(duration) - len(idle)
    return Jobs(ops, found, duration, start, rank, latency, reduce_job, complete, waits, Occupied(*resources[:2]))


def compute_seconds(plan: Structured, costs: StageCosts, ops: Ops, machine: _Machine) -> Floats:
    """Seconds of every compute op (0 for the others): stage cost over the device's speed."""
    table = np.zeros((len(Kind), len(costs.forward_s)))
    table[Kind.F] = table[Kind.R] = costs.forward_s
    table[Kind.B] = costs.backward_s
    table[Kind.I] = costs.backward_input_s
    table[Kind.W] = costs.backward_weight_s
    seconds = table[ops.kind, ops.stage] / machine.speed[ops.device]
    if machine.steps_take_time:
        for kind, seconds_of in ((Kind.STEP, step_seconds), (Kind.PREDICT, predict_seconds)):
            places = ops.where(kind)
            homes, same = np.unique(ops.stage[places] * ops.devices + ops.device[places], return_inverse=True)
            found = [seconds_of(plan, costs, *divmod(home, ops.devices)) for home in homes.tolist()]
            seconds[places] = np.array(found, dtype=np.float64)[same]
    return np.asarray(seconds, dtype=np.float64)


def _leaving_versions(edges: _Edges, plan: Structured, ops: Ops) -> None:
    """A STEP waits until the versions of its stage that go to the host have left."""
    offload = ops.where(Kind.OFFLOAD)
    offload = offload[Homes.of(plan, ops.width).versioned(ops, offload)]
    edges.add(offload, ops.next_of_stage(offload, Kind.STEP))


def _message_times(plan: Structured, machine: _Machine, ops: Ops, found: Messages) -> tuple[Floats, Floats]:
    source, target = ops.device[found.send], ops.device[found.receive]
    network = plan.problem.cluster.network
    inside = machine.node[source] == machine.node[target]
    bandwidth = np.where(inside, machine.node_bandwidth[source], network.bandwidth)
    latency = np.where(inside, machine.node_latency_s[source], network.latency_s)
    return found.bytes / bandwidth, latency


def _in_order(edges: _Edges, group: Ints, jobs: Ints) -> None:
    """Jobs of one group follow one another as listed."""
    order = np.argsort(group, kind="stable")
    same = group[order][1:] == group[order][:-1]
    edges.add(jobs[order][:-1][same], jobs[order][1:][same])


def _message_edges(
    edges: _Edges, plan: Structured, ops: Ops, found: Messages, latency: Floats, receivers_order: bool
) -> None:
    send, receive = found.send, found.receive
    edges.add(ops.previous[send], send)
    edges.add(ops.previous[receive], send)
    edges.add(send, users_of(plan, ops, receive, found.arriving), latency)
    # per ordered pair, in the sender's order
    pair = ops.device[send] * ops.devices + ops.device[receive]
    order = np.argsort(pair, kind="stable")
    same = pair[order][1:] == pair[order][:-1]
    earlier, later = order[:-1][same], order[1:][same]
    edges.add(send[earlier], send[later])
    # the receiver's order of the same pair; equal to the sender's in a correct plan
    if receivers_order and (receive[earlier] > receive[later]).any():
        by_receiver = np.argsort(receive, kind="stable")
        _in_order(edges, pair[by_receiver], send[by_receiver])


def users_of(plan: Structured, ops: Ops, receive: Ints, arriving: Flags | None) -> Ints:
    """The compute op that needs what each of these ops receives; -1: parameters, and stashes that go on."""
    kind, stage, micro_batch = ops.kind[receive], ops.stage[receive], ops.micro_batch[receive]
    forward = kind == Kind.RECV_F.value
    users = np.where(forward, ops.table(Kind.F)[stage, micro_batch], ops.table(Kind.B, Kind.I)[stage, micro_batch])
    if arriving is not None:
        stash = kind == Kind.RECV_S.value
        users[stash & ~arriving] = -1
        brought = stash & arriving
        users[brought] = Homes.of(plan, ops.width).takers(ops, receive[brought])
    users[kind == Kind.RECV_P.value] = -1
    return np.asarray(users, dtype=np.int64)


def _stash_edges(edges: _Edges, ops: Ops, found: Messages, latency: Floats) -> None:
    """A stash leaves after its forward, and a shipped one starts its way back once it has arrived."""
    send = found.send
    sent = np.flatnonzero(ops.kind[send] == Kind.SEND_S.value)
    back = ops.abroad(send[sent])
    out = sent[~back]
    edges.add(ops.at(ops.table(Kind.F), send[out]), send[out])
    edges.add(send[out], _same_stash(ops, send[sent[back]], send[out]), latency[out])


def _parameter_edges(edges: _Edges, ops: Ops, found: Messages, latency: Floats, placed: bool) -> None:
    """New parameters leave after their update's optimizer step on the same device.

    The next forward of their stage waits for them; unless RECV_Ps are not `placed` yet, at the head of their list.
    """
    steps, sent = ops.where(Kind.STEP), ops.where(Kind.SEND_P)
    key = (ops.device * ops.stages + ops.stage) * (ops.width + 1) + ops.micro_batch + 1
    by_key = steps[np.argsort(key[steps])]
    if len(by_key):
        at = np.minimum(np.searchsorted(key[by_key], key[sent]), len(by_key) - 1)
        edges.add(np.where(key[by_key[at]] == key[sent], by_key[at], -1), sent)
    returned = np.flatnonzero(ops.kind[found.send] == Kind.SEND_P.value)
    receive = found.receive[returned]
    user = ops.next_of_stage(receive, Kind.F)
    user[(ops.previous[receive] < 0) & (not placed)] = -1
    edges.add(found.send[returned], user, latency[returned])


def _same_stash(ops: Ops, among: Ints, ops_of: Ints) -> Ints:
    """Which of the ops `among` is about the same stash as each of `ops_of`; -1: none."""
    table = np.full((ops.stages, ops.width), -1, dtype=np.int64)
    table[ops.stage[among], ops.micro_batch[among]] = among
    return ops.at(table, ops_of)


def _copy_edges(edges: _Edges, homes: Homes, ops: Ops, machine: _Machine) -> None:
    """Copies follow what is before them in line, their own stash's earlier ops, and one another in each direction."""
    offload, fetch = ops.where(Kind.OFFLOAD), ops.where(Kind.FETCH)
    for copies in (offload, fetch):
        edges.add(ops.previous[copies], copies)
        _in_order(edges, ops.device[copies], copies)
    edges.add(ops.at(ops.table(Kind.F), offload), offload)
    latency = machine.host_latency_s[ops.device[fetch]]
    edges.add(ops.at(ops.table(Kind.OFFLOAD), fetch), fetch, latency)
    edges.add(fetch, homes.takers(ops, fetch), latency)
    # on another device nothing else makes a backward wait for its forward, while there is no FETCH yet
    user = homes.takers(ops, offload)
    apart = (user >= 0) & (ops.device[user] != ops.device[offload])
    if apart.any():
        edges.add(offload[apart], user[apart], machine.host_latency_s[ops.device[offload[apart]]])
    # a fetch uses the memory of every stash that leaves before it in the list; fetches follow one another
    leaving = ops.where(Kind.OFFLOAD, Kind.SEND_S)
    after = np.searchsorted(fetch, leaving)
    some = after < len(fetch)
    leaving, following = leaving[some], fetch[after[some]]
    same = ops.device[leaving] == ops.device[following]
    edges.add(leaving[same], following[same])


def _free_edges(edges: _Edges, ops: Ops, free: Ints) -> None:
    """A FREE waits until its stash has left the device."""
    edges.add(ops.at(ops.table(Kind.OFFLOAD), free), free)
    shipped = ops.where(Kind.SEND_S)
    if len(shipped):
        edges.add(_same_stash(ops, shipped[~ops.abroad(shipped)], free), free)


def _reductions(plan: Structured, costs: StageCosts, ops: Ops, edges: _Edges) -> list[_Reduction]:
    """Every reduction, with its precedences added; its job number follows those of the ops.

    It starts when all its ops are posted. The optimizer steps of a stage wait for its REDUCE, and for the TIE of
    every group that it is a member of.
    """
    reduce, tie = ops.where(Kind.REDUCE), ops.where(Kind.TIE)
    if not len(reduce) and not len(tie):
        return []
    if len(tie) and not set(ops.peer[tie].tolist()) <= {group.number for group in costs.ties}:
        raise PlanError("a TIE names a group of parameters that no two stages share")
    owners, steps = holders(plan), ops.where(Kind.STEP)
    found: list[_Reduction] = []

    def add(
        collective: tuple[Kind, int, int], mine: Ints, devices: tuple[int, ...], members: Sequence[int], count: int
    ) -> None:
        seconds, latency = reduce_seconds(plan.problem.cluster, devices, count)
        job = len(ops) + len(found)
        edges.add(ops.previous[mine], np.full(len(mine), job))
        after = steps[np.isin(ops.stage[steps], members) & (ops.micro_batch[steps] == collective[2])]
        edges.add(np.full(len(after), job), after, np.full(len(after), latency))
        found.append(_Reduction(collective, seconds, ring(devices) if count else []))

    size = plan.problem.workload.gradient_bytes
    for stage, m, mine in _grouped(ops, reduce, ops.stage):
        add((Kind.REDUCE, stage, m), mine, owners[stage], [stage], size(int(costs.own_trained_bytes[stage])))
    groups = {group.number: group for group in costs.ties}
    for number, m, mine in _grouped(ops, tie, ops.peer):
        group = groups[number]
        devices = tuple(group.copies(owners))
        add((Kind.TIE, number, m), mine, devices, group.stages, size(group.trained_bytes))
    return found


def _grouped(ops: Ops, places: Ints, number: Ints) -> Iterator[tuple[int, int, Ints]]:
    """The ops of one number (a stage, or a group of ties) and micro-batch together, ascending."""
    order = np.lexsort((ops.micro_batch[places], number[places]))
    mine = places[order]
    key = number[mine] * (ops.width + 1) + ops.micro_batch[mine]
    for part in np.split(mine, np.flatnonzero(np.diff(key)) + 1) if len(mine) else ():
        yield int(number[part[0]]), int(ops.micro_batch[part[0]]), part


def _resources(
    machine: _Machine, ops: Ops, found: Messages, copies: Ints, reductions: list[_Reduction]
) -> tuple[Ints, Ints, int]:
    """Resources of every job as offsets into one list, and how many resources there are.

    A link inside a node, two NICs between nodes, a direction of a host link. What only jobs that follow one another
    use (a link without reductions, a host link of one device) needs no resource.
    """
    devices = ops.devices
    links, nics = devices * devices, 2 * devices

    def of_pairs(source: Ints, target: Ints) -> tuple[Ints, Ints]:
        inside = machine.node[source] == machine.node[target]
        return (
            np.where(inside, source * devices + target, links + source),
            np.where(inside, -1, links + devices + target),
        )

    reduced: list[Ints] = []
    for reduction in reductions:
        ends = np.array(reduction.pairs, dtype=np.int64).reshape(-1, 2)
        both = np.concatenate(of_pairs(ends[:, 0], ends[:, 1]))
        reduced.append(np.unique(both[both >= 0]))
    contested = np.unique(np.concatenate([NOWHERE, *reduced]))
    first, second = of_pairs(ops.device[found.send], ops.device[found.receive])
    first[~_contested(first, links, contested)] = -1
    host = machine.host_link[ops.device[copies]]
    outward = ops.kind[copies] == Kind.OFFLOAD.value
    lane = np.where(machine.host_link_used_by[ops.device[copies]] > 1, links + nics + 2 * host + outward, -1)
    job = np.concatenate(
        [found.send, found.send, copies, np.repeat(np.arange(len(reduced)), list(map(len, reduced))) + len(ops)]
    )
    taken = np.concatenate([first, second, lane, *reduced])
    used = taken >= 0
    job, taken = job[used].astype(np.int64), taken[used]
    offsets = np.zeros(len(ops) + len(reduced) + 1, dtype=np.int64)
    if len(job):
        taken = taken[np.argsort(job, kind="stable")]
        np.cumsum(np.bincount(job, minlength=len(offsets) - 1), out=offsets[1:])
    return offsets, taken, links + nics + 2 * (int(machine.host_link[-1]) + 1)


def _contested(first: Ints, links: int, contested: Ints) -> Flags:
    """Which of these resources several kinds of jobs compete for."""
    if not len(contested):
        return np.asarray(first >= links, dtype=np.bool_)
    return np.asarray((first >= links) | np.isin(first, contested), dtype=np.bool_)
