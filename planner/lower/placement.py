"""Where SENDs, RECVs, copies and shipped stashes go in the op lists when compute orders do not say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..forecast import Jobs
from ..graph import Flags, Floats, Ints, Ops, Traffic, activations, crossing, gradients, shipped, users_of
from ..plan import Kind
from .lowering import COPY, LEAVE, RETURN, SEND, Lowering
from .sums_and_updates import add_sums_and_updates

_CLOSE = 1e-12  # times closer than this share of the step are equal


def add_departures(lowering: Lowering) -> None:
    """Adds what follows an op at once: SENDs, OFFLOADs and stashes sent off, REDUCEs, TIEs, and last STEPs."""
    homes, costs, given = lowering.homes, lowering.costs, lowering.given
    _add_sends(lowering, activations(homes, costs), given.table(Kind.F))
    _add_sends(lowering, gradients(homes, costs), given.table(Kind.B, Kind.I))
    forward = given.where(Kind.F)
    leaving = forward[homes.hosted[given.stage[forward], given.micro_batch[forward]]]
    leaving = leaving[given.at(given.table(Kind.OFFLOAD), leaving) < 0]
    if len(leaving):
        _add_like(lowering, Kind.OFFLOAD, leaving, np.full(len(leaving), -1), lowering.slot[leaving], LEAVE)
    if homes.moved.any() or homes.shipped.any():
        _add_shipments(lowering)
    add_sums_and_updates(lowering)


def _add_like(lowering: Lowering, kind: Kind, like: Ints, peer: Ints, slot: Ints, where: int) -> Ints:
    """Adds an op for the stage, micro-batch and device of each of these items."""
    ops = lowering.ops
    return lowering.add(kind, ops.stage[like], ops.micro_batch[like], peer, ops.device[like], slot, where)


def _add_sends(lowering: Lowering, some: Traffic, makers: Ints) -> None:
    """Sends what the given ops make: tensors between stages, by [stage, micro-batch]."""
    maker, peer, target, size = _made(some, makers, some.send_peer, some.target, some.bytes)
    sent = _add_like(lowering, some.kind, maker, peer, maker + lowering.given.device[maker], SEND)
    lowering.add_receives(some.receives, sent, target, size)


def _made(some: Traffic, makers: Ints, *columns: Ints) -> Iterator[Ints]:
    """Of the messages whose makers are among the given ops: these, and the columns' entries."""
    inside = some.micro_batch < makers.shape[1]
    maker = makers[some.stage[inside], some.micro_batch[inside]]
    there = maker >= 0
    yield from (column[there] for column in (maker, *(column[inside] for column in columns)))


def _add_shipments(lowering: Lowering) -> None:
    """Sends stashes off, and joins SEND_S and RECV_S whose places are given with their other ends."""
    given = lowering.given
    away, home = shipped(lowering.homes, lowering.costs)
    sends, receives = given.where(Kind.SEND_S), given.where(Kind.RECV_S)
    here, there = ~given.abroad(sends), ~given.abroad(receives)
    for some in (away, crossing(lowering.homes, lowering.costs)):
        forward, target, size = _made(some, given.table(Kind.F), some.target, some.bytes)
        out = _find(given, sends[here], forward)
        new = np.flatnonzero(out < 0)
        out[new] = _add_like(lowering, some.kind, forward[new], target[new], lowering.slot[forward[new]], LEAVE)
        _join(lowering, out, _find(given, receives[~there], forward), target, size, some.arriving)
    forward, target, size = _made(home, given.table(Kind.F), home.target, home.bytes)
    back, arrival = _find(given, sends[~here], forward), _find(given, receives[there], forward)
    given_back = back >= 0
    _join(lowering, back[given_back], arrival[given_back], target[given_back], size[given_back], home.arriving)


def _join(lowering: Lowering, send: Ints, receive: Ints, device: Ints, size: Ints, arriving: Flags | bool) -> None:
    have, flags = receive >= 0, np.full(len(send), arriving)
    lowering.link(send[have], receive[have], size[have], flags[have], given=True)
    lowering.add_receives(Kind.RECV_S, send[~have], device[~have], size[~have], flags[~have])


def _find(ops: Ops, among: Ints, like: Ints) -> Ints:
    """Which of the ops `among` has the stage and micro-batch of each of the ops `like`; -1: none."""
    table = np.full((ops.stages, ops.width), -1, dtype=np.int64)
    table[ops.stage[among], ops.micro_batch[among]] = among
    return ops.at(table, like)


class _Forecast:
    """Simulated times of a lowering's items, and of the ops in line."""

    def __init__(self, lowering: Lowering, order: Ints, jobs: Jobs) -> None:
        self.lowering, self.order, self.jobs, self.ops = lowering, order, jobs, jobs.ops
        self.place = np.empty(len(order), dtype=np.int64)
        self.place[order] = np.arange(len(order))
        self.in_line = np.flatnonzero(jobs.ops.in_line)
        self.edges = np.searchsorted(self.ops.device[self.in_line], np.arange(self.ops.devices + 1))
        self.slot = lowering.slot[order[self.in_line]]
        self.slack = float(jobs.end.max(initial=0.0)) * _CLOSE

    @cached_property
    def rank(self) -> Ints:
        """A number for every job that agrees with time and with what waits for what."""
        found = np.empty(len(self.jobs.rank), dtype=np.int64)
        found[np.lexsort((self.jobs.rank, self.jobs.start))] = np.arange(len(found))
        return found

    def start(self, items: Ints) -> Floats:
        return self.jobs.start[self.place[items]]

    def end(self, items: Ints) -> Floats:
        return self.jobs.end[self.place[items]]

    def latency_s(self, sends: Ints) -> Floats:
        """Between the end of these messages and their arrival."""
        found = np.zeros(len(self.ops))
        found[self.jobs.messages.send] = self.jobs.message_latency_s
        return np.asarray(found[self.place[sends]])

    def count(self, device: Ints, column: Floats | Ints, value: Floats | Ints) -> Ints:
        """How many ops in line (numbered over all devices) come before the first with a larger entry in `column`."""
        found = np.empty(len(device), dtype=np.int64)
        order = np.argsort(device, kind="stable")
        groups = np.searchsorted(device[order], np.arange(self.ops.devices + 1))
        for (a, b), (x, y) in zip(pairwise(groups.tolist()), pairwise(self.edges.tolist()), strict=True):
            if a < b:
                found[order[a:b]] = x + np.searchsorted(column[x:y], value[order[a:b]], "right")
        return found

    def slot_of(self, device: Ints, number: Ints) -> Ints:
        """The slot of an op in line, or the device's last when the number is beyond its ops."""
        inside = number < self.edges[device + 1]
        slot = np.append(self.slot, 0)[np.where(inside, number, -1)]
        return np.where(inside, slot, self.lowering.end_slot[device])


def add_arrivals(lowering: Lowering, order: Ints, jobs: Jobs) -> bool:
    """Adds the FETCHes and returning SEND_S that are missing; whether there were any.

    Each stands at the latest place that does not delay its backward in the forecast without them.
    """
    ops = lowering.ops
    offload = ops.where(Kind.OFFLOAD)
    offload = offload[ops.at(ops.table(Kind.FETCH), offload) < 0]
    shipped = ops.where(Kind.SEND_S)
    abroad = ops.abroad(shipped)
    out = shipped[~abroad]
    out = out[lowering.homes.shipped[ops.stage[out], ops.micro_batch[out]]]
    out = out[_find(ops, shipped[abroad], out) < 0]
    if not len(offload) and not len(out):
        return False
    times = _Forecast(lowering, order, jobs)
    if len(offload):
        _add_fetches(lowering, times, offload)
    if len(out):
        _add_returns(lowering, times, out)
    return True


def _latest_starts(lane: Ints, deadline: Floats, seconds: Floats) -> Floats:
    """Start times of transfers that end by their deadlines, one at a time on each lane, as late as possible."""
    begin = np.empty(len(lane))
    horizon: dict[int, float] = {}
    lanes, deadlines, durations = lane.tolist(), deadline.tolist(), seconds.tolist()
    for k in np.argsort(-deadline, kind="stable").tolist():
        limit = min(deadlines[k], horizon.get(lanes[k], deadlines[k]))
        horizon[lanes[k]] = limit - durations[k]
        begin[k] = horizon[lanes[k]]
    return begin


def _by_deadline(lowering: Lowering, items: Ints, times: _Forecast) -> tuple[Ints, Ints]:
    """Items sorted by the start of the backwards that need them, and those backwards."""
    user = lowering.homes.takers(lowering.ops, items)
    order = np.argsort(times.start(user), kind="stable")
    return items[order], user[order]


def _add_fetches(lowering: Lowering, times: _Forecast, offload: Ints) -> None:
    offload, user = _by_deadline(lowering, offload, times)
    ops, cluster = lowering.ops, lowering.candidate.problem.cluster
    device = ops.device[user]
    links = [cluster.node_groups[x.node].host_link for x in cluster.devices]
    latency = np.array([link.latency_s for link in links])[device]
    lane = np.array(cluster.host_links)[device]
    seconds = times.end(offload) - times.start(offload)
    begin = _latest_starts(lane, times.start(user) - latency, seconds)
    number = times.count(device, _fetchable_after(times), begin + times.slack) - 1
    here = device == ops.device[offload]
    earliest = np.where(here, np.searchsorted(times.in_line, times.place[offload]), times.edges[device])
    latest = np.searchsorted(times.in_line, times.place[user])
    slot = times.slot_of(device, np.maximum(np.minimum(number, latest), earliest))
    stage, micro_batch = ops.stage[offload], ops.micro_batch[offload]
    lowering.add(Kind.FETCH, stage, micro_batch, np.full(len(offload), -1), device, slot, COPY)


def _fetchable_after(times: _Forecast) -> Floats:
    """When a FETCH just before each op in line could start: what leaves before it in the list has left."""
    ops, end = times.ops, times.jobs.end[: len(times.ops)]
    counts = ops.in_line | (ops.kind == Kind.OFFLOAD.value) | (ops.kind == Kind.SEND_S.value)
    until = np.where(counts, end, 0.0)
    edges = np.append(ops.first, len(ops)).tolist()
    for a, b in pairwise(edges):
        np.maximum.accumulate(until[a:b], out=until[a:b])
    before = times.in_line - 1
    first = before < ops.first[ops.device[times.in_line]]
    return np.where(first, 0.0, until[before])


def _add_returns(lowering: Lowering, times: _Forecast, out: Ints) -> None:
    out, user = _by_deadline(lowering, out, times)
    ops, jobs = lowering.ops, times.jobs
    home, away = ops.device[out], ops.peer[out]
    delay = times.latency_s(out)
    seconds = times.end(out) - times.start(out)
    begin = _latest_starts(away * ops.devices + home, times.start(user) - delay, seconds)
    begin = np.maximum(begin, times.end(out) + delay)
    ends, ranks = jobs.end[times.in_line], times.rank[times.in_line]
    number = np.minimum(
        times.count(away, ends, begin + times.slack), times.count(away, ranks, times.rank[times.place[user]])
    )
    stage = ops.stage[out]
    slot = times.slot_of(away, number)
    receives = ops.where(Kind.RECV_S)
    arrival = _find(ops, receives[~ops.abroad(receives)], out)
    sent = lowering.add(Kind.SEND_S, stage, ops.micro_batch[out], home, away, slot, RETURN)
    _join(lowering, sent, arrival, home, lowering.homes.moved_bytes(lowering.costs, ops, out), True)


def place_receives(lowering: Lowering, order: Ints, jobs: Jobs) -> None:
    """Puts every RECV before the op that runs when its message starts, or the one that needs it if that is earlier.

    A stash that comes home takes more room than it needs there if it comes early: its message may start late.
    """
    times, links, ops = _Forecast(lowering, order, jobs), lowering.links, lowering.ops
    start, target = times.start(links.send), ops.device[links.receive]
    before, alone = links.send, _returning_alone(lowering)
    if len(alone):
        start[alone] = np.maximum(start[alone], _latest_returns(lowering, times, alone))
        before = before.copy()
        before[alone] = lowering.homes.takers(ops, links.receive[alone])
    number = times.count(target, jobs.end[times.in_line], start)
    if len(ops.where(Kind.SEND_S)) or lowering.homes.separate:
        ranks = times.rank[times.in_line]
        number = np.minimum(number, times.count(target, ranks, times.rank[times.place[before]]))
    if lowering.homes.separate:
        number = number + _behind_forwards(lowering, times, number)
    users = _users(lowering)
    needed = np.where(users >= 0, lowering.slot[users], lowering.end_slot[target])
    slot = np.minimum(times.slot_of(target, number), needed)
    slot[links.given] = lowering.slot[links.receive[links.given]]
    by_start = np.lexsort((times.place[links.send], start))
    pair = ops.device[links.send] * ops.devices + target
    slot = _in_message_order(lowering, pair, slot, times.place[links.send])
    free = by_start[~links.given[by_start]]
    lowering.move_receives(free, slot[free])


def _returning_alone(lowering: Lowering) -> Ints:
    """The messages that bring shipped stashes home, between devices that send each other nothing else that way.

    One that waits for its RECV holds up those behind it.
    """
    ops, links = lowering.ops, lowering.links
    if not lowering.homes.shipped.any():
        return np.zeros(0, dtype=np.int64)
    home = links.arriving & lowering.homes.shipped[ops.stage[links.receive], ops.micro_batch[links.receive]]
    pair = ops.device[links.send] * ops.devices + ops.device[links.receive]
    return np.flatnonzero(home & ~links.given & ~np.isin(pair, pair[~home | links.given]))


def _latest_returns(lowering: Lowering, times: _Forecast, which: Ints) -> Floats:
    """When these messages start at the latest, one after the other, so that no backward waits."""
    ops, send = lowering.ops, lowering.links.send[which]
    deadline = times.start(lowering.homes.takers(ops, send)) - times.latency_s(send)
    lane = ops.device[send] * ops.devices + ops.device[lowering.links.receive[which]]
    return _latest_starts(lane, deadline, times.end(send) - times.start(send)) + times.slack


def _behind_forwards(lowering: Lowering, times: _Forecast, number: Ints) -> Flags:
    """Which messages bring parameters while a forward of their stage runs: that one uses those that it began with."""
    ops, receive = lowering.ops, lowering.links.receive
    inside = number < times.edges[ops.device[receive] + 1]
    running = times.order[times.in_line[np.where(inside, number, 0)]]
    forward = (ops.kind[running] == Kind.F.value) & (ops.stage[running] == ops.stage[receive])
    return np.asarray(inside & forward & (ops.kind[receive] == Kind.RECV_P.value), dtype=np.bool_)


def _users(lowering: Lowering) -> Ints:
    """The op that needs each message: a compute op, or the SEND that takes a stash home again; -1 for parameters."""
    ops, links = lowering.ops, lowering.links
    users = users_of(lowering.candidate, ops, links.receive, links.arriving)
    held = (ops.kind[links.receive] == Kind.RECV_S.value) & ~links.arriving
    if held.any():
        back = links.send[links.arriving]
        users[held] = _find(ops, back, links.receive[held])
    return users


def _in_message_order(lowering: Lowering, pair: Ints, slot: Ints, sent: Ints) -> Ints:
    """Slots of RECVs, moved forward until those of each device pair stand in the order in which they are sent."""
    given = lowering.links.given
    order = np.lexsort((sent, pair))
    _, group = np.unique(pair[order], return_inverse=True)
    far = len(lowering.ops) + lowering.given.devices + 1
    wanted = slot[order] + group * far
    found = np.minimum.accumulate(wanted[::-1])[::-1] - group * far
    if given.any():
        after = np.where(given[order], slot[order] + 1, 0) + group * far
        found = np.maximum(found, np.maximum.accumulate(after) - given[order] - group * far)
    result = np.empty(len(slot), dtype=np.int64)
    result[order] = found
    return result
