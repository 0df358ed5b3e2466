"""Which stashes go to another device and back (BPipe, Kim et al. 2023): from where memory lacks to where there is room.

A shipped stash takes memory of two devices, so both are followed over time: what an order holds with its stashes where
they are, less what is gone, and what guests take. A quarter of a stage's micro-batches goes at a time, priced by the
seconds on the link, to the device that is left with most room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...forecast import Timeline
from ...graph import KEEP, SHIP, Candidate, Floats, Ints, regroup
from ...partition import QUARTERS
from ...plan import Kind
from ..common import COUNT, limits
from .fullest import Unit
from .stash_choices import TURNS

Guests = dict[Unit, list[int]]
"""Of every unit, the devices to which one quarter after the other of its micro-batches ships its stashes."""


def with_guests(candidate: Candidate, guests: Guests) -> Candidate:
    """The candidate with these stashes shipped, micro-batches of four taking turns."""
    rows: dict[int, tuple[str, ...]] = {}
    for p, (pipeline, row) in enumerate(zip(candidate.pipelines, candidate.stash, strict=True)):
        there = [guests.get((p, s), []) for s in range(len(row))]
        four = []
        for turn in _LAST_FIRST:
            shipped = (f"{SHIP}>{to[turn]}" if turn < len(to) else "" for to in there)
            four.append(tuple(new or old for new, old in zip(shipped, row, strict=True)))
        rows.update((m, four[k % QUARTERS]) for k, m in enumerate(pipeline.micro_batches))
    return regroup(candidate.problem, candidate.stages, candidate.pipelines, rows)


_LAST_FIRST = tuple(QUARTERS - 1 - turn for turn in TURNS)
"""In which order micro-batches of four are shipped: those first that are recomputed last."""


@dataclass(frozen=True)
class _Stashes:
    """A unit's stashes that its device keeps: where and when they are made and used (seconds), and the bytes of one.

    turn: of every micro-batch, with which quarter it goes.
    """

    home: int
    size: int
    made_s: Floats
    used_s: Floats
    turn: Ints


@dataclass(frozen=True)
class _Step:
    """Stashes of a unit that go to a device: quarters, and what is then held at home and there at every instant."""

    unit: Unit
    target: int
    quarters: int
    home: Ints
    there: Ints


class Shipping:
    """The choice for one simulated order. `less`: bytes taken off every device's limit."""

    def __init__(self, candidate: Candidate, timeline: Timeline, less: Sequence[int]) -> None:
        self.candidate, self.timeline = candidate, timeline
        self.room = [limit - taken for limit, taken in zip(limits(candidate.problem), less, strict=True)]
        self.held: list[Ints] = []
        self.times: list[Floats] = []
        for memory in timeline.device_memory:
            order = np.argsort(memory.times_s, kind="stable")
            self.times.append(memory.times_s[order])
            self.held.append(np.cumsum(np.diff(memory.bytes, prepend=0)[order]))
        self.guests: Guests = {}
        self.busy_s: dict[tuple[str, int, int], float] = {}

    def choose(self) -> Guests:
        """Ships from the fullest device what it lacks, while others have room and links have time."""
        stuck: set[int] = set()
        while True:
            over = {d: self._over(d) for d in range(len(self.room)) if d not in stuck}
            fullest = max(over, key=over.__getitem__, default=-1)
            if fullest < 0 or over[fullest] <= 0:
                return self.guests
            step = self._best(fullest, over[fullest])
            if step is None:
                stuck.add(fullest)
            else:
                self._take(step)

    def _over(self, device: int) -> int:
        return int(self.held[device].max(initial=0)) - self.room[device]

    def _take(self, step: _Step) -> None:
        home = self._stashes[step.unit].home
        self.held[home], self.held[step.target] = step.home, step.there
        self.guests.setdefault(step.unit, []).extend([step.target] * step.quarters)
        for key, seconds in self._uses(step.unit, step.target, step.quarters):
            self.busy_s[key] = self.busy_s.get(key, 0.0) + seconds

    def _best(self, device: int, over: int) -> _Step | None:
        """What takes least time on a link for what the device lacks; of equal ones, what leaves most room there."""
        found = [
            (price, step)
            for unit, stashes in self._stashes.items()
            if stashes.home == device and stashes.size
            for target in self._targets(unit)
            for price, step in self._steps(unit, target, over)
        ]
        return min(found, key=lambda one: one[0], default=(None, None))[1]

    def _steps(self, unit: Unit, target: int, over: int) -> Iterator[tuple[tuple[float, int, int], _Step]]:
        """So many more quarters of a unit to a target that has room and time for them, and what that costs."""
        device, sent = self._stashes[unit].home, len(self.guests.get(unit, ()))
        home, there = self.held[device], self.held[target]
        for quarter in range(sent, QUARTERS):
            home = home + self._change(unit, quarter, target, device)
            there = there + self._change(unit, quarter, target, target)
            uses = list(self._uses(unit, target, quarter + 1 - sent))
            left = self.room[target] - int(there.max(initial=0))
            if left < 0 or any(self.busy_s.get(key, 0.0) + s > self.timeline.step_s for key, s in uses):
                return
            saved = over - max(0, int(home.max(initial=0)) - self.room[device])
            if saved > 0:
                price = (max(seconds for _, seconds in uses) / saved, -left, -saved)
                yield price, _Step(unit, target, quarter + 1 - sent, home, there)

    # ------------------------------------------------------------ what a stash takes, and where

    @cached_property
    def _stashes(self) -> dict[Unit, _Stashes]:
        """Of every unit whose stashes are kept."""
        candidate, jobs = self.candidate, self.timeline.jobs
        forward, backward = jobs.ops.table(Kind.F), jobs.ops.table(Kind.B, Kind.I)
        found = {}
        for p, (pipeline, row) in enumerate(zip(candidate.pipelines, candidate.stash, strict=True)):
            batches = np.array(pipeline.micro_batches, dtype=np.int64)
            turn = np.resize(_LAST_FIRST, len(batches))
            for s, policy in enumerate(row):
                if policy == KEEP and pipeline.forward[s] == pipeline.backward[s]:
                    made, used = jobs.end[forward[s, batches]], jobs.start[backward[s, batches]]
                    size = int(candidate.costs.stash_bytes[s])
                    found[p, s] = _Stashes(pipeline.forward[s], size, made, used, turn)
        return found

    def _targets(self, unit: Unit) -> list[int]:
        """The mirror of a unit's device, and those with most room, in its node first."""
        pipeline, home = self.candidate.pipelines[unit[0]], self._stashes[unit].home
        mirror, cluster = pipeline.forward[len(pipeline.forward) - 1 - unit[1]], self.candidate.problem.cluster
        others = [d for d in range(len(self.room)) if d not in (home, mirror)]
        others.sort(key=lambda d: (not cluster.same_node(home, d), self._over(d)))
        return [d for d in (mirror, *others[: COUNT.guest_devices]) if d != home]

    def _uses(self, unit: Unit, target: int, quarters: int) -> Iterator[tuple[tuple[str, int, int], float]]:
        """Seconds that so many quarters take on every resource, there and back."""
        stashes, cluster = self._stashes[unit], self.candidate.problem.cluster
        home, count = stashes.home, len(stashes.turn) * quarters / QUARTERS
        for source, sink in ((home, target), (target, home)):
            seconds = count * cluster.link(source, sink).occupation_s(stashes.size)
            if cluster.same_node(source, sink):
                yield ("link", source, sink), seconds
            else:
                yield ("out", source, 0), seconds
                yield ("in", sink, 0), seconds

    def _change(self, unit: Unit, quarter: int, target: int, device: int) -> Ints:
        """What the unit's home, or the target, holds more at every instant when a quarter of its stashes is shipped."""
        key = (unit, quarter, target, device)
        if key not in self._changes:
            self._changes[key] = self._make_change(*key)
        return self._changes[key]

    @cached_property
    def _changes(self) -> dict[tuple[Unit, int, int, int], Ints]:
        return {}

    def _make_change(self, unit: Unit, quarter: int, target: int, device: int) -> Ints:
        """A message is posted when the op in line before it has ended, on either device."""
        stashes, times = self._stashes[unit], self.times[device]
        made_s, used_s = (column[stashes.turn == quarter] for column in (stashes.made_s, stashes.used_s))
        if device == stashes.home:
            link = self.candidate.problem.cluster.link(device, target)
            seconds = link.occupation_s(stashes.size)
            first = np.searchsorted(times, made_s + seconds, "right")
            last = np.searchsorted(times, self._posted(device, used_s - seconds - link.latency_s), "right") - 1
            first, size = np.minimum(first, last), -stashes.size
        else:
            first = np.maximum(np.searchsorted(times, self._posted(device, made_s), "right") - 1, 0)
            last, size = np.searchsorted(times, used_s, "left"), stashes.size
        change = np.bincount(first, minlength=len(times) + 1) - np.bincount(last, minlength=len(times) + 1)
        return np.asarray(size * np.cumsum(change)[: len(times)], dtype=np.int64)

    def _posted(self, device: int, when: Floats) -> Floats:
        """When something must be posted on a device to be there at these times: an op in line ends then."""
        jobs = self.timeline.jobs
        line = jobs.ops.working[jobs.ops.device[jobs.ops.working] == device]
        ends = np.concatenate([[0.0], jobs.end[line]])
        return np.asarray(ends[np.maximum(np.searchsorted(ends, when, "right") - 1, 0)])
