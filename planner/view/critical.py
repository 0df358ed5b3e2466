"""The critical path of a simulated step: a chain of jobs, each of which decided when the next one started.

A job starts when the last of what it waits for is over: a precedence and its lag, or the job that used the same link
before it. Walked back from the job that ends the step, these chains reach time 0 without a hole, so the durations and
lags on the path add up to the step (Kelley and Walker, Critical-Path Planning and Scheduling, 1959).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..forecast import CLOSE, Jobs
from ..graph import Floats, Ints

if TYPE_CHECKING:
    from ..forecast import Timeline


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
