"""From a plan's op lists to jobs: compute ops, messages, copies and reductions with durations, precedences, resources.

Device order, data dependencies and the message order of every device pair all become precedences, so a plan
that deadlocks is one whose jobs cannot all be served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..basics import PlanError
from ..graph import (
    MOVES_BESIDE,
    NOWHERE,
    Flags,
    Floats,
    Homes,
    Ints,
    Machine,
    Messages,
    Needs,
    Ops,
    Precedences,
    Sharing,
    StageCosts,
    Structured,
    Why,
    beside_layers_s,
    copied_bytes,
    gather_seconds,
    holders,
    needs_of,
    predict_seconds,
    reduce_seconds,
    ring,
    run_jobs,
    run_sharing,
    stash_policies,
    step_seconds,
    sum_seconds,
)
from ..plan import COLLECTIVES, COMPUTE, RECEIVES, Kind, Op


class Occupied(NamedTuple):
    """Shared resources: job j uses resource[first[j]:first[j + 1]], in order of service."""

    first: Ints
    resource: Ints


@dataclass(frozen=True)
class Jobs:
    """The served jobs: job numbers 0..ops-1 are the ops' own, then come reductions, of a group also those with others.

    A message is the job of its SEND; RECV, REDUCE, TIE and GATHER ops are no jobs (their rank is -1). `reduce_job`: the
    job of every reduction by `Op.collective`; `reduce_latency_s`: of every reduction, in their order. `alone`: seconds
    where all devices have cores; `duration` is longer where they share them.
    """

    ops: Ops
    messages: Messages
    duration: Floats
    start: Floats
    rank: Ints  # order of service: every job comes after all that it waits for
    message_latency_s: Floats
    reduce_job: dict[tuple[Kind, int, int], int]
    reduce_latency_s: Floats
    complete: bool
    precedences: Precedences
    occupied: Occupied
    speed: Floats  # of every device
    alone: Floats
    sharing: Sharing | None = None

    @property
    def message_job(self) -> Ints:
        """Job of every message."""
        return self.messages.send

    @property
    def end(self) -> Floats:
        """End of every job: for messages and copies, when the link is free again."""
        return self.start + self.duration

    @property
    def step_s(self) -> float:
        """The end of the last job, messages and reductions with their latencies."""
        end = self.end
        step_s = float(end.max(initial=0.0))
        if len(self.message_job):
            step_s = max(step_s, float((end[self.message_job] + self.message_latency_s).max()))
        if len(self.reduce_latency_s):
            step_s = max(step_s, float((end[len(self.ops) :] + self.reduce_latency_s).max()))
        return step_s


@dataclass(frozen=True)
class _Reduction:
    collective: tuple[Kind, int, int]
    seconds: float
    latency_s: float
    pairs: list[tuple[int, int]]
    lane: int = -1  # of a sum with other groups of devices: the device whose link to them it occupies
    on_nic: bool = False  # that link is its NIC
    cores: float = 0.0  # of a node's, that it keeps busy for all of its seconds; its latency is part of these


def build(plan: Structured, costs: StageCosts, orders: Sequence[Sequence[Op]]) -> Jobs:
    """Jobs of these op lists, served. Raises PlanError when messages do not match."""
    ops = Ops.of(orders, len(plan.stages))
    return build_columns(plan, costs, ops, Messages.of(plan, costs, ops))


def build_columns(
    plan: Structured,
    costs: StageCosts,
    ops: Ops,
    found: Messages,
    receivers_order: bool = True,
    machine: Machine | None = None,
) -> Jobs:
    """Jobs of op columns, served; without the receivers' order, a message only follows those sent before it.

    `machine`: the plan's cluster, unless it is another of as many devices.
    """
    machine, count = machine or Machine.of(plan.problem.cluster), len(ops)
    occupation, latency = _message_times(plan, machine, ops, found)
    duration = compute_seconds(plan, costs, ops, machine)
    duration[found.send] = occupation
    needs = needs_of(plan, ops, found, machine, latency, receivers_order)
    copies = ops.where(Kind.OFFLOAD, Kind.FETCH)
    if len(copies):
        duration[copies] = copied_bytes(plan, costs, ops, copies) / machine.host_bandwidth[ops.device[copies]]
    reductions = _reductions(plan, costs, ops, needs, machine)
    reductions += _with_other_groups(plan, costs, ops, needs, count + len(reductions))
    duration = np.concatenate([duration, [r.seconds for r in reductions]]) if reductions else duration
    resources = _resources(machine, ops, found, copies, reductions)
    idle = ops.where(*sorted(RECEIVES | COLLECTIVES))
    waits = needs.precedences()
    alone, edges = duration, (waits.before, waits.after, waits.lag)
    sharing = _sharing(machine, ops, found, copies, reductions)
    if sharing is None:
        start, rank, served = run_jobs(duration, *edges, *resources, idle)
    else:
        start, duration, rank, served = run_sharing(alone, edges, resources, idle, sharing)
    reduce_job = {r.collective: count + k for k, r in enumerate(reductions)}
    complete = served == len(duration) - len(idle)
    lags = np.array([r.latency_s for r in reductions], dtype=np.float64)
    used = Occupied(*resources[:2])
    served_s = duration, start, rank, latency
    return Jobs(ops, found, *served_s, reduce_job, lags, complete, waits, used, machine.speed, alone, sharing)


def _sharing(machine: Machine, ops: Ops, found: Messages, copies: Ints, reductions: list[_Reduction]) -> Sharing | None:
    """Which jobs share cores of nodes, and how many each asks for; None where there are enough for all.

    What devices compute, messages and reductions inside a node, and copies.
    """
    shares = machine.sharing()
    if shares is None:
        return None
    of_device, cores = shares
    count = len(ops) + len(reductions)
    node, asks = np.full(count, -1, dtype=np.int64), np.ones(count)
    computing = ops.where(*sorted(COMPUTE))
    node[computing] = of_device[ops.device[computing]]
    source, target = ops.device[found.send], ops.device[found.receive]
    busy = machine.link_cores[source]
    carried = (machine.node[source] == machine.node[target]) & (busy > 0)
    node[found.send[carried]], asks[found.send[carried]] = of_device[source[carried]], busy[carried]
    copying = copies[machine.host_cores[ops.device[copies]] > 0]
    node[copying], asks[copying] = of_device[ops.device[copying]], machine.host_cores[ops.device[copying]]
    for job, reduction in enumerate(reductions, len(ops)):
        if reduction.cores:
            node[job], asks[job] = of_device[reduction.pairs[0][0]], reduction.cores
    return Sharing(node, asks, cores)


def compute_seconds(plan: Structured, costs: StageCosts, ops: Ops, machine: Machine) -> Floats:
    """Seconds of every compute op (0 for the others): stage cost over the device's speed."""
    table = np.zeros((len(Kind), len(costs.forward_s)))
    table[Kind.F] = table[Kind.R] = costs.forward_s
    table[Kind.B] = costs.backward_s
    table[Kind.I] = costs.backward_input_s
    table[Kind.W] = costs.backward_weight_s
    seconds = table[ops.kind, ops.stage]
    if any(row.partial for row in stash_policies(plan)):
        again = ops.where(Kind.R)
        again = again[Homes.of(plan, ops.width).partly(ops, again)]
        seconds[again] = costs.selective_s[ops.stage[again]]
    seconds = (seconds + moving_seconds(costs, ops)) / machine.speed[ops.device]
    if machine.steps_take_time:
        owners = holders(plan) if plan.problem.workload.sharded else None

        def stepping(stage: int, device: int) -> float:
            return step_seconds(plan, costs, stage, device, owners)

        def predicting(stage: int, device: int) -> float:
            return predict_seconds(plan, costs, stage, device)

        for kind, seconds_of in ((Kind.STEP, stepping), (Kind.PREDICT, predicting)):
            places = ops.where(kind)
            homes, same = np.unique(ops.stage[places] * ops.devices + ops.device[places], return_inverse=True)
            found = [seconds_of(*divmod(home, ops.devices)) for home in homes.tolist()]
            seconds[places] = np.array(found, dtype=np.float64)[same]
    return np.asarray(seconds, dtype=np.float64)


def overhead_seconds(costs: StageCosts, ops: Ops, speed: Floats) -> Floats:
    """Of `compute_seconds`, what every op costs beside its layers."""
    pace = np.where(ops.kind == Kind.STEP.value, 1.0, speed[ops.device])
    return np.asarray((beside_layers_s(costs, ops.kind, ops.stage) + moving_seconds(costs, ops)) / pace)


def moving_seconds(costs: StageCosts, ops: Ops) -> Floats:
    """What F, B and I cost at speed 1 where their device posts that the stash leaves it, or comes back to it."""
    found = np.zeros(len(ops))
    for kind, moving in MOVES_BESIDE.items() if costs.overhead.message_s else ():
        moves = ops.where(*moving)
        if len(moves):
            beside = ops.at(ops.table(kind), moves)
            mine = beside[(beside >= 0) & (ops.device[beside] == ops.device[moves])]
            np.add.at(found, mine, costs.overhead.message_s)
    return found


def _message_times(plan: Structured, machine: Machine, ops: Ops, found: Messages) -> tuple[Floats, Floats]:
    source, target = ops.device[found.send], ops.device[found.receive]
    network = plan.problem.cluster.network
    inside = machine.node[source] == machine.node[target]
    bandwidth = np.where(inside, machine.node_bandwidth[source], network.bandwidth)
    latency = np.where(inside, machine.node_latency_s[source], network.latency_s)
    return found.bytes / bandwidth, latency


def _cores(machine: Machine, pairs: list[tuple[int, int]]) -> float:
    """Of a node that shares its cores, how many a reduction over these links keeps busy; 0 where it spans several."""
    nodes = {int(machine.node[end]) for pair in pairs for end in pair}
    if len(nodes) != 1 or not np.isfinite(machine.cores[pairs[0][0]]):
        return 0.0
    return float(machine.link_cores[pairs[0][0]]) * len(pairs)


def _reductions(plan: Structured, costs: StageCosts, ops: Ops, needs: Needs, machine: Machine) -> list[_Reduction]:
    """Every reduction, with its precedences added; its job number follows those of the ops.

    It starts when all its ops are posted. The optimizer steps of a stage wait for its REDUCE, and for the TIE of
    every group that it is a member of; parameters that are sent on wait for the GATHER. Where several are ready at
    once, a REDUCE comes first and a GATHER, for which no step waits, last.
    """
    reduce, tie, gather = ops.where(Kind.REDUCE), ops.where(Kind.TIE), ops.where(Kind.GATHER)
    if not len(reduce) and not len(tie) and not len(gather):
        return []
    if len(tie) and not set(ops.peer[tie].tolist()) <= {group.number for group in costs.ties}:
        raise PlanError("a TIE names a group of parameters that no two stages share")
    owners, steps, sends = holders(plan), ops.where(Kind.STEP), ops.where(Kind.SEND_P)
    found: list[_Reduction] = []

    def add(
        collective: tuple[Kind, int, int],
        mine: Ints,
        devices: tuple[int, ...],
        members: Sequence[int],
        taken: tuple[float, float],
        moves: int,
    ) -> None:
        job, (seconds, latency) = len(ops) + len(found), taken
        needs.add(Why.LISTED, ops.previous[mine], np.full(len(mine), job))
        why, users = (Why.WEIGHTS, sends) if collective[0] is Kind.GATHER else (Why.GRADIENTS, steps)
        after = users[np.isin(ops.stage[users], members) & (ops.micro_batch[users] == collective[2])]
        pairs = ring(devices) if moves else []
        cores = _cores(machine, pairs)
        if cores:
            seconds, latency = seconds + latency, 0.0
        needs.add(why, np.full(len(after), job), after, np.full(len(after), latency))
        found.append(_Reduction(collective, seconds, latency, pairs, cores=cores))

    def add_of_stages(kind: Kind, places: Ints, seconds_of: Callable[..., tuple[float, float]]) -> None:
        for stage, m, mine in _grouped(ops, places, ops.stage):
            count = int(costs.own_trained_bytes[stage])
            add((kind, stage, m), mine, owners[stage], [stage], seconds_of(plan.problem, owners[stage], count), count)

    add_of_stages(Kind.REDUCE, reduce, sum_seconds)
    size = plan.problem.workload.gradient_bytes
    groups = {group.number: group for group in costs.ties}
    for number, m, mine in _grouped(ops, tie, ops.peer):
        group = groups[number]
        devices = tuple(group.copies(owners))
        taken = reduce_seconds(plan.problem.cluster, devices, size(group.trained_bytes))
        add((Kind.TIE, number, m), mine, devices, group.stages, taken, group.trained_bytes)
    add_of_stages(Kind.GATHER, gather, gather_seconds)
    return found


def _with_other_groups(plan: Structured, costs: StageCosts, ops: Ops, needs: Needs, first: int) -> list[_Reduction]:
    """Of one of several equal groups: sums and gathering of what one device of it trains alone.

    A sum follows its stage's last backward, as its REDUCE does where the plan is laid on all groups. Jobs have numbers
    from `first` on.
    """
    workload, found = plan.problem.workload, list[_Reduction]()
    if workload.groups == 1 or workload.across is None:
        return found
    ended, steps = ops.where(Kind.B, Kind.W), ops.where(Kind.STEP)
    last = np.full((len(plan.stages), ops.devices), -1, dtype=np.int64)
    np.maximum.at(last, (ops.stage[ended], ops.device[ended]), ended)
    stepped = {(int(ops.stage[k]), int(ops.device[k])): int(k) for k in steps}
    for stage, devices in holders(plan).items():
        for device in devices if len(devices) == 1 and costs.own_trained_bytes[stage] else ():
            after, before = last[stage, device], stepped.get((stage, device))
            if after < 0 or before is None:
                continue
            count = int(costs.own_trained_bytes[stage])
            summed, gathered = sum_seconds(plan.problem, devices, count), gather_seconds(plan.problem, devices, count)
            for kind, taken, there, behind in (
                (Kind.REDUCE, summed, int(after), before),
                (Kind.GATHER, gathered, before, -1),
            ):
                if sum(taken) == 0:
                    continue
                job = first + len(found)
                needs.add(Why.LISTED, np.array([there]), np.array([job]))
                if behind >= 0:
                    needs.add(Why.GRADIENTS, np.array([job]), np.array([behind]), np.array([taken[1]]))
                found.append(_Reduction((kind, stage, -1), *taken, [], device, device in workload.across.on_nics))
    return found


def _grouped(ops: Ops, places: Ints, number: Ints) -> Iterator[tuple[int, int, Ints]]:
    """The ops of one number (a stage, or a group of ties) and micro-batch together, ascending."""
    order = np.lexsort((ops.micro_batch[places], number[places]))
    mine = places[order]
    key = number[mine] * (ops.width + 1) + ops.micro_batch[mine]
    for part in np.split(mine, np.flatnonzero(np.diff(key)) + 1) if len(mine) else ():
        yield int(number[part[0]]), int(ops.micro_batch[part[0]]), part


def _resources(
    machine: Machine, ops: Ops, found: Messages, copies: Ints, reductions: list[_Reduction]
) -> tuple[Ints, Ints, int]:
    """Resources of every job as offsets into one list, and how many resources there are.

    A link inside a node, two NICs between nodes, a direction of a host link, a device's link to other groups. What only
    jobs that follow one another use (a link without reductions, a host link of one device) needs no resource.
    """
    devices = ops.devices
    links, nics = devices * devices, 2 * devices

    reduced: list[Ints] = []
    for reduction in reductions:
        ends = np.array(reduction.pairs, dtype=np.int64).reshape(-1, 2)
        both = np.concatenate(machine.occupied(ends[:, 0], ends[:, 1]))
        own = [links + reduction.lane, links + devices + reduction.lane] if reduction.on_nic else []
        reduced.append(np.unique([*both[both >= 0], *own]).astype(np.int64))
    contested = np.unique(np.concatenate([NOWHERE, *reduced]))
    first, second = machine.occupied(ops.device[found.send], ops.device[found.receive])
    first[~_contested(first, links, contested)] = -1
    host = machine.host_link[ops.device[copies]]
    outward = ops.kind[copies] == Kind.OFFLOAD.value
    lane = np.where(machine.host_link_used_by[ops.device[copies]] > 1, links + nics + 2 * host + outward, -1)
    hosts = links + nics + 2 * (int(machine.host_link[-1]) + 1)
    across = np.array([-1 if r.lane < 0 or r.on_nic else hosts + r.lane for r in reductions], dtype=np.int64)
    numbers = np.arange(len(reduced)) + len(ops)
    job = np.concatenate([found.send, found.send, copies, np.repeat(numbers, list(map(len, reduced))), numbers])
    taken = np.concatenate([first, second, lane, *reduced, across])
    used = taken >= 0
    job, taken = job[used].astype(np.int64), taken[used]
    offsets = np.zeros(len(ops) + len(reduced) + 1, dtype=np.int64)
    if len(job):
        taken = taken[np.argsort(job, kind="stable")]
        np.cumsum(np.bincount(job, minlength=len(offsets) - 1), out=offsets[1:])
    return offsets, taken, hosts + devices


def _contested(first: Ints, links: int, contested: Ints) -> Flags:
    """Which of these resources several kinds of jobs compete for."""
    if not len(contested):
        return np.asarray(first >= links, dtype=np.bool_)
    return np.asarray((first >= links) | np.isin(first, contested), dtype=np.bool_)
