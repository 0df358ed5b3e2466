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
from ...graph import KEEP, POLICIES, Candidate, Floats, Ints, StashPolicy, regroup, ship_target, stash_policy
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
    """So many more quarters of a unit's stashes that get a policy."""

    unit: Unit
    policy: str
    quarters: int


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
        self._left: dict[Unit, tuple[list[str], Ints]] = {}
        self._used: dict[tuple[Unit, str], list[tuple[Use, float]]] = {}
        self._changed: dict[tuple[Unit, str, int, tuple[float, float]], Ints] = {}
        self._held_by: dict[str, list[tuple[Kind, Kind, Ints]]] = {}
        self._moved_by: dict[str, Ints] = {}

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

    def choose_here(self, less: Sequence[int]) -> Quarters:
        """Then changes others that stay on their devices, until these hold so many bytes less."""
        self.policies = [row for row in self.policies if not row.leaves]
        self.room = [room - taken for room, taken in zip(self.room, less, strict=True)]
        self._left.clear()
        return self.choose()

    @property
    def short(self) -> bool:
        """Whether some device is still over its limit."""
        return any(self._over(d) > 0 for d in range(len(self.room)))

    def _over(self, device: int) -> int:
        return int(self.held[device].max(initial=0)) - self.room[device]

    def _take(self, step: _Step) -> None:
        stashes, done = self._stashes[step.unit], len(self.quarters.get(step.unit, ()))
        self.held[stashes.home] = self.held[stashes.home] + self._changes(step.unit, step.policy, stashes.home)[
            done : done + step.quarters
        ].sum(axis=0)
        target = ship_target(step.policy)
        if target is not None:
            self.held[target] = self._guests(step, target)
        self.quarters.setdefault(step.unit, []).extend([step.policy] * step.quarters)
        self._left.pop(step.unit, None)
        for key, seconds in self._uses(step.unit, step.policy):
            self.busy_s[key] = self.busy_s.get(key, 0.0) + step.quarters * seconds

    def _best(self, device: int, over: int) -> _Step | None:
        """What takes least time for what the device lacks; of equal ones, what leaves most room elsewhere."""
        tried = sorted(self._priced(device, over), key=lambda one: one[0])
        best: tuple[tuple[float, int, int], _Step] | None = None
        for price, saved, step in tried:
            if best is not None and price > best[0][0]:
                break
            room = self._room_there(step)
            if room >= 0 and (best is None or (price, -room, -saved) < best[0]):
                best = ((price, -room, -saved), step)
        return None if best is None else best[1]

    def _priced(self, device: int, over: int) -> Iterator[tuple[float, int, _Step]]:
        """So many more quarters of a unit of a device with a policy: seconds a byte that it lacks, and those bytes."""
        held, room = self.held[device], self.room[device]
        for unit in self._at[device]:
            policies, changes = self._more(unit)
            if not policies:
                continue
            peaks = (held + changes).max(axis=2).tolist()
            for policy, after in zip(policies, peaks, strict=True):
                uses = self._uses(unit, policy)
                for quarters, peak in enumerate(after, 1):
                    saved = over - max(0, peak - room)
                    if saved <= 0:
                        continue
                    late_s = [self._late_s(key, quarters * seconds) for key, seconds in uses]
                    if ship_target(policy) is not None and any(late_s):
                        break
                    busy_s = max(late + HOPE.hidden * quarters * use[1] for late, use in zip(late_s, uses, strict=True))
                    yield busy_s / saved, saved, _Step(unit, policy, quarters)

    def _room_there(self, step: _Step) -> int:
        """Bytes that the device has left whose guests the stashes are; negative where it cannot hold them."""
        target = ship_target(step.policy)
        return 0 if target is None else self.room[target] - int(self._guests(step, target).max(initial=0))

    def _guests(self, step: _Step, target: int) -> Ints:
        """What a device holds at every instant with these stashes."""
        done = len(self.quarters.get(step.unit, ()))
        more = self._changes(step.unit, step.policy, target)[done : done + step.quarters].sum(axis=0)
        return np.asarray(self.held[target] + more)

    def _more(self, unit: Unit) -> tuple[list[str], Ints]:
        """The policies for a unit, and what its home then holds more: by policy, quarters that have it, and instant."""
        if unit not in self._left:
            stashes, done = self._stashes[unit], len(self.quarters.get(unit, ()))
            texts = list(self._texts(unit)) if stashes.size and done < QUARTERS else []
            changes = [self._changes(unit, policy, stashes.home)[done:].cumsum(axis=0) for policy in texts]
            self._left[unit] = texts, np.array(changes, dtype=np.int64)
        return self._left[unit]

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

    @cached_property
    def _at(self) -> list[list[Unit]]:
        """The units of every device."""
        found: list[list[Unit]] = [[] for _ in self.room]
        for unit, stashes in self._stashes.items():
            found[stashes.home].append(unit)
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

    def _uses(self, unit: Unit, policy: str) -> list[tuple[Use, float]]:
        """Seconds that a quarter takes of everything that it uses."""
        key = (unit, policy)
        if key not in self._used:
            self._used[key] = list(self._quarter_uses(unit, policy))
        return self._used[key]

    def _quarter_uses(self, unit: Unit, policy: str) -> Iterator[tuple[Use, float]]:
        stashes, cluster, row = self._stashes[unit], self.candidate.problem.cluster, stash_policy(policy)
        home, count = stashes.home, len(stashes.turn) / QUARTERS
        size, target = int(self._moved(policy)[stashes.stage]), ship_target(policy)
        if row.remade:
            yield ("device", home, 0), count * self._remake_s(stashes, row)
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

    def _remake_s(self, stashes: _Stashes, row: StashPolicy) -> float:
        speed = self.candidate.problem.cluster.devices[stashes.home].kind.speed
        return float(row.remake_s(self.candidate.costs)[stashes.stage]) / speed

    def _changes(self, unit: Unit, policy: str, device: int) -> Ints:
        """What a unit's home, or the device that its policy names, holds more with each quarter of its stashes."""
        stashes = self._stashes[unit]
        size = self._moved(policy)[stashes.stage] if stash_policy(policy).leaves else 0
        trip = self._trip(stashes.home, policy, int(size)) if size else (0.0, 0.0)
        key = (unit, stash_policy(policy).name, device, trip)  # devices that are alike make no difference at home
        if key not in self._changed:
            there = device != stashes.home
            self._changed[key] = self._there(stashes, device) if there else self._home(stashes, policy, trip)
        return self._changed[key]

    def _home(self, stashes: _Stashes, policy: str, trip: tuple[float, float]) -> Ints:
        """Instead of a stash from forward to backward, what the row says from op to op.

        What goes and comes back is posted when the op in line before it has ended; nothing else is on its way.
        """
        row, home, (seconds, latency_s) = stash_policy(policy), stashes.home, trip
        made_s, used_s = stashes.made_s, stashes.used_s
        taken_s = used_s - self._remake_s(stashes, row) if row.remade else used_s
        needed_s = taken_s if row.taken_back is Kind.R else used_s
        at = {Kind.F: made_s, Kind.R: taken_s, Kind.B: used_s}
        at |= dict.fromkeys((Kind.OFFLOAD, Kind.SEND_S), made_s + seconds)
        at |= dict.fromkeys((Kind.FETCH, Kind.RECV_S), self._posted(home, needed_s - seconds - latency_s))
        change = np.zeros((QUARTERS, len(self.times[home])), dtype=np.int64)
        for begin, end, held in self._intervals(row.name):
            more = int(held[stashes.stage]) - stashes.size
            if more:
                change += more * self._during(home, stashes.turn, at[begin], at[end])
        return change

    def _intervals(self, name: str) -> list[tuple[Kind, Kind, Ints]]:
        if name not in self._held_by:
            self._held_by[name] = POLICIES[name].held_bytes(self.candidate.costs)
        return self._held_by[name]

    def _moved(self, policy: str) -> Ints:
        """Bytes of every stage that go away and come back."""
        name = stash_policy(policy).name
        if name not in self._moved_by:
            self._moved_by[name] = POLICIES[name].moved_bytes(self.candidate.costs)
        return self._moved_by[name]

    def _trip(self, home: int, policy: str, size: int) -> tuple[float, float]:
        """Seconds on the way, one way, and latency."""
        cluster, target = self.candidate.problem.cluster, ship_target(policy)
        if target is None:
            link = cluster.node_groups[cluster.devices[home].node].host_link
        else:
            link = cluster.link(home, target)
        return link.occupation_s(size), link.latency_s

    def _during(self, device: int, turn: Ints, begin_s: Floats, end_s: Floats) -> Ints:
        """By quarter and instant, in how many of these intervals it lies; none where one ends as it begins."""
        times = self.times[device]
        last = np.searchsorted(times, end_s, "right") - 1
        first = np.minimum(np.searchsorted(times, begin_s, "right"), last)
        return self._count(device, turn, first, last)

    def _count(self, device: int, turn: Ints, first: Ints, last: Ints) -> Ints:
        length = len(self.times[device]) + 1
        change = np.bincount(turn * length + first, minlength=QUARTERS * length)
        change -= np.bincount(turn * length + last, minlength=QUARTERS * length)
        return np.asarray(change.reshape(QUARTERS, length).cumsum(axis=1)[:, :-1], dtype=np.int64)

    def _there(self, stashes: _Stashes, device: int) -> Ints:
        """Guests, from when their message is posted."""
        times = self.times[device]
        first = np.maximum(np.searchsorted(times, self._posted(device, stashes.made_s), "right") - 1, 0)
        last = np.searchsorted(times, stashes.used_s, "left")
        return stashes.size * self._count(device, stashes.turn, first, last)

    def _posted(self, device: int, when: Floats) -> Floats:
        """When something must be posted on a device to be there at these times: an op in line ends then."""
        ends = self._ends[device]
        return np.asarray(ends[np.maximum(np.searchsorted(ends, when, "right") - 1, 0)])

    @cached_property
    def _ends(self) -> list[Floats]:
        """When the ops in line of every device end, and the beginning."""
        jobs = self.timeline.jobs
        working = jobs.ops.working
        home = jobs.ops.device[working]
        return [np.concatenate([[0.0], jobs.end[working[home == d]]]) for d in range(len(self.room))]
