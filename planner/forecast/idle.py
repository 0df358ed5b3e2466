"""What every device waits for while it does not compute: spans of a simulated step, each with one cause.

Spans of a device and its computing fill the step without a hole, so the causes' seconds add up to its bubble.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..graph import OF_A_PASS, Floats, Ints, Structured, Why, route, stash_policy
from ..plan import COMPUTE, COPIES, SENDS, Kind
from .timeline import Timeline

_DATA = (Why.TENSOR, Why.STASH, Why.GRADIENTS, Why.WEIGHTS)
_COMPUTES = np.array([kind in COMPUTE for kind in Kind])
_CHOSEN = (Kind.F, Kind.R, Kind.B, Kind.I, Kind.W)
"""Ops of which a list might have another next. F and R take memory."""


class Cause(Enum):
    """Why a device computes nothing."""

    UNUSED = "it has nothing to do in the whole step"
    FILLING = "before its first op"
    DRAINING = "after its last op"
    NOTHING = "nothing is ready: others still compute what it needs"
    MEMORY = "a forward is ready, but memory is full"
    MESSAGE = "a message is on its way"
    COPY = "a copy from or to the host is on its way"
    SUMS = "gradients are summed"
    ORDER = "something is ready, and its list has other ops first"


class IdleSpan(NamedTuple):
    """A device that computes nothing from start to end (seconds)."""

    device: int
    start_s: float
    end_s: float
    cause: Cause


def idle_spans(plan: Structured, timeline: Timeline, limits: Sequence[int]) -> tuple[IdleSpan, ...]:
    """Every span of every device, in order; `limits`: bytes that each may hold.

    What is ready is known from what the list still holds: a span in which some of it could run, but the list has
    another op first, is ORDER; where only forwards could and none of them fits into memory, MEMORY. Where nothing is
    ready, the message, copy or sum that the next op waits for counts from when it is posted; before that it is NOTHING.
    """
    ready = _Ready(plan, timeline)
    found: list[IdleSpan] = []
    for device, limit in enumerate(limits):
        found += _Device(ready, device, limit).spans()
    return tuple(found)


@dataclass(frozen=True)
class _Ready:
    """When data of every job are there, whatever the lists say, and what waits for which jobs."""

    plan: Structured
    timeline: Timeline

    @cached_property
    def end_s(self) -> Floats:
        """When every job ends."""
        return self.timeline.jobs.end

    @cached_property
    def at_s(self) -> Floats:
        """Seconds at which everything is there that an op reads; 0 for what reads nothing."""
        jobs, waits = self.timeline.jobs, self.timeline.jobs.precedences
        found = np.zeros(len(jobs.start))
        mask = self._data
        np.maximum.at(found, waits.after[mask], (self.end_s[waits.before] + waits.lag)[mask])
        ops = jobs.ops
        for before, after in OF_A_PASS:
            later = ops.where(after)
            earlier = ops.at(ops.table(before), later)
            some = earlier >= 0
            np.maximum.at(found, later[some], jobs.end[earlier[some]])
        return found

    @cached_property
    def _data(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        parts = self.timeline.jobs.precedences.parts
        return np.repeat([why in _DATA for why, _ in parts], [count for _, count in parts])

    @cached_property
    def posted_s(self) -> Floats:
        """When every job is posted: the op before it in line has ended."""
        jobs, waits = self.timeline.jobs, self.timeline.jobs.precedences
        listed = np.repeat([why is Why.LISTED for why, _ in waits.parts], [count for _, count in waits.parts])
        found = np.zeros(len(jobs.start))
        np.maximum.at(found, waits.after[listed], jobs.end[waits.before[listed]])
        return found

    @cached_property
    def _by_job(self) -> tuple[Ints, Ints, Floats]:
        """Where each job's data precedences begin, and theirs: jobs before, and lags."""
        jobs, waits = self.timeline.jobs, self.timeline.jobs.precedences
        mine = np.flatnonzero(self._data)
        order = mine[np.argsort(waits.after[mine], kind="stable")]
        first = np.searchsorted(waits.after[order], np.arange(len(jobs.start) + 1))
        return first, waits.before[order], waits.lag[order]

    def on_the_way(self, job: int) -> Iterator[tuple[float, float, Cause]]:
        """(posted, there, what it is) of everything that an op waits for and no device computes."""
        first, before, lags = self._by_job
        for k in range(first[job], first[job + 1]):
            other = int(before[k])
            cause = self._cause(other)
            if cause is not None:
                yield float(self.posted_s[other]), float(self.end_s[other] + lags[k]), cause

    def _cause(self, job: int) -> Cause | None:
        ops = self.timeline.jobs.ops
        if job >= len(ops):
            return Cause.SUMS
        kind = Kind(int(ops.kind[job]))
        return Cause.MESSAGE if kind in SENDS else Cause.COPY if kind in COPIES else None

    @cached_property
    def taken_bytes(self) -> dict[tuple[int, int], int]:
        """Bytes that a forward of a stage needs free, by pipeline and stage.

        What it leaves beyond the tensors that it takes, which are there already, and what it works with.
        """
        costs = self.timeline.costs
        return {
            (p, s): self.needed_bytes(s, sum(int(left.bytes(costs)[s]) for left in stash_policy(policy).left))
            for p, policies in enumerate(self.plan.stash)
            for s, policy in enumerate(policies)
        }

    def needed_bytes(self, stage: int, left: int) -> int:
        """Bytes that must be free to leave so many."""
        costs = self.timeline.costs
        return max(left - int(costs.incoming_bytes[stage]), 0) + int(costs.workspaces.forward[stage])

    @cached_property
    def pipeline_of(self) -> dict[int, int]:
        """Of every micro-batch."""
        return route(self.plan)


class _Device:
    """One device's ops in line, and the earliest times at which what its list still holds could run."""

    def __init__(self, ready: _Ready, device: int, limit: int) -> None:
        jobs = ready.timeline.jobs
        self.ready, self.device, self.limit, self.step_s = ready, device, limit, ready.timeline.step_s
        self.jobs = np.flatnonzero((jobs.ops.device == device) & _COMPUTES[jobs.ops.kind])
        self.start, self.end = jobs.start[self.jobs], jobs.end[self.jobs]
        self.kind = jobs.ops.kind[self.jobs]
        self.times, self.bytes = ready.timeline.memory(device)

    def spans(self) -> Iterator[IdleSpan]:
        """In order; none of them is empty."""
        busy = np.flatnonzero(self.end > self.start)
        if not len(busy):
            if self.step_s > 0:
                yield IdleSpan(self.device, 0.0, self.step_s, Cause.UNUSED)
            return
        first, last = float(self.start[busy[0]]), float(self.end[busy[-1]])
        if first > 0:
            yield IdleSpan(self.device, 0.0, first, Cause.FILLING)
        for before, after in pairwise(busy.tolist()):
            begin, end = float(self.end[before]), float(self.start[after])
            if end > begin:
                yield from self._between(before + 1, begin, end)
        if last < self.step_s:
            yield IdleSpan(self.device, last, self.step_s, Cause.DRAINING)

    def _between(self, place: int, begin: float, end: float) -> Iterator[IdleSpan]:
        """The spans of a gap before the ops from `place` on."""
        way = [found for job in self._next(place, end) for found in self.ready.on_the_way(job)]
        chances = [(float(least[place]), need) for least, need in self._chances if least[place] < end]
        moments = {begin, end, *(t for t, _ in chances), *(t for posted, there, _ in way for t in (posted, there))}
        cuts = sorted(t for t in moments if begin <= t <= end)
        causes = [(u, v, self._cause((u + v) / 2, chances, way)) for u, v in pairwise(cuts) if v > u]
        for k, (u, v, cause) in enumerate(causes):
            if k and causes[k - 1][2] is cause:
                continue
            same = next((j for j in range(k, len(causes)) if causes[j][2] is not cause), len(causes))
            yield IdleSpan(self.device, u, causes[same - 1][1] if same > k else v, cause)

    def _next(self, place: int, end: float) -> list[int]:
        """The ops of no duration that a gap is before, and the one that ends it."""
        last = int(np.searchsorted(self.start[place:], end, side="right")) + place
        return [int(job) for job in self.jobs[place : max(last, place + 1)]]

    def _cause(
        self, at: float, chances: Sequence[tuple[float, int]], way: Sequence[tuple[float, float, Cause]]
    ) -> Cause:
        some = [need for ready, need in chances if ready <= at]
        if some:
            room = self.limit - self._held(at)
            return Cause.ORDER if min(some) <= max(room, 0) else Cause.MEMORY
        for wanted in (Cause.MESSAGE, Cause.COPY, Cause.SUMS):
            if any(cause is wanted and posted <= at < there for posted, there, cause in way):
                return wanted
        return Cause.NOTHING

    def _held(self, at: float) -> int:
        return self.bytes[max(bisect_right(self.times, at) - 1, 0)] if self.bytes else 0

    @cached_property
    def _chances(self) -> list[tuple[Floats, int]]:
        """For what needs equally many bytes to run: from every place of the list on, when the first of it is ready."""
        ops, ready = self.ready.timeline.jobs.ops, self.ready
        needs = np.full(len(self.jobs), -1, dtype=np.int64)
        for k, job in enumerate(self.jobs.tolist()):
            kind = Kind(int(self.kind[k]))
            if kind in (Kind.F, Kind.R):
                stage, m = int(ops.stage[job]), int(ops.micro_batch[job])
                whole = ready.needed_bytes(stage, int(ready.timeline.costs.stash_bytes[stage]))
                needs[k] = whole if kind is Kind.R else ready.taken_bytes[ready.pipeline_of[m], stage]
            elif kind in _CHOSEN:
                needs[k] = 0
        found = []
        for need in np.unique(needs[needs >= 0]).tolist():
            at = np.where(needs == need, ready.at_s[self.jobs], np.inf)
            found.append((np.minimum.accumulate(at[::-1])[::-1], int(need)))
        return found


def seconds_by_cause(spans: Sequence[IdleSpan], among: Callable[[IdleSpan], bool]) -> dict[Cause, float]:
    """Seconds of the spans that count, by cause, the most first."""
    found: dict[Cause, float] = {}
    for span in spans:
        if among(span):
            found[span.cause] = found.get(span.cause, 0.0) + span.end_s - span.start_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))
