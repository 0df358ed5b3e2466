"""What happens to stashes under a given order: on every device the cheapest choices that fit its memory.

They are those of partition.stash_choice. Memory is what stages hold at the fullest instants of the order; tensors in
transit enter as two at each boundary, and the simulation has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...graph import Candidate, StashPolicy, regroup, route, stash_policy, static_bytes
from ...partition import KEPT, QUARTERS, StashChoice, choices
from ...plan import Kind, Op
from ..common import limits
from .fullest import Fullest, Ints, Unit, fullest

Floats = NDArray[np.float64]
TURNS = (0, 2, 1, 3)
"""In which order micro-batches of four join those that are not kept: they take turns."""


def lightened(
    candidate: Candidate,
    orders: Sequence[Sequence[Op]],
    policies: Collection[str],
    less: Sequence[int],
    most_s: float = math.inf,
    instants: Sequence[Fullest] | None = None,
) -> tuple[dict[Unit, StashChoice], float] | None:
    """The choice for every unit of a candidate under these compute orders, and the seconds of its busiest device.

    None where some device does not hold what the order needs in less than most_s. `less`: bytes taken off every
    device's limit. `instants`: the fullest of these orders, where they are known.
    """
    options = choices(policies)
    found: dict[Unit, StashChoice] = {}
    worst = 0.0
    static = [sum(parts.values()) for parts in static_bytes(candidate, candidate.costs)]
    instants = instants or fullest(orders, candidate.pipelines, len(candidate.stages))
    for d, limit in enumerate(limits(candidate.problem)):
        if not orders[d]:
            continue
        device = _Device.of(candidate, options, d, instants[d], limit - static[d] - less[d])
        chosen = device.choose(most_s)
        if chosen is None:
            return None
        found.update(zip(device.full.units, chosen, strict=True))
        worst = max(worst, device.seconds(chosen))
    return found, worst


def with_choices(candidate: Candidate, chosen: Mapping[Unit, StashChoice]) -> Candidate:
    """The candidate with a row of stash policies for every micro-batch."""
    rows: dict[int, tuple[str, ...]] = {}
    stages = range(len(candidate.stages))
    for p, pipeline in enumerate(candidate.pipelines):
        four = [tuple(chosen.get((p, s), KEPT).of(turn) for s in stages) for turn in TURNS]
        rows.update((m, four[k % QUARTERS]) for k, m in enumerate(pipeline.micro_batches))
    return regroup(candidate.problem, candidate.stages, candidate.pipelines, rows, candidate.weights)


def with_recomputation(candidate: Candidate, orders: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """Compute orders with a recomputation right before every backward whose stash is recomputed."""
    line, found = route(candidate), []
    for order in orders:
        mine: list[Op] = []
        for op in order:
            if op.kind in (Kind.B, Kind.I) and stash_policy(candidate.stash[line[op.micro_batch]][op.stage]).remade:
                mine.append(Op(Kind.R, op.stage, op.micro_batch))
            mine.append(op)
        found.append(mine)
    return found


@dataclass(frozen=True, eq=False)
class _Device:
    """One device's units, and what they take when most is alive.

    options: every choice. counts: micro-batches a step. Bytes of a stash and of what is left between I and W; seconds
    of forward and backward, of forward, and of a byte that is copied to the host.
    """

    candidate: Candidate
    options: list[StashChoice]
    full: Fullest
    room: int
    counts: Ints
    stage: Ints
    stash: Ints
    later: Ints
    work_s: Floats
    forward_s: Floats
    speed: float
    host_s: float

    @classmethod
    def of(cls, candidate: Candidate, options: list[StashChoice], device: int, full: Fullest, room: int) -> _Device:
        """The device of a candidate under an order, with `room` bytes beside what stays all step."""
        costs, cluster = candidate.costs, candidate.problem.cluster
        stage = np.array([s for _, s in full.units])
        kind = cluster.devices[device].kind
        group = cluster.node_groups[cluster.devices[device].node]
        transit = 2 * sum(
            size
            for producer, consumer, size in costs.edges
            if any((p.forward[producer] == device) != (p.forward[consumer] == device) for p in candidate.pipelines)
        )
        return cls(
            candidate=candidate,
            options=options,
            full=full,
            room=int(room - transit - costs.workspace_bytes[stage].max()),
            counts=np.array([len(candidate.pipelines[p].micro_batches) for p, _ in full.units]),
            stage=stage,
            stash=costs.stash_bytes[stage],
            later=costs.weight_stash_bytes[stage],
            work_s=(costs.forward_s + costs.backward_s)[stage] / kind.speed,
            forward_s=costs.forward_s[stage] / kind.speed,
            speed=kind.speed,
            host_s=group.host_link_shared_by / group.host_link.bandwidth,
        )

    @cached_property
    def _most_alive(self) -> int:
        """Up to so many micro-batches of a unit are alive."""
        return int(self.full.live.max(initial=0)) + 1

    @cached_property
    def _pending(self) -> Ints:
        """Bytes between I and W at every instant."""
        return np.asarray(self.full.pending @ self.later, dtype=np.int64)

    @cached_property
    def _known(self) -> dict[StashChoice, list[Ints]]:
        return {}

    def _held(self, choice: StashChoice) -> list[Ints]:
        """Bytes of every unit under a choice at every instant."""
        if choice not in self._known:
            alive = range(self._most_alive)
            whole, moving = (np.array([f(n) for n in alive], dtype=np.int64) for f in (choice.kept, choice.moving))
            resting, moved = self._bytes[choice.row]
            self._known[choice] = [
                whole[live] * self.stash[k] + (live - whole[live]) * resting[k] + moving[live] * moved[k]
                for k, live in enumerate(self.full.live.T)
            ]
        return self._known[choice]

    @cached_property
    def _bytes(self) -> dict[StashPolicy, tuple[Ints, Ints]]:
        """By policy, the bytes of every unit that stay on the device, and those that leave it."""
        costs, nothing = self.candidate.costs, 0 * self.stash
        rows = dict.fromkeys(choice.row for choice in self.options)
        return {
            row: (
                sum((content.bytes(costs)[self.stage] for content in row.resting), start=nothing),
                row.moved_bytes(costs)[self.stage] if row.leaves else nothing,
            )
            for row in rows
        }

    @cached_property
    def _remake_s(self) -> dict[StashPolicy, Floats]:
        """By policy that makes stashes again, the seconds that it takes of every unit."""
        rows = dict.fromkeys(choice.row for choice in self.options if choice.row.remade)
        return {row: row.remake_s(self.candidate.costs)[self.stage] / self.speed for row in rows}

    def bytes(self, chosen: Sequence[StashChoice]) -> int:
        """The most that is alive under these choices."""
        return self._at_rest(chosen) + self._made_again(chosen)

    def _at_rest(self, chosen: Sequence[StashChoice]) -> int:
        """The most that is alive between ops."""
        total = self._pending.copy()
        for k, choice in enumerate(chosen):
            total += self._held(choice)[k]
        return int(total.max(initial=0))

    def _made_again(self, chosen: Sequence[StashChoice]) -> int:
        """The largest part of a stash that is made again, which is there for one backward."""
        remade = ((k, self._bytes[choice.row]) for k, choice in enumerate(chosen) if choice.row.remade)
        return max((int(self.stash[k] - resting[k] - moved[k]) for k, (resting, moved) in remade), default=0)

    def seconds(self, chosen: Sequence[StashChoice]) -> float:
        """What the device computes, or its host link copies in one direction, if that takes longer."""
        remade = np.array([c.share * self._remake_s[c.row][k] if c.row.remade else 0.0 for k, c in enumerate(chosen)])
        return float(max(self.counts @ (self.work_s + remade), self.counts @ self._copy_s(chosen)))

    def _copy_s(self, chosen: Sequence[StashChoice]) -> Floats:
        """Seconds that a micro-batch of every unit takes of the host link in one direction, on average."""
        bytes_out = [c.share * self._bytes[c.row][1][k] if c.row.hosted else 0.0 for k, c in enumerate(chosen)]
        return np.array(bytes_out) * self.host_s

    def price(self, chosen: Sequence[StashChoice]) -> float:
        """The same, and what the device may wait for copies where it may hold few: other units run meanwhile."""
        return self.seconds(chosen) + sum(self._waiting_s(k, choice) for k, choice in enumerate(chosen))

    def _waiting_s(self, unit: int, choice: StashChoice) -> float:
        if not choice.row.hosted:
            return 0.0
        copy_s = self._bytes[choice.row][1][unit] * self.host_s
        forward_s = self.forward_s[unit]
        waiting = choice.waiting_s(copy_s, forward_s, self.work_s[unit] - forward_s)
        return float(self.counts[unit] * waiting / len(self.counts))

    def choose(self, most_s: float) -> list[StashChoice] | None:
        """Choices under which the device holds its order: by turns what costs least time a byte; None without any.

        Nor where they take most_s seconds. Where no change saves on its own, since what one stage is rid of is there
        again for its backward, as with one micro-batch in flight, it is by what is alive between ops.
        """
        chosen, gone = [KEPT] * len(self.full.units), set[tuple[StashChoice, ...]]()
        while (held := self.bytes(chosen)) > self.room:
            if self.seconds(chosen) >= most_s:
                return None
            least = self._cheapest(chosen, held, self.bytes) or self._cheapest(chosen, held, self._at_rest)
            gone.add(tuple(chosen))
            if least is None or tuple(least) in gone:
                return None
            chosen = least
        return self._eased(chosen)

    def _cheapest(
        self, chosen: list[StashChoice], held: int, measure: Callable[[Sequence[StashChoice]], int]
    ) -> list[StashChoice] | None:
        """The choices with the change that costs least time for what it saves by this measure; None if none saves."""
        now, before, best = measure(chosen), self.price(chosen), None
        for k, choice in self._changes(chosen):
            other = [*chosen[:k], choice, *chosen[k + 1 :]]
            saved = now - measure(other)
            if saved > 0:
                price = ((self.price(other) - before) / min(saved, held - self.room), -saved)
                if best is None or price < best[0]:
                    best = (price, other)
        return None if best is None else best[1]

    def _changes(self, chosen: Sequence[StashChoice]) -> list[tuple[int, StashChoice]]:
        return [(k, choice) for k, old in enumerate(chosen) for choice in self.options if choice != old]

    def _eased(self, chosen: list[StashChoice]) -> list[StashChoice]:
        """The choices with as little recomputation and as few copies as still fit, unit by unit."""
        for k, old in enumerate(chosen):
            for choice in self.options[: self.options.index(old)]:
                other = [*chosen[:k], choice, *chosen[k + 1 :]]
                if self.bytes(other) <= self.room and self.price(other) <= self.price(chosen):
                    chosen = other
                    break
        return chosen
