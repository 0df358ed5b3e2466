"""Which stashes are moved or made again so that a simulated order fits: memory is followed over time.

What becomes of a stash is read off its policy's row: it may go to the host, to another device that has room (BPipe, Kim
et al. 2023), or be made again. A shipped stash takes memory of two devices, so all devices are followed: what the order
holds with every stash kept, less what is gone, and what guests take. A quarter of a stage's micro-batches is decided on
at a time, priced by the seconds that its link, host link or device has less left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...forecast import Timeline
from ...graph import KEEP, POLICIES, Candidate, Floats, Ints, regroup, ship_target, stash_policy
from ...partition import QUARTERS
from ...plan import Kind
from ..common import COUNT, HOPE, limits
from .fullest import Unit
from .stash_choices import TURNS

Quarters = dict[Unit, list[str]]
"""Of every unit, the policies of one quarter after the other of its micro-batches; the rest is as it was."""
Use = tuple[str, int, int]
"""Something that is busy: a link, an end of one between nodes, a direction of a host link, or a device."""


def with_quarters(candidate: Candidate, quarters: Quarters) -> Candidate:
    """The candidate with these policies, micro-batches of four taking turns."""
    rows: dict[int, tuple[str, ...]] = {}
    for p, (pipeline, row) in enumerate(zip(candidate.pipelines, candidate.stash, strict=True)):
        changed = [quarters.get((p, s), []) for s in range(len(row))]
        four = []
        for turn in _LAST_FIRST:
            new = (policies[turn] if turn < len(policies) else "" for policies in changed)
            four.append(tuple(policy or old for policy, old in zip(new, row, strict=True)))
        rows.update((m, four[k % QUARTERS]) for k, m in enumerate(pipeline.micro_batches))
    return regroup(candidate.problem, candidate.stages, candidate.pipelines, rows)


_LAST_FIRST = tuple(QUARTERS - 1 - turn for turn in TURNS)
"""In which order micro-batches of four are changed: of choices made in advance, those first that join last."""


@dataclass(frozen=True)
class _Stashes:
    """A unit's stashes that its device keeps: where and when they are made and used (seconds), and the bytes of one.

    turn: of every micro-batch, with which quarter it goes.
    """

    home: int
    stage: int
    size: int
    made_s: Floats
    used_s: Floats
    turn: Ints


@dataclass(frozen=True)
class _Step:
    """Stashes of a unit that get a policy: quarters, and what home and another device then hold at every instant."""

    unit: Unit
    policy: str
    quarters: int
    home: Ints
    there: Ints | None


class Relief:
    """The choice for one simulated order. `policies`: rows that may be used; `less`: bytes taken off every limit."""

    def __init__(
        self, candidate: Candidate, timeline: Timeline, policies: Collection[str], less: Sequence[int]
    ) -> None:
        self.candidate, self.timeline = candidate, timeline
        self.policies = [POLICIES[name] for name in policies]
        self.room = [limit - taken for limit, taken in zip(limits(candidate.problem), less, strict=True)]
        self.held: list[Ints] = []
        self.times: list[Floats] = []
        for memory in timeline.device_memory:
            order = np.argsort(memory.times_s, kind="stable")
            self.times.append(memory.times_s[order])
            self.held.append(np.cumsum(np.diff(memory.bytes, prepend=0)[order]))
        self.quarters: Quarters = {}
        self.busy_s: dict[Use, float] = {("device", d, 0): busy for d, busy in enumerate(timeline.busy_s)}

    def choose(self) -> Quarters:
        """Changes stashes of the fullest device until it has what it lacks, or nothing helps."""
        stuck: set[int] = set()
        while True:
            over = {d: self._over(d) for d in range(len(self.room)) if d not in stuck}
            fullest = max(over, key=over.__getitem__, default=-1)
            if fullest < 0 or over[fullest] <= 0:
                return self.quarters
            step = self._best(fullest, over[fullest])
            if step is None:
                stuck.add(fullest)
            else:
                self._take(step)

    @property
    def short(self) -> bool:
        """Whether some device is still over its limit."""
        return any(self._over(d) > 0 for d in range(len(self.room)))

    def _over(self, device: int) -> int:
        return int(self.held[device].max(initial=0)) - self.room[device]

    def _take(self, step: _Step) -> None:
        self.held[self._stashes[step.unit].home] = step.home
        target = ship_target(step.policy)
        if target is not None and step.there is not None:
            self.held[target] = step.there
        self.quarters.setdefault(step.unit, []).extend([step.policy] * step.quarters)
        for key, seconds in self._uses(step.unit, step.policy, step.quarters):
            self.busy_s[key] = self.busy_s.get(key, 0.0) + seconds

    def _best(self, device: int, over: int) -> _Step | None:
        """What takes least time for what the device lacks; of equal ones, what leaves most room elsewhere."""
        found = [
            (price, step)
            for unit, stashes in self._stashes.items()
            if stashes.home == device and stashes.size
            for policy in self._texts(unit)
            for price, step in self._steps(unit, policy, over)
        ]
        return min(found, key=lambda one: one[0], default=(None, None))[1]

    def _steps(self, unit: Unit, policy: str, over: int) -> Iterator[tuple[tuple[float, int, int], _Step]]:
        """So many more quarters of a unit with a policy for which there is room and time, and what that costs."""
        device, done, target = self._stashes[unit].home, len(self.quarters.get(unit, ())), ship_target(policy)
        home, there, left = self.held[device], None if target is None else self.held[target], 0
        for quarter in range(done, QUARTERS):
            home = home + self._change(unit, quarter, policy, device)
            uses = list(self._uses(unit, policy, quarter + 1 - done))
            if target is not None and there is not None:
                there = there + self._change(unit, quarter, policy, target)
                left = self.room[target] - int(there.max(initial=0))
                if left < 0 or any(self._late_s(*use) > 0 for use in uses):
                    return
            saved = over - max(0, int(home.max(initial=0)) - self.room[device])
            if saved > 0:
                seconds = max(self._late_s(*use) + HOPE.hidden * use[1] for use in uses)
                yield (seconds / saved, -left, -saved), _Step(unit, policy, quarter + 1 - done, home, there)

    def _late_s(self, key: Use, seconds: float) -> float:
        """By how much something would then be busy for longer than there is time: the step, or the busiest device."""
        most_s = max(self.timeline.busy_s) if key[0] == "device" else self.timeline.step_s
        return max(0.0, self.busy_s.get(key, 0.0) + seconds - most_s)

    # ------------------------------------------------------------ what a policy takes, and where

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
                    found[p, s] = _Stashes(pipeline.forward[s], s, size, made, used, turn)
        return found

    def _texts(self, unit: Unit) -> Iterator[str]:
        """The policies for a unit; of those that name a device, for the mirror's and those with most room."""
        for row in self.policies:
            if row.names_device:
                yield from (f"{row.name}>{target}" for target in self._targets(unit))
            else:
                yield row.name

    def _targets(self, unit: Unit) -> list[int]:
        """The mirror of a unit's device, and those with most room, in its node first."""
        pipeline, home = self.candidate.pipelines[unit[0]], self._stashes[unit].home
        mirror, cluster = pipeline.forward[len(pipeline.forward) - 1 - unit[1]], self.candidate.problem.cluster
        others = [d for d in range(len(self.room)) if d not in (home, mirror)]
        others.sort(key=lambda d: (not cluster.same_node(home, d), self._over(d)))
        return [d for d in (mirror, *others[: COUNT.guest_devices]) if d != home]

    def _uses(self, unit: Unit, policy: str, quarters: int) -> Iterator[tuple[Use, float]]:
        """Seconds that so many quarters take of everything that they use."""
        stashes, cluster, row = self._stashes[unit], self.candidate.problem.cluster, stash_policy(policy)
        home, count = stashes.home, len(stashes.turn) * quarters / QUARTERS
        size, target = int(row.moved_bytes(self.candidate.costs)[stashes.stage]), ship_target(policy)
        if row.remade:
            yield ("device", home, 0), count * self._forward_s(stashes)
        if row.hosted:
            seconds = count * cluster.node_groups[cluster.devices[home].node].host_link.occupation_s(size)
            yield from ((("host", cluster.host_links[home], way), seconds) for way in (0, 1))
        if target is None:
            return
        for source, sink in ((home, target), (target, home)):
            seconds = count * cluster.link(source, sink).occupation_s(size)
            if cluster.same_node(source, sink):
                yield ("link", source, sink), seconds
            else:
                yield ("out", source, 0), seconds
                yield ("in", sink, 0), seconds

    def _forward_s(self, stashes: _Stashes) -> float:
        speed = self.candidate.problem.cluster.devices[stashes.home].kind.speed
        return float(self.candidate.costs.forward_s[stashes.stage]) / speed

    def _change(self, unit: Unit, quarter: int, policy: str, device: int) -> Ints:
        """What a unit's home, or the device that its policy names, holds more when a quarter of its stashes has it."""
        key = (unit, quarter, policy, device)
        if key not in self._changes:
            stashes = self._stashes[unit]
            mine = stashes.turn == quarter
            away = device != stashes.home
            change = self._there if away else self._home
            self._changes[key] = change(stashes, stashes.made_s[mine], stashes.used_s[mine], policy)
        return self._changes[key]

    @cached_property
    def _changes(self) -> dict[tuple[Unit, int, str, int], Ints]:
        return {}

    def _home(self, stashes: _Stashes, made_s: Floats, used_s: Floats, policy: str) -> Ints:
        """Instead of a stash from forward to backward, what the row says from op to op.

        What goes and comes back is posted when the op in line before it has ended; nothing else is on its way.
        """
        row, home = stash_policy(policy), stashes.home
        size = int(row.moved_bytes(self.candidate.costs)[stashes.stage]) if row.leaves else 0
        seconds, latency_s = self._trip(home, policy, size)
        taken_s = used_s - self._forward_s(stashes) if row.remade else used_s
        needed_s = taken_s if row.taken_back is Kind.R else used_s
        at = {Kind.F: made_s, Kind.R: taken_s, Kind.B: used_s}
        at |= dict.fromkeys((Kind.OFFLOAD, Kind.SEND_S), made_s + seconds)
        at |= dict.fromkeys((Kind.FETCH, Kind.RECV_S), self._posted(home, needed_s - seconds - latency_s))
        change = np.zeros(len(self.times[home]), dtype=np.int64)
        for begin, end, held in row.held_bytes(self.candidate.costs):
            more = int(held[stashes.stage]) - stashes.size
            if more:
                change += more * self._during(home, at[begin], at[end])
        return change

    def _trip(self, home: int, policy: str, size: int) -> tuple[float, float]:
        """Seconds on the way, one way, and latency."""
        cluster, target = self.candidate.problem.cluster, ship_target(policy)
        if target is None:
            link = cluster.node_groups[cluster.devices[home].node].host_link
        else:
            link = cluster.link(home, target)
        return link.occupation_s(size), link.latency_s

    def _during(self, device: int, begin_s: Floats, end_s: Floats) -> Ints:
        """At every instant of a device, in how many of these intervals it lies, none where one ends as it begins."""
        times = self.times[device]
        last = np.searchsorted(times, end_s, "right") - 1
        first = np.minimum(np.searchsorted(times, begin_s, "right"), last)
        return self._count(device, first, last)

    def _count(self, device: int, first: Ints, last: Ints) -> Ints:
        length = len(self.times[device])
        change = np.bincount(first, minlength=length + 1) - np.bincount(last, minlength=length + 1)
        return np.asarray(np.cumsum(change)[:length], dtype=np.int64)

    def _there(self, stashes: _Stashes, made_s: Floats, used_s: Floats, policy: str) -> Ints:
        """Guests, from when their message is posted."""
        device = ship_target(policy)
        assert device is not None
        times = self.times[device]
        first = np.maximum(np.searchsorted(times, self._posted(device, made_s), "right") - 1, 0)
        return stashes.size * self._count(device, first, np.searchsorted(times, used_s, "left"))

    def _posted(self, device: int, when: Floats) -> Floats:
        """When something must be posted on a device to be there at these times: an op in line ends then."""
        jobs = self.timeline.jobs
        line = jobs.ops.working[jobs.ops.device[jobs.ops.working] == device]
        ends = np.concatenate([[0.0], jobs.end[line]])
        return np.asarray(ends[np.maximum(np.searchsorted(ends, when, "right") - 1, 0)])
