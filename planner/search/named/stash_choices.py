"""What happens to stashes under a given order: on every device the cheapest choices that fit its memory.

They are those of partition.mixed. Memory is what stages hold at the fullest instants of the order; tensors in transit
enter as two at each boundary, and the simulation has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...graph import KEEP, OFFLOAD, RECOMPUTE, Candidate, regroup, route, stash_policy, static_bytes
from ...partition import AWAY, QUARTERS, choices, kept
from ...plan import Kind, Op
from ..common import limits
from .fullest import Fullest, Ints, Unit, fullest

TURNS = (0, 2, 1, 3)
"""In which order micro-batches of four join those that are recomputed: they take turns."""


def lightened(
    candidate: Candidate,
    orders: Sequence[Sequence[Op]],
    policies: Collection[str],
    less: Sequence[int],
    most_s: float = math.inf,
) -> tuple[dict[Unit, int], float] | None:
    """The choice for every unit of a candidate under these compute orders, and the seconds of its busiest device.

    None where some device does not hold what the order needs in less than most_s. `less`: bytes taken off every
    device's limit.
    """
    options = choices(policies)
    found: dict[Unit, int] = {}
    worst = 0.0
    static = [sum(parts.values()) for parts in static_bytes(candidate, candidate.costs)]
    instants = fullest(orders, candidate.pipelines, len(candidate.stages))
    for d, limit in enumerate(limits(candidate.problem)):
        if not orders[d]:
            continue
        device = _Device.of(candidate, d, instants[d], limit - static[d] - less[d])
        chosen = device.choose(options, most_s)
        if chosen is None:
            return None
        found.update(zip(device.full.units, chosen, strict=True))
        worst = max(worst, device.seconds(chosen))
    return found, worst


def with_choices(candidate: Candidate, chosen: Mapping[Unit, int]) -> Candidate:
    """The candidate with a row of stash policies for every micro-batch."""
    rows: dict[int, tuple[str, ...]] = {}
    stages = range(len(candidate.stages))
    for p, pipeline in enumerate(candidate.pipelines):
        four = [tuple(_policy(chosen.get((p, s), 0), turn) for s in stages) for turn in TURNS]
        rows.update((m, four[k % QUARTERS]) for k, m in enumerate(pipeline.micro_batches))
    return regroup(candidate.problem, candidate.stages, candidate.pipelines, rows)


def _policy(choice: int, turn: int) -> str:
    if not 0 <= choice <= AWAY:
        raise KeyError(choice)
    return OFFLOAD if choice == AWAY else RECOMPUTE if turn < choice else KEEP


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


@dataclass(frozen=True)
class _Device:
    """One device's units, and what they take when most is alive.

    counts: micro-batches a step. Bytes of a stash, of what is left between I and W, and of what recomputation keeps;
    seconds of forward and backward, of forward, and of a copy to the host.
    """

    full: Fullest
    room: int
    counts: Ints
    stash: Ints
    later: Ints
    entering: Ints
    work_s: NDArray[np.float64]
    forward_s: NDArray[np.float64]
    copy_s: NDArray[np.float64]

    @classmethod
    def of(cls, candidate: Candidate, device: int, full: Fullest, room: int) -> _Device:
        """The device of a candidate under an order, with `room` bytes beside what stays all step."""
        costs, cluster = candidate.costs, candidate.problem.cluster
        stage = np.array([s for _, s in full.units])
        kind = cluster.devices[device].kind
        group = cluster.node_groups[cluster.devices[device].node]
        host = group.host_link_shared_by / group.host_link.bandwidth
        transit = 2 * sum(
            size
            for producer, consumer, size in costs.edges
            for p in candidate.pipelines
            if (p.forward[producer] == device) != (p.forward[consumer] == device)
        )
        return cls(
            full, int(room - transit - costs.workspace_bytes[stage].max()),
            np.array([len(candidate.pipelines[p].micro_batches) for p, _ in full.units]),
            costs.stash_bytes[stage], costs.weight_stash_bytes[stage], costs.incoming_bytes[stage],
            (costs.forward_s + costs.backward_s)[stage] / kind.speed, costs.forward_s[stage] / kind.speed,
            costs.stash_bytes[stage] * host,
        )  # fmt: skip

    @cached_property
    def _most_alive(self) -> int:
        """Up to so many micro-batches of a unit are alive."""
        return int(self.full.live.max(initial=0)) + 1

    @cached_property
    def _pending(self) -> Ints:
        """Bytes between I and W at every instant."""
        return np.asarray(self.full.pending @ self.later, dtype=np.int64)

    @cached_property
    def _held(self) -> list[list[Ints]]:
        """Bytes of every unit under every choice at every instant."""
        found = []
        for k in range(len(self.full.units)):
            live, choices = self.full.live[:, k], []
            for choice in range(AWAY + 1):
                whole = np.array([kept(n, choice) for n in range(self._most_alive)])[live]
                again = self.entering[k] if 0 < choice <= QUARTERS else 0
                choices.append(whole * self.stash[k] + (live - whole) * again)
            found.append(choices)
        return found

    def bytes(self, chosen: Sequence[int]) -> int:
        """The most that is alive under these choices."""
        total, again = self._pending.copy(), 0
        for k, choice in enumerate(chosen):
            total += self._held[k][choice]
            if 0 < choice <= QUARTERS:
                again = max(again, int(self.stash[k] - self.entering[k]))
        return int(total.max(initial=0)) + again

    def seconds(self, chosen: Sequence[int]) -> float:
        """What the device computes, or its host link copies in one direction, if that takes longer."""
        choice = np.array(chosen)
        remade = np.where(choice <= QUARTERS, choice / QUARTERS, 0.0) * self.forward_s
        copies = self.counts @ np.where(choice == AWAY, self.copy_s, 0.0)
        return float(max(self.counts @ (self.work_s + remade), copies))

    def choose(self, options: Sequence[int], most_s: float) -> list[int] | None:
        """Choices under which the device holds its order: by turns what costs least time a byte; None without any.

        Nor where they take most_s seconds.
        """
        chosen = [0] * len(self.full.units)
        held = self.bytes(chosen)
        while held > self.room:
            before, best = self.seconds(chosen), None
            if before >= most_s:
                return None
            for k, choice in self._changes(chosen, options):
                other = [*chosen[:k], choice, *chosen[k + 1 :]]
                saved = held - self.bytes(other)
                if saved > 0:
                    price = ((self.seconds(other) - before) / min(saved, held - self.room), -saved)
                    best = min(best or (price, other), (price, other))
            if best is None:
                return None
            chosen = best[1]
            held = self.bytes(chosen)
        return self._eased(chosen)

    def _changes(self, chosen: Sequence[int], options: Sequence[int]) -> list[tuple[int, int]]:
        return [(k, choice) for k, old in enumerate(chosen) for choice in options if choice > old]

    def _eased(self, chosen: list[int]) -> list[int]:
        """The choices with as little recomputation and as few copies as still fit, unit by unit."""
        for k, old in enumerate(chosen):
            for choice in range(old):
                other = [*chosen[:k], choice, *chosen[k + 1 :]]
                if self.bytes(other) <= self.room and self.seconds(other) <= self.seconds(chosen):
                    chosen = other
                    break
        return chosen
