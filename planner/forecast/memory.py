"""Exact memory of every device and host over the simulated step: who allocates what, when, and what made the peak.

An op allocates at its start and releases at its end; at equal times releases come first (design: instants). What is
posted at one time takes place in list order: a message that leaves makes room for what is listed behind its SEND only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph.columns import NOWHERE, Flags, Floats, Ints
from ..graph.operations import (
    RECOMPUTE,
    StageCosts,
    Structured,
    predict_workspace,
    route,
    stash_kind,
    static_bytes,
    step_workspace,
)
from ..plan import Kind
from ..problem.weight_policy import FLUSH
from .jobs import Jobs
from .statistics_rows import statistics_events
from .version_copies import version_events

CATEGORIES = (
    "parameters", "gradients", "optimizer", "buffers", "stashes", "shipped stashes", "messages", "workspace",
    "weight versions",
)  # fmt: skip
_BUFFER, _STASH, _GUEST, _MESSAGE, WORKSPACE, _VERSION = 3, 4, 5, 6, 7, 8
_START, _END = 0, 1
CLOSE = 1e-9
"""Times closer than this share of the step are equal."""
_FAR = 4 / CLOSE  # ticks between devices: more than a step has


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device after every change: times in seconds, totals, and the peak with its composition."""

    times_s: Floats
    bytes: Ints
    peak_bytes: int
    peak_at_s: float
    peak_parts: tuple[tuple[str, int], ...]


class _Line:
    """The instants of every device in list order: two for each op, and before them two at time 0 for the device itself.

    An in-line op has its start and its end; what is posted stands where the list has it, at the time when the in-line
    op before it has ended. So the list decides where times are equal.
    """

    def __init__(self, jobs: Jobs, step_s: float) -> None:
        ops = jobs.ops
        count = len(ops) + ops.devices
        self.count = 2 * count
        self.op = np.arange(len(ops)) + ops.device + 1
        head = ops.first + np.arange(ops.devices)
        self.device = np.repeat(np.arange(ops.devices), np.diff(np.append(head, count)))
        end = np.append(jobs.end[: len(ops)], 0.0)
        until = end[np.where(ops.in_line, np.arange(len(ops)), ops.previous)] if len(ops) else end[:0]
        time = np.zeros((count, 2))
        time[self.op, _START] = np.where(ops.in_line, jobs.start[: len(ops)], until)
        time[self.op, _END] = until
        self.time: Floats = time.reshape(-1)
        self.unit = step_s * CLOSE
        self.ticks = self.tick(self.time, np.repeat(self.device, 2))

    def tick(self, time: Floats, device: Ints) -> Floats:
        """Times in units too fine to matter, far apart between devices."""
        whole = np.rint(time / self.unit) if self.unit > 0 else np.zeros(len(time))
        return np.asarray(whole + device * _FAR, dtype=np.float64)

    def at(self, op: Ints, instant: int = 0) -> Ints:
        """The number of an op's instant."""
        return np.asarray(2 * self.op[op] + instant, dtype=np.int64)


class Events:
    """Collects changes of memory: at an instant of the line, or whenever a message or a copy starts or ends."""

    def __init__(self, jobs: Jobs, step_s: float) -> None:
        self.jobs, self.end = jobs, jobs.end
        self.line = _Line(jobs, step_s)
        self.listed: list[tuple[Ints, Ints, int]] = []  # instant, bytes, category
        self.needed: list[Ints] = []  # for whatever arrives, the instant that needs it
        self.loose: list[tuple[Ints, Floats, Ints, int]] = []  # op, time, bytes, category

    def _add(self, op: Ints, instant: int, delta: Ints, category: int) -> None:
        if len(op):
            self.listed.append((self.line.at(op, instant), delta, category))

    def start(self, op: Ints, delta: Ints, category: int) -> None:
        self._add(op, _START, delta, category)

    def finish(self, op: Ints, delta: Ints, category: int) -> None:
        self._add(op, _END, delta, category)

    def post(self, op: Ints, delta: Ints, category: int) -> None:
        """At the place of a posted op: when the in-line op before it has ended."""
        self._add(op, _START, delta, category)

    def left(self, op: Ints, delta: Ints, category: int) -> None:
        """When a message or copy has left; before whatever starts or is posted at the same time behind it."""
        self._add_loose(op, self.end[op], delta, category)

    def arrives(self, op: Ints, user: Ints, delta: Ints, category: int) -> None:
        """When a copy starts to arrive; after whatever ends at the same time on the device, but before its user."""
        some = delta > 0
        op = op[some]
        self._add_loose(op, self.jobs.start[op], delta[some], category)
        self.needed.append(self.line.at(user[some]))

    def _add_loose(self, op: Ints, time: Floats, delta: Ints, category: int) -> None:
        if len(op):
            self.loose.append((op, time, delta, category))


def profile_memory(plan: Structured, costs: StageCosts, jobs: Jobs, step_s: float) -> list[DeviceMemory]:
    """Memory over time of every device."""
    return _curves(*memory_events(plan, costs, jobs, step_s))


def memory_events(
    plan: Structured, costs: StageCosts, jobs: Jobs, step_s: float
) -> tuple[Events, list[dict[str, int]]]:
    """All changes of memory on all devices, and what each holds all the time by category."""
    events = Events(jobs, step_s)
    _compute_events(events, plan, costs)
    statistics_events(events, plan, costs, _BUFFER)
    _message_events(events, costs)
    _local_events(events, costs)
    _away_events(events, costs)
    static = static_bytes(plan, costs)
    if plan.weights != FLUSH:
        version_events(events, plan, costs, static, _VERSION)
    return events, static


@dataclass(frozen=True)
class _Loose:
    """Changes between instants, in order: each comes before the instant `before`."""

    before: Ints
    time: Floats
    delta: Ints
    category: Ints

    @classmethod
    def of(cls, events: Events) -> _Loose:
        if not events.loose:
            return cls(NOWHERE, np.zeros(0), NOWHERE, NOWHERE)
        line, parts = events.line, events.loose
        op, time, delta = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:3])
        category = np.repeat([part[3] for part in parts], [len(part[0]) for part in parts])
        first, tick = line.at(op) + (delta < 0), line.tick(time, events.jobs.ops.device[op])
        before = np.maximum(first, np.searchsorted(line.ticks, tick, "left"))
        jobs, device = events.jobs, line.device[line.op[op]]
        sudden = line.tick(jobs.start[op], device) == line.tick(jobs.end[op], device)
        leaving = np.flatnonzero(sudden & (delta < 0))
        if len(leaving):
            before[leaving] = _served_before(events, op[leaving], tick[leaving], before[leaving])
        some = np.flatnonzero(delta > 0)
        if len(some):
            free = _behind_last_end(events, op[some], tick[some])
            before[some] = np.maximum(first[some], np.minimum(free, np.concatenate(events.needed)))
            turn = np.where(sudden, jobs.rank[op], np.where(delta > 0, len(jobs.rank), -1))
            order = np.lexsort((turn, tick, before))
        else:
            order = np.argsort(before, kind="stable")
        return cls(before[order], time[order], delta[order], category[order])


def jobs_of_ops(jobs: Jobs) -> Ints:
    """The job of every op: a RECV's is its message, a REDUCE's or TIE's its reduction."""
    found = np.arange(len(jobs.ops))
    found[jobs.messages.receive] = jobs.messages.send
    for kind, number in ((Kind.REDUCE, jobs.ops.stage), (Kind.TIE, jobs.ops.peer)):
        reduce = jobs.ops.where(kind)
        which = zip(number[reduce].tolist(), jobs.ops.micro_batch[reduce].tolist(), strict=True)
        found[reduce] = [jobs.reduce_job[kind, k, m] for k, m in which]
    return found


def _behind_last_end(events: Events, op: Ints, tick: Floats) -> Ints:
    """The first instants at these ticks, when copies start, behind all in-line ops that have ended by then.

    What is posted behind such an op makes no room for a copy, even if it leaves at the same time. An op of no length at
    that time has ended if it was served before the copy.
    """
    jobs, ops, line = events.jobs, events.jobs.ops, events.line
    ends = line.at(ops.working, _END)
    sudden = line.ticks[ends] == line.ticks[ends - 1]
    found = np.searchsorted(line.ticks[ends], tick, "right") - 1
    while (
        late := (found >= 0)
        & (line.ticks[ends[found]] == tick)
        & sudden[found]
        & (jobs.rank[ops.working[found]] > jobs.rank[op])
    ).any():
        found = found - late
    return np.maximum(np.searchsorted(line.ticks, tick, "left"), np.where(found >= 0, ends[found] + 1, 0))


def _served_before(events: Events, op: Ints, tick: Floats, before: Ints) -> Ints:
    """The first instants, from these on, that hold up nothing which these ops, of no length, wait for.

    Two devices may send one another something at one time where each posts its RECV behind its SEND: only one of
    them can wait for its message to leave. It is the one whose message was served first.
    """
    jobs, ops, line = events.jobs, events.jobs.ops, events.line
    most = len(jobs.rank)
    job = jobs_of_ops(jobs)
    place = line.at(np.arange(len(ops)))
    at_once = line.tick(jobs.end[job], ops.device) == line.ticks[place]
    # an op's place holds up all that is posted there behind it, and the next op in line
    group = (np.cumsum(ops.in_line) - ops.in_line + ops.device) * (most + 1)
    urgent = np.minimum.accumulate((np.where(at_once, jobs.rank[job], most) + group)[::-1])[::-1] - group
    needed = np.full(line.count + 1, -1, dtype=np.int64)
    needed[place] = urgent
    needed[place + 1] = np.where(at_once, urgent, -1)
    ticks = np.append(line.ticks, np.inf)
    while (stuck := (ticks[before] == tick) & (needed[before] < jobs.rank[op])).any():
        before = before + stuck
    return before


def _curves(events: Events, static: list[dict[str, int]]) -> list[DeviceMemory]:
    line, loose = events.line, _Loose.of(events)
    instant = np.concatenate([NOWHERE, *(part[0] for part in events.listed)])
    delta = np.concatenate([NOWHERE, *(part[1] for part in events.listed)])
    change = np.bincount(instant, weights=delta, minlength=line.count).astype(np.int64)
    changing = np.flatnonzero(change)
    # loose changes of one instant stand before it
    at = np.searchsorted(changing, loose.before, "left") + np.arange(len(loose.before))
    count = len(changing) + len(loose.before)
    listed = np.ones(count, dtype=np.bool_)
    listed[at] = False
    merged, time = np.empty(count, dtype=np.int64), np.empty(count)
    merged[at], time[at] = loose.delta, loose.time
    merged[listed], time[listed] = change[changing], line.time[changing]
    owner = np.empty(count, dtype=np.int64)
    owner[at] = line.device[(loose.before - 1) // 2]
    owner[listed] = line.device[changing // 2]
    edges = np.searchsorted(owner, np.arange(len(static) + 1)).tolist()
    totals, times = _running(np.array([sum(parts.values()) for parts in static], dtype=np.int64), edges, merged, time)
    peaks = [int(np.argmax(total)) for total in totals]
    # an instant's rank: how many changes come before it
    rank = np.cumsum(np.bincount(loose.before, minlength=line.count + 1)[:-1])
    rank[1:] += np.cumsum(change[:-1] != 0)
    last = np.array([x + peak for x, peak in zip(edges, peaks, strict=False)], dtype=np.int64)
    parts = _parts(events, loose, instant, delta, rank, at, last)
    found = []
    for d, (total, when, peak) in enumerate(zip(totals, times, peaks, strict=True)):
        sizes = [static[d].get(name, 0) + size for name, size in zip(CATEGORIES, parts[d], strict=True)]
        named = tuple((name, size) for name, size in zip(CATEGORIES, sizes, strict=True) if size)
        found.append(DeviceMemory(when, total, int(total[peak]), float(when[peak]), named))
    return found


def _running(base: Ints, edges: list[int], change: Ints, time: Floats) -> tuple[list[Ints], list[Floats]]:
    """Totals and times of every device, from what it holds at time 0 on; its changes are edges[d]:edges[d + 1]."""
    devices, count = len(base), len(change)
    sums = np.concatenate([[0], np.cumsum(change)])
    ends = np.array(edges[1:], dtype=np.int64)
    heads = np.array(edges[:-1], dtype=np.int64)
    owner = np.repeat(np.arange(devices), ends - heads + 1)
    place = np.arange(count + devices) - owner
    total = sums[place] + (base - sums[heads])[owner]
    first = heads + np.arange(devices)
    when = time[np.maximum(place - 1, 0)] if count else np.zeros(devices)
    when[first] = 0.0
    spans = list(zip(first.tolist(), [*first[1:].tolist(), len(total)], strict=True))
    return [total[a:b] for a, b in spans], [when[a:b] for a, b in spans]


def _parts(
    events: Events, loose: _Loose, instant: Ints, delta: Ints, rank: Ints, at: Ints, last: Ints
) -> list[list[int]]:
    """Bytes by [device, category] of all changes that come before place `last` of their device."""
    line, devices = events.line, len(last)
    category = np.repeat([part[2] for part in events.listed], [len(part[0]) for part in events.listed]).astype(np.int64)
    device = line.device[instant // 2]
    loose_device = line.device[(loose.before - 1) // 2]
    owner = np.concatenate([device, loose_device])
    before = np.concatenate([rank[instant], at]) < last[owner]
    key = (owner * len(CATEGORIES) + np.concatenate([category, loose.category]))[before]
    size = np.concatenate([delta, loose.delta])[before]
    found = np.bincount(key, weights=size, minlength=devices * len(CATEGORIES))
    sizes: list[list[int]] = found.reshape(devices, -1).astype(np.int64).tolist()
    return sizes


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
        events.start(kept, extra, _MESSAGE)
        inner = costs.inner_bytes[ops.stage[kept]]
        events.start(kept, inner, WORKSPACE)
        events.finish(kept, -inner, WORKSPACE)
        again = ops.at(ops.table(Kind.R), kept)
        events.start(again[again >= 0], -extra[again >= 0], _MESSAGE)
    events.start(makes, costs.stash_bytes[ops.stage[makes]], _STASH)
    whole = ops.where(Kind.B)
    events.finish(whole, -costs.stash_bytes[ops.stage[whole]], _STASH)
    halves, weights = ops.where(Kind.I), ops.where(Kind.W)
    if len(halves) or len(weights):
        change = costs.weight_stash_bytes - costs.stash_bytes
        events.start(halves, np.maximum(change, 0)[ops.stage[halves]], _STASH)
        events.finish(halves, np.minimum(change, 0)[ops.stage[halves]], _STASH)
        events.finish(weights, -costs.weight_stash_bytes[ops.stage[weights]], _STASH)


def _recomputed(plan: Structured, stage: Ints, micro_batch: Ints) -> Flags | None:
    """Which of these forwards keep only their input; None where none does."""
    if not any(RECOMPUTE in row for row in plan.stash):
        return None
    table = np.array([[stash_kind(policy) == RECOMPUTE for policy in row] for row in plan.stash], dtype=np.bool_)
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
    events.start(maker, -inside, _MESSAGE)
    if (inside != size).any():
        events.finish(maker, inside - size, _MESSAGE)


def _message_events(events: Events, costs: StageCosts) -> None:
    ops, found = events.jobs.ops, events.jobs.messages
    forwards, backwards = ops.table(Kind.F), ops.table(Kind.B, Kind.I)
    for send_kind, makers in ((Kind.SEND_F, forwards), (Kind.SEND_B, backwards)):
        chosen = np.flatnonzero((ops.kind[found.send] == send_kind.value) & (found.bytes > 0))
        send, receive, size = found.send[chosen], found.receive[chosen], found.bytes[chosen]
        maker = ops.at(makers, send)
        events.start(maker, size, _MESSAGE)
        events.left(send, -size, _MESSAGE)
        events.post(receive, size, _MESSAGE)
        user = ops.at(makers, receive)
        if send_kind == Kind.SEND_F:
            _hold_input(events, costs, user, size)
        else:
            events.finish(user, -size, _MESSAGE)


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
            events.start(producers[edge, m], size, _MESSAGE)
            _hold_input(events, costs, consumers[edge, m], size)
        else:
            events.start(consumers[edge, m], size, _MESSAGE)
            events.finish(producers[edge, m], -size, _MESSAGE)
    if costs.input_bytes.any():
        fed = ops.where(Kind.F)
        fed = fed[costs.input_bytes[ops.stage[fed]] > 0]
        size = costs.input_bytes[ops.stage[fed]]
        events.start(fed, size, _MESSAGE)
        _hold_input(events, costs, fed, size)


def _away_events(events: Events, costs: StageCosts) -> None:
    """Stashes that leave their device: to the host, to another device that holds them, or to their backward's."""
    jobs = events.jobs
    ops, found = jobs.ops, jobs.messages
    offload, fetch = ops.where(Kind.OFFLOAD), ops.where(Kind.FETCH)
    if len(offload) or len(fetch):
        events.left(offload, -costs.stash_bytes[ops.stage[offload]], _STASH)
        events.arrives(fetch, ops.at(ops.table(Kind.B, Kind.I), fetch), costs.stash_bytes[ops.stage[fetch]], _STASH)
    if found.arriving is not None:
        sent = np.flatnonzero(ops.kind[found.send] == Kind.SEND_S.value)
        send, receive, size = found.send[sent], found.receive[sent], found.bytes[sent]
        back, arriving = ops.abroad(send), found.arriving[sent]
        inputs = ops.at(ops.table(Kind.R), send) >= 0
        for which, leaves, comes in (
            (~arriving, _STASH, _GUEST),
            (back, _GUEST, _STASH),
            (arriving & ~back & ~inputs, _STASH, _STASH),
            (arriving & ~back & inputs, _MESSAGE, _MESSAGE),
        ):
            events.left(send[which], -size[which], leaves)
            events.post(receive[which], size[which], comes)
