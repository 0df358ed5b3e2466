"""The critical path of a simulated step: a chain of jobs, each of which decided when the next one started.

A job starts when the last of what it waits for is over: a precedence and its lag, or the job that used the same link
before it. Walked back from the job that ends the step, these chains reach time 0 without a hole, so the durations and
lags on the path add up to the step (Kelley and Walker, Critical-Path Planning and Scheduling, 1959).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..forecast import CLOSE, Jobs
from ..graph import Floats, Ints
from ..plan import COPIES, SENDS, Kind
from .text import device_limit, percent

if TYPE_CHECKING:
    from ..forecast import Timeline
    from ..plan import Plan

BUSY = 0.99
"""A device that computes for so much of the step is what bounds it."""
HALF = 0.5
TOLD = 1e-3  # smaller shares are not said
_TOGETHER = {
    "link": "links between devices", "copy": "copies to and from the host", "reduce": "gradient reductions",
    "latency": "latency of the links",
}  # fmt: skip
_SORTS = {"compute": "computing", "link": "links", "copy": "copies", "reduce": "reductions", "latency": "latency"}


class Waiting(NamedTuple):
    """`after` starts no earlier than `lag` seconds after `before` has ended."""

    before: Ints
    after: Ints
    lag: Floats


def all_waiting(jobs: Jobs) -> Waiting:
    """All that jobs wait for, sorted by the waiting job: their precedences, and whoever had their link before them."""
    first, resource = jobs.occupied
    user = np.repeat(np.arange(len(first) - 1), np.diff(first))
    order = np.lexsort((jobs.rank[user], resource))
    user, resource = user[order], resource[order]
    same = resource[1:] == resource[:-1]
    before = np.concatenate([jobs.precedences.before, user[:-1][same]])
    after = np.concatenate([jobs.precedences.after, user[1:][same]])
    lag = np.concatenate([jobs.precedences.lag, np.zeros(int(same.sum()))])
    by_job = np.argsort(after, kind="stable")
    return Waiting(before[by_job], after[by_job], lag[by_job])


@dataclass(frozen=True)
class CriticalPath:
    """Jobs in order of time, and the lag in seconds after each before the next starts (of the last: before the end).

    Where several jobs are over at the moment that counts, the path stays on its device, and else prefers an op in line
    to a message.
    """

    jobs: tuple[int, ...]
    lags_s: tuple[float, ...]

    @classmethod
    def of(cls, timeline: Timeline) -> CriticalPath:
        """The path of a timeline; empty where nothing happens."""
        jobs = timeline.jobs
        if not len(jobs.start):
            return cls((), ())
        walk = _Walk(timeline)
        found = [walk.last()]
        while (earlier := walk.decided(found[-1][0])) is not None:
            found.append(earlier)
        path = found[::-1]
        return cls(tuple(job for job, _ in path), tuple(lag for _, lag in path))


class _Walk:
    def __init__(self, timeline: Timeline) -> None:
        jobs = timeline.jobs
        self.jobs, self.close = jobs, timeline.step_s * CLOSE
        self.waits = all_waiting(jobs)
        self.first = np.searchsorted(self.waits.after, np.arange(len(jobs.start) + 1))
        self.device = np.append(jobs.ops.device, np.full(len(jobs.start) - len(jobs.ops), -1))
        self.in_line = np.append(jobs.ops.in_line, np.zeros(len(jobs.start) - len(jobs.ops), dtype=np.bool_))

    def last(self) -> tuple[int, float]:
        lag = np.zeros(len(self.jobs.start))
        lag[self.jobs.message_job] = self.jobs.message_latency_s
        lag[len(self.jobs.ops) :] = self.jobs.reduce_latency_s
        over = np.where(self.jobs.rank >= 0, self.jobs.end + lag, -1.0)
        ends = np.flatnonzero(over >= over.max() - self.close)
        job = int(ends[np.argmax(self.in_line[ends])])
        return job, float(lag[job])

    def decided(self, job: int) -> tuple[int, float] | None:
        """The job that decided when this one started, and the lag between them; None: it started at time 0."""
        a, b = self.first[job], self.first[job + 1]
        before, lag = self.waits.before[a:b], self.waits.lag[a:b]
        over = self.jobs.end[before] + lag
        close = over >= self.jobs.start[job] - self.close
        if not close.any():
            return None
        preference = close * (1 + self.in_line[before] + 2 * (self.device[before] == self.device[job]))
        chosen = int(np.argmax(preference))
        return int(before[chosen]), float(lag[chosen])


@dataclass(frozen=True)
class Binding:
    """What keeps a step from being shorter.

    Attributes:
        step_s: the step's seconds.
        path_s: seconds of the critical path by resource, the largest first: ("compute", device), ("link", (from, to)),
            ("copy", device), ("reduce", stage), ("latency", -1). They add up to the step.
        busiest: the device that computes longest; busy_s: for so long.
        full: devices whose peak leaves less room than the smallest stash that they make: they can hold no further
            micro-batch.
    """

    step_s: float
    path_s: tuple[tuple[tuple[str, object], float], ...]
    busiest: int
    busy_s: float
    full: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, timeline: Timeline, path: CriticalPath) -> Binding:
        """Derived from the path and the peaks, nothing else."""
        busiest = int(np.argmax(timeline.busy_s)) if timeline.busy_s else 0
        full = tuple(d for d in range(len(plan.orders)) if _is_full(plan, timeline, d))
        busy = timeline.busy_s[busiest] if timeline.busy_s else 0.0
        return cls(timeline.step_s, _by_resource(timeline, path), busiest, busy, full)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Share of the step by sort of resource, for those on the path."""
        found: dict[str, float] = {}
        for (sort, _), seconds in self.path_s:
            found[sort] = found.get(sort, 0.0) + (seconds / self.step_s if self.step_s > 0 else 0.0)
        return found

    @property
    def sentence(self) -> str:
        """For people: what binds, and where memory is full.

        A device that computes for 99 % of the step binds by its load; a resource that has half of the critical path
        binds by what it does there; so do all links, copies, reductions or latencies together. Otherwise nothing binds
        alone: the path is a chain across devices, and its parts are said.
        """
        return "; ".join(filter(None, [self._time(), self._memory()]))

    def _time(self) -> str:
        if self.step_s <= 0 or not self.path_s:
            return "nothing takes time"
        if self.busy_s >= BUSY * self.step_s:
            return f"load of device {self.busiest}, which computes for {percent(self.busy_s / self.step_s)} of the step"
        resource, seconds = self.path_s[0]
        if seconds >= HALF * self.step_s:
            return f"{_named(*resource)}, {percent(seconds / self.step_s)} of the critical path"
        sort, share = max(self.shares.items(), key=lambda item: item[1])
        if sort != "compute" and share >= HALF:
            return f"{_TOGETHER[sort]}, {percent(share)} of the critical path"
        crossed = sum(sort == "compute" for (sort, _), _ in self.path_s)
        parts = ", ".join(f"{_SORTS[sort]} {percent(share)}" for sort, share in self.shares.items() if share >= TOLD)
        return f"a chain across {crossed} devices ({parts})"

    def _memory(self) -> str:
        if not self.full:
            return ""
        if len(self.full) > 4:
            return f"memory full on {len(self.full)} devices"
        return f"memory full on device{'s' * (len(self.full) > 1)} {', '.join(map(str, self.full))}"


def _by_resource(timeline: Timeline, path: CriticalPath) -> tuple[tuple[tuple[str, object], float], ...]:
    jobs, found = timeline.jobs, dict[tuple[str, object], float]()
    targets = dict(zip(jobs.messages.send.tolist(), jobs.ops.device[jobs.messages.receive].tolist(), strict=True))
    summed = {job: collective for collective, job in jobs.reduce_job.items()}
    for job, lag in zip(path.jobs, path.lags_s, strict=True):
        key = ("reduce", summed[job]) if job in summed else _resource(jobs, job, targets)
        for name, seconds in ((key, float(jobs.duration[job])), (("latency", -1), lag)):
            if seconds > 0:
                found[name] = found.get(name, 0.0) + seconds
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def _resource(jobs: Jobs, job: int, targets: dict[int, int]) -> tuple[str, object]:
    kind, device = Kind(int(jobs.ops.kind[job])), int(jobs.ops.device[job])
    if kind in SENDS:
        return "link", (device, targets[job])
    return ("copy" if kind in COPIES else "compute"), device


def _named(sort: str, which: object) -> str:
    if sort == "reduce" and isinstance(which, tuple):
        said = {Kind.TIE: "sum of tied parameters {}", Kind.GATHER: "gathering parameters of stage {}"}
        return said.get(which[0], "reduction of stage {}").format(which[1])
    if isinstance(which, tuple):
        return f"link from device {which[0]} to {which[1]}"
    names = {"compute": "work of device {}", "copy": "host link of device {}"}
    return names.get(sort, "latency of the links").format(which)


def _is_full(plan: Plan, timeline: Timeline, device: int) -> bool:
    ops = timeline.jobs.ops
    made = ops.where(Kind.F, Kind.R)
    sizes = timeline.costs.stash_bytes[ops.stage[made[ops.device[made] == device]]]
    room = device_limit(plan, device) - timeline.device_memory[device].peak_bytes
    return bool(sizes.size and sizes.max() > 0 and room < sizes[sizes > 0].min())
