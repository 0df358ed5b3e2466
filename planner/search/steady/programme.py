"""The dynamic programme: can the layers run on these devices with a period of T seconds a micro-batch?

In steady state device k alternates F(i + w_k - 1) and B(i). A schedule that repeats every T seconds has start times
F_k + iT and B_k + iT; what matters of it is the round trip R_k = B_k's end - F_k's start. Messages and the next stage
ask for R_k >= f + there + R_(k+1) + back + b; the device's order asks for (w_k - 1)T + f + b <= R_k <= w_k T less what
else runs between B and F, which are the times that leave no two ops of the device at one time. So R_k is the least such
value above what the next stage asks for, w_k follows from it, and a smaller R is never worse for the stages before: one
number a (stage, first layer) is all that has to be remembered, and memory, host link and staleness decide which
intervals are allowed. What is feasible at T is feasible at every longer period: scale the start times.

Where an update takes several micro-batches, its STEP delays some of them only; the average over an update obeys the
same inequalities with the STEP's share of them, so they still bound the period.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...basics import PlanError, check_time
from ...graph import KEEP, OFFLOAD, OFFLOAD_WEIGHTS, RECOMPUTE, StashPolicy, stash_policy
from ...partition import QUARTERS
from ..common import HOPE, SECONDS, TOLERANCE
from ..named import TURNS
from .pairs import Pairs, pairs_of, pairs_within
from .rules import Flags, Rules
from .tables import Floats, Intervals, StageTables

PARTS = frozenset({RECOMPUTE, OFFLOAD})
"""What a part of a stage's micro-batches may have while the others are kept."""


@dataclass(frozen=True)
class Margin:
    """What is added to lower estimates so that the plan that is built has room.

    spare: bytes left free at every place. steps: share of an update's STEP that every micro-batch leaves time for.
    shared: whether a host link that devices share gives each its part only.
    """

    spare: tuple[int, ...] = ()
    steps: float = 0.0
    shared: bool = False


@dataclass(frozen=True)
class Stage:
    """A stage of a solution: layers first..end-1, its stash policy, and its micro-batches in flight.

    quarters: of the micro-batches whose stashes have the policy; the others are kept.
    """

    first: int
    end: int
    stash: str
    in_flight: int
    quarters: int = QUARTERS

    def policy(self, count: int) -> str:
        """Of the stash of the `count`th micro-batch that its device takes, from 0 on."""
        return self.stash if TURNS[count % QUARTERS] < self.quarters else KEEP


class Choice(NamedTuple):
    """What may happen to the stashes of a stage: a policy for so many quarters of the micro-batches."""

    stash: str
    quarters: int

    @property
    def row(self) -> StashPolicy:
        """What the policy does."""
        return stash_policy(self.stash)

    @property
    def share(self) -> float:
        """The part of the micro-batches whose stashes have the policy."""
        return self.quarters / QUARTERS

    def again(self, c: Pairs) -> Floats:
        """Seconds of recomputing, of an average micro-batch."""
        return np.asarray((self.share if self.row.remade else 0.0) * c.forward, dtype=np.float64)

    def copied(self, c: Pairs) -> Floats:
        """Seconds of an average micro-batch on the host link, one way."""
        return np.asarray(self.share * c.copied(self.stash), dtype=np.float64)

    def kept(self, in_flight: Floats) -> Floats:
        """Most stashes that are kept of so many micro-batches in a row; some such row begins with one that is kept."""
        if self.quarters == QUARTERS:
            return np.zeros_like(in_flight)
        most = _KEPT[self.quarters]
        whole, rest = np.divmod(np.where(np.isfinite(in_flight), in_flight, 0.0), QUARTERS)
        return np.asarray(whole * most[-1] + most[rest.astype(np.int64)], dtype=np.float64)


def _most_kept(quarters: int) -> Floats:
    """Most of 0, 1, .. QUARTERS micro-batches in a row whose stash is kept where so many quarters are not."""
    kept = [turn >= quarters for turn in TURNS * 2]
    return np.array([max(sum(kept[a : a + n]) for a in range(QUARTERS)) for n in range(QUARTERS + 1)], dtype=np.float64)


_KEPT = [_most_kept(quarters) for quarters in range(QUARTERS + 1)]


@dataclass(frozen=True)
class _Best:
    """Of one place, by first layer: the least round trip, and the end, stash policy and number in flight it takes."""

    trip: Floats
    stage: dict[int, Stage]


class Programme:
    """The programme of a pipeline with a stage on each of these places.

    stashes: policies allowed, the first preferred. most: micro-batches in flight at the most. quarters: of the
    micro-batches that may be recomputed while the others are kept. last_gradient: bytes of the last update's gradients
    that predictions need, a byte of parameters.
    """

    def __init__(
        self,
        intervals: Intervals,
        places: Sequence[StageTables],
        rules: Rules,
        stashes: Sequence[str],
        most: int,
        margin: Margin = Margin(),
        quarters: Sequence[int] = (QUARTERS,),
    ) -> None:
        self.intervals, self.places, self.rules = intervals, places, rules
        self.stashes, self.most, self.margin = tuple(stashes), most, margin
        for stash in self.stashes:
            if stash not in (KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_WEIGHTS):
                raise PlanError(f"the search without a flush knows no stash policy {stash!r}")
        self.choices = [
            Choice(stash, n) for stash in self.stashes for n in (quarters if stash in PARTS else (QUARTERS,))
        ]
        workload = intervals.chain.problem.workload
        needed = rules.policy.predicts and workload.keeps_gradient(rules.policy.momentum_first)
        self.last_gradient = workload.gradient_bytes(1) if needed else 0
        self._pairs: dict[int, tuple[float, Pairs]] = {}

    @cached_property
    def serial_s(self) -> float:
        """A period in seconds at which one micro-batch at a time runs whatever the cuts are."""
        c, total = self.intervals, 0.0
        for place in self.places:
            each = 2 * place.forward + place.backward + place.step + 2 * place.predict + place.reduce
            total += float(each[0, -1]) + place.reduce_latency + float(place.there_and_back.max())
            total += float(place.links.max())
            if OFFLOAD in self.stashes:
                copies = float((place.copy + place.copy_weights)[0, -1])
                total += 2 * place.host_share * (copies + place.copy_latency)
        return max(total, SECONDS.shortest) * (1 + c.size * TOLERANCE.sums)

    @cached_property
    def floor_s(self) -> float:
        """No period is shorter: all work over all devices' speed, and the longest layer on the fastest."""
        work = np.array([(place.forward + place.backward)[0, -1] for place in self.places])
        with np.errstate(divide="ignore"):
            shared = float(1 / (1 / work).sum())
        layers = min(float(np.diagonal(place.forward + place.backward, 1).max()) for place in self.places)
        return max(layers, shared) * (1 - TOLERANCE.sums)

    def solve(self, period: float) -> tuple[Stage, ...] | None:
        """Stages with a schedule of this period in seconds, as far as the estimates tell; None where there are none.

        Where all stages keep copies for the first one's staleness, which follows from what they keep: the least that
        agrees with itself. More copies never make it smaller.
        """
        rules = self.rules.at_entry(0)
        while True:
            with np.errstate(all="ignore"):
                stages = self._stages(period, rules)
            if stages is None or not rules.from_entry:
                return stages
            late = self.intervals.late[stages[0].first, stages[0].end]
            needed = int(rules.staleness(np.array(float(stages[0].in_flight)), late))
            if needed <= rules.entry:
                return stages
            rules = rules.at_entry(needed)

    def _stages(self, period: float, rules: Rules) -> tuple[Stage, ...] | None:
        behind: list[_Best] = []
        trip = np.full(self.intervals.size, np.inf)
        trip[-1] = 0.0
        for k in reversed(range(len(self.places))):
            best = self._at(k, period, trip, rules)
            trip = best.trip
            behind.append(best)
            if not np.isfinite(trip).any():
                return None
        found, first = [], 0
        for best in reversed(behind):
            if first not in best.stage:
                return None
            found.append(best.stage[first])
            first = found[-1].end
        return tuple(found)

    def _at(self, k: int, period: float, after: Floats, rules: Rules) -> _Best:
        """The best of every first layer at place k; `after`: least round trips of the next place."""
        check_time()
        pairs = self._within(k, period)
        trips, flights = [np.full(len(pairs), np.inf)], [np.full(len(pairs), np.inf)]
        for choice in self.choices:
            trip, in_flight = self._trips(k, pairs, period, after, choice, rules)
            trips.append(trip)
            flights.append(in_flight)
        every, flying = np.stack(trips[1:]), np.stack(flights[1:])
        # in front of the first stage only what it holds matters
        sought = flying if k == 0 else every
        stash = sought.argmin(axis=0)
        value = sought.min(axis=0)
        chosen = pairs.least(value)
        trip, found = np.full(self.intervals.size, np.inf), dict[int, Stage]()
        for n in chosen.tolist():
            first, which = int(pairs.first[n]), int(stash[n])
            trip[first] = every[which, n]
            choice = self.choices[which]
            found[first] = Stage(first, int(pairs.end[n]), choice.stash, int(flying[which, n]), choice.quarters)
        return _Best(trip, found)

    def _within(self, k: int, period: float) -> Pairs:
        """Intervals that may be the stage at place k at this period, some more perhaps."""
        known = self._pairs.get(k)
        if known is None or not known[0] * HOPE.narrower <= period <= known[0]:
            known = period, pairs_within(self.intervals, self.places[k], k, len(self.places), period)
            self._pairs[k] = known
        return known[1]

    def _trips(
        self, k: int, c: Pairs, period: float, after: Floats, stash: Choice, rules: Rules
    ) -> tuple[Floats, Floats]:
        """Least round trips and numbers in flight of every interval; infinite where it is not allowed."""
        asked = self._asked(c, after, stash)
        least = np.maximum(np.ceil(asked / period), 1.0)
        trip, in_flight = np.full(len(c), np.inf), np.full(len(c), np.inf)
        possible = np.isfinite(asked) & (self._busy(c, stash) <= period)
        for more in (1.0, 0.0):
            flying = least + more
            here = self._trip(k, c, period, asked, stash, flying, rules)
            good = possible & np.isfinite(here) & (flying <= self.most)
            good &= self._allowed(k, c, period, stash, flying, rules)
            trip, in_flight = np.where(good, here, trip), np.where(good, flying, in_flight)
        return trip, in_flight

    def _trip(
        self, k: int, c: Pairs, period: float, asked: Floats, stash: Choice, flying: Floats, rules: Rules
    ) -> Floats:  # fmt: skip
        """Least round trips with so many in flight; infinite where the device has no time for them."""
        predicted = c.predict if rules.predicts_backward(k) else 0.0
        step = np.maximum(1 / rules.update, self.margin.steps) * c.step
        inside = c.work + stash.again(c) + predicted + np.where(c.late, step, 0.0)
        between = np.where(c.late, 0.0, step) + rules.predicted_share(k, flying, c.late) * c.predict
        here = np.maximum(asked, (flying - 1) * period + inside)
        return np.where(here <= flying * period - between, here, np.inf)

    def allows(self, stages: Sequence[Stage], period: float) -> bool:
        """Whether a plan of exactly these stages may have this period in seconds, as far as lower estimates tell."""
        rules, after = self.rules.at_entry(0), 0.0
        with np.errstate(all="ignore"):
            for k in reversed(range(len(stages))):
                stage, choice = stages[k], Choice(stages[k].stash, stages[k].quarters)
                c = pairs_of(self.intervals, self.places[k], k, np.array([stage.first]), np.array([stage.end]))
                behind, flying = np.full(self.intervals.size, after), np.array([float(stage.in_flight)])
                trip = self._trip(k, c, period, self._asked(c, behind, choice), choice, flying, rules)
                good = np.isfinite(trip) & (self._busy(c, choice) <= period)
                if not (good & self._allowed(k, c, period, choice, flying, rules))[0]:
                    return False
                after = float(trip[0])
        return True

    def _asked(self, c: Pairs, after: Floats, stash: Choice) -> Floats:
        """Seconds that a micro-batch is away at the least: through the stages behind, or to the host and back."""
        behind = after[c.end]
        if c.place.last:
            asked = c.work + behind + stash.again(c)
        else:
            asked = c.work + np.where(np.isinf(behind) | c.waits, behind + c.there_and_back, 0.0)
        if stash.row.hosted:
            away = np.maximum(asked, c.work + 2 * (c.copied(stash.stash) + c.place.copy_latency))
            asked = np.where(np.isfinite(asked), (1 - stash.share) * asked, 0.0) + stash.share * away
        return np.asarray(asked, dtype=np.float64)

    def _busy(self, c: Pairs, stash: Choice) -> Floats:
        """Seconds a micro-batch on links, on the host link, and from an update's first backward to the next one's."""
        found = np.maximum(c.links, stash.copied(c) * (c.place.host_share if self.margin.shared else 1.0))
        if not self.rules.reduced:
            return found
        update = self.rules.update
        waiting = c.reduce + np.where(c.reduce > 0, c.place.reduce_latency, 0.0) + c.step
        between = (update - 1) * (c.forward + stash.again(c)) + waiting
        return np.maximum(found, c.backward + between / update)

    def _allowed(self, k: int, c: Pairs, period: float, stash: Choice, in_flight: Floats, rules: Rules) -> Flags:
        """Whether so many in flight are allowed, and fit the device as far as lower estimates tell."""
        allowed = rules.allowed(in_flight, c.late, k == 0)
        return np.asarray(allowed & (self._bytes(k, c, period, stash, in_flight, rules) <= c.place.limit))

    def _bytes(self, k: int, c: Pairs, period: float, stash: Choice, in_flight: Floats, rules: Rules) -> Floats:
        """Memory at the forward or the backward that needs more: stashes, weights, tensors sent and received."""
        row = stash.row
        copies = np.zeros_like(in_flight) if row.versioned else rules.copies(in_flight, c.late)
        ahead = rules.predicted_share(k, in_flight, c.late) > 0
        at_forward = c.behind + c.held * (np.maximum(copies - 1, 0.0) + ahead)
        at_backward = c.before + c.behind + c.held * (copies + rules.predicts_backward(k))
        fixed = c.fixed + self.last_gradient * ahead * c.held
        if not row.ops:
            peak = in_flight * c.stash + np.maximum(at_forward, at_backward)
        elif row.remade:
            kept, others = stash.kept(in_flight), stash.kept(in_flight - 1)
            before = kept * c.stash + (in_flight - kept) * c.incoming
            during = (1 + others) * c.stash + (in_flight - 1 - others) * c.incoming
            any_kept = at_backward if stash.quarters < QUARTERS else at_forward
            peak = np.maximum(before + np.maximum(at_forward, any_kept), during + at_backward)
        elif row.hosted:
            # a version that comes back is on the device besides the newest during the backward
            back = c.held if row.versioned else 0.0
            passing = np.maximum(at_forward, at_backward + back) + (1 + stash.kept(in_flight - 1)) * c.stash
            peak = np.maximum(passing, self._resting(c, period, stash, in_flight, rules))
        else:
            raise PlanError(f"search without a flush: no bytes for stash policy {stash.stash!r}")
        return np.asarray(fixed + peak + (self.margin.spare[k] if self.margin.spare else 0), dtype=np.float64)

    def _resting(self, c: Pairs, period: float, stash: Choice, in_flight: Floats, rules: Rules) -> Floats:
        """Bytes, but for what is fixed, when most stashes are there.

        One that goes to the host is on the device during F and its copy out, and during its copy in and B: as many as
        that time holds periods, rounded up, are there at some instant. Of those that are kept, the part of what is
        in flight between a backward and the next forward. No op need run then.
        """
        there = c.work + 2 * c.copied(stash.stash) + c.place.copy_latency
        present = stash.share * there / period + (1 - stash.share) * np.maximum(in_flight - 1, 0.0)
        count = np.ceil(present * (1 - TOLERANCE.same))
        versions: Floats | float = 0.0
        if rules.policy.stashed and stash.stash == OFFLOAD:
            versions = np.maximum(rules.lag(in_flight, c.late) // rules.update - 1, 0.0)
        return np.asarray(count * c.stash - c.workspace + c.held * versions, dtype=np.float64)
