"""What happens to stashes under a given order: on every device the cheapest choices that fit its memory.

They are those of partition.stash_choice. Memory is what stages hold at the fullest instants of the order; tensors in
transit enter as two at each boundary, and the simulation has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Candidate, regroup, route, stash_policy, static_bytes
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

    Pipelines that share a device on some stage have the same choice there, since their micro-batches come by turns.
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
        at = device.choose(most_s)
        if at is None:
            return None
        found.update((unit, options[at[n]]) for unit, n in zip(instants[d].units, device.number, strict=True))
        worst = max(worst, device.seconds(at))
    return found, worst


def with_choices(candidate: Candidate, chosen: Mapping[Unit, StashChoice]) -> Candidate:
    """The candidate with a row of stash policies for every micro-batch."""
    rows: dict[int, tuple[str, ...]] = {}
    stages = range(len(candidate.stages))
    shared = _turns_on_shared(candidate)
    for p, pipeline in enumerate(candidate.pipelines):
        mine = [chosen.get((p, s), KEPT) for s in stages]
        four = [tuple(choice.of(turn) for choice in mine) for turn in TURNS]
        by_stage = [shared.get(at) for at in enumerate(pipeline.backward)]
        for k, m in enumerate(pipeline.micro_batches):
            row = four[k % QUARTERS]
            if any(by_stage):
                row = tuple(four[turn[m]][s] if turn else row[s] for s, turn in enumerate(by_stage))
            rows[m] = row
    return regroup(candidate.problem, candidate.stages, candidate.pipelines, rows, candidate.weights)


def _turns_on_shared(candidate: Candidate) -> dict[tuple[int, int], dict[int, int]]:
    """By stage and device that several pipelines share: how manieth of four every micro-batch there is."""
    taken: dict[tuple[int, int], list[Sequence[int]]] = {}
    for pipeline in candidate.pipelines:
        for at in enumerate(pipeline.backward):
            taken.setdefault(at, []).append(pipeline.micro_batches)
    several = {at: sorted(chain.from_iterable(lists)) for at, lists in taken.items() if len(lists) > 1}
    return {at: {m: k % QUARTERS for k, m in enumerate(ms)} for at, ms in several.items()}


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
    """One device's stages under every choice, and what they take when most is alive.

    Choices are given by their numbers among the options, one for each stage of the device: its units.

    Attributes:
        number: of every pipeline and stage of the order, its unit.
        options: every choice.
        room: bytes beside what stays all step.
        pending: bytes between I and W at every instant.
        held: bytes of every option, unit and instant. again: by option and unit, bytes that are made again, which are
            there for one backward.
        compute_s, copy_s, waiting_s: seconds of a step, by option and unit: what is computed, what the host link copies
            in one direction, and what is waited for copies.
    """

    number: list[int]
    options: list[StashChoice]
    room: int
    pending: Ints
    held: Ints
    again: Ints
    compute_s: Floats
    copy_s: Floats
    waiting_s: Floats

    @classmethod
    def of(cls, candidate: Candidate, options: list[StashChoice], device: int, full: Fullest, room: int) -> _Device:
        """The device of a candidate under an order, with `room` bytes beside what stays all step."""
        costs, cluster = candidate.costs, candidate.problem.cluster
        stage, number = np.unique([s for _, s in full.units], return_inverse=True)
        live, pending = (_summed(of, number, len(stage)) for of in (full.live, full.pending))
        kind = cluster.devices[device].kind
        group = cluster.node_groups[cluster.devices[device].node]
        transit = 2 * sum(
            size
            for producer, consumer, size in costs.edges
            if any((p.forward[producer] == device) != (p.forward[consumer] == device) for p in candidate.pipelines)
        )
        counts = _summed(
            np.array([[len(candidate.pipelines[p].micro_batches) for p, _ in full.units]]), number, len(stage)
        )[0]
        stash, forward_s, backward_s = costs.stash_bytes[stage], costs.forward_s[stage], costs.backward_s[stage]
        host_s = group.host_link_shared_by / group.host_link.bandwidth
        held, again, compute_s, copy_s, waiting_s = [], [], [], [], []
        for option in options:
            row, nothing = option.row, 0 * stash
            resting = sum((content.bytes(costs)[stage] for content in row.resting), start=nothing)
            moved = row.moved_bytes(costs)[stage] if row.leaves else nothing
            held.append(_held(option, live, stash, resting, moved))
            again.append(stash - resting - moved if row.remade else nothing)
            remade_s = option.share * row.remake_s(costs)[stage] if row.remade else 0.0
            compute_s.append(counts * (forward_s + backward_s + remade_s) / kind.speed)
            one_s = moved * host_s if row.hosted else 0.0 * forward_s
            copy_s.append(counts * option.share * one_s)
            late_s = option.waiting_s(one_s, forward_s / kind.speed, backward_s / kind.speed)
            waiting_s.append(counts * late_s / len(counts))  # other units run meanwhile
        return cls(
            number=number.tolist(),
            options=options,
            room=int(room - transit - costs.workspace_bytes[stage].max()),
            pending=np.asarray(pending @ costs.weight_stash_bytes[stage], dtype=np.int64),
            held=np.array(held),
            again=np.array(again),
            compute_s=np.array(compute_s),
            copy_s=np.array(copy_s),
            waiting_s=np.array(waiting_s),
        )

    @property
    def units(self) -> Ints:
        """Their numbers."""
        return np.arange(self.again.shape[1])

    def seconds(self, at: Ints) -> float:
        """What the device computes, or its host link copies in one direction, if that takes longer."""
        return float(max(self.compute_s[at, self.units].sum(), self.copy_s[at, self.units].sum()))

    def choose(self, most_s: float) -> Ints | None:
        """Choices under which the device holds its order: by turns what costs least time a byte; None without any.

        Nor where they take most_s seconds. Where no change saves on its own, since what one stage is rid of is there
        again for its backward, as with one micro-batch in flight, it is by what is alive between ops.
        """
        at, gone = np.zeros(len(self.units), dtype=np.int64), set[bytes]()
        while (held := self.alive(at)).most > self.room:
            if self.seconds(at) >= most_s:
                return None
            least = self._cheapest(at, held)
            gone.add(at.tobytes())
            if least is None or least.tobytes() in gone:
                return None
            at = least
        return self._eased(at)

    def alive(self, at: Ints) -> _Alive:
        """The most that is alive under these choices, and with one of them changed."""
        here = self.held[at, self.units]
        total = self.pending + here.sum(axis=0)
        resting = (total - here + self.held).max(axis=2, initial=0)
        again = self.again[at, self.units]
        others = np.array([np.delete(again, k).max(initial=0) for k in self.units])
        least = int(total.max(initial=0))
        return _Alive(least + int(again.max()), least, resting + np.maximum(others, self.again), resting)

    def prices(self, at: Ints) -> Floats:
        """What every single change adds to seconds, and to what is waited for copies where the device may hold few."""

        def changed(of: Floats) -> tuple[float, Floats]:
            here = of[at, self.units]
            return float(here.sum()), here.sum() + (of - here)

        (compute_s, computes), (copy_s, copies), (waiting_s, waits) = map(
            changed, (self.compute_s, self.copy_s, self.waiting_s)
        )
        return np.asarray(np.maximum(computes, copies) + waits - max(compute_s, copy_s) - waiting_s)

    def _cheapest(self, at: Ints, held: _Alive) -> Ints | None:
        """The choices with the change that costs least time for what it saves; None if none saves."""
        prices = self.prices(at)
        for saved in (held.most - held.others, held.resting - held.others_resting):
            if (saved > 0).any():
                price = np.where(saved > 0, prices / np.clip(saved, 1, held.most - self.room), math.inf)
                best = np.lexsort((-saved.T.ravel(), price.T.ravel()))[0]
                unit, option = divmod(int(best), len(self.options))
                return self._with(at, unit, option)
        return None

    @staticmethod
    def _with(at: Ints, unit: int, option: int) -> Ints:
        found = at.copy()
        found[unit] = option
        return found

    def _eased(self, at: Ints) -> Ints:
        """The choices with as little recomputation and as few copies as still fit, unit by unit."""
        for k in self.units.tolist():
            allowed = (self.alive(at).others[: at[k], k] <= self.room) & (self.prices(at)[: at[k], k] <= 0)
            if allowed.any():
                at = self._with(at, k, int(np.argmax(allowed)))
        return at


class _Alive(NamedTuple):
    """Bytes on a device when most is alive, with what is made again for a backward; resting: between ops.

    others, others_resting: the same with one choice changed, by option and unit.
    """

    most: int
    resting: int
    others: Ints
    others_resting: Ints


def _summed(columns: Ints, number: Ints, count: int) -> Ints:
    """Columns of the same number added up; [rows, count]."""
    return np.asarray(columns @ (number[:, None] == np.arange(count)).astype(np.int64))


def _held(choice: StashChoice, live: Ints, stash: Ints, resting: Ints, moved: Ints) -> Ints:
    """Bytes of every unit under a choice at every instant, at which so many of each are alive; [units, instants]."""
    alive = range(int(live.max(initial=0)) + 1)
    whole, moving = (np.array([f(n) for n in alive], dtype=np.int64) for f in (choice.kept, choice.moving))
    return np.asarray((whole[live] * stash + (live - whole[live]) * resting + moving[live] * moved).T)
