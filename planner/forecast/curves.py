"""From changes of memory to what every device holds over time, its peak and what made the peak.

At equal times releases come first (design: instants). What is posted at one time takes place in list order: a message
that leaves makes room for what is listed behind its SEND only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph import NOWHERE, Floats, Ints
from ..plan import Kind
from .events import CATEGORIES, END, Events
from .jobs import Jobs


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device after every change: times in seconds, totals, and the peak with its composition."""

    times_s: Floats
    bytes: Ints
    peak_bytes: int
    peak_at_s: float
    peak_parts: tuple[tuple[str, int], ...]


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


def _behind_last_end(events: Events, op: Ints, tick: Floats) -> Ints:
    """The first instants at these ticks, when copies start, behind all in-line ops that have ended by then.

    What is posted behind such an op makes no room for a copy, even if it leaves at the same time. An op of no length at
    that time has ended if it was served before the copy.
    """
    jobs, ops, line = events.jobs, events.jobs.ops, events.line
    ends = line.at(ops.working, END)
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


def curves(events: Events, static: list[dict[str, int]]) -> list[DeviceMemory]:
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


def jobs_of_ops(jobs: Jobs) -> Ints:
    """The job of every op: a RECV's is its message, a REDUCE's, TIE's or GATHER's its reduction."""
    found = np.arange(len(jobs.ops))
    found[jobs.messages.receive] = jobs.messages.send
    stage, peer = jobs.ops.stage, jobs.ops.peer
    for kind, number in ((Kind.REDUCE, stage), (Kind.TIE, peer), (Kind.GATHER, stage)):
        reduce = jobs.ops.where(kind)
        which = zip(number[reduce].tolist(), jobs.ops.micro_batch[reduce].tolist(), strict=True)
        found[reduce] = [jobs.reduce_job[kind, k, m] for k, m in which]
    return found
