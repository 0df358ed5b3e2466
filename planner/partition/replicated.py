"""Cutting a chain into stages with replicas of their own: PipeDream's recursion over devices and layers.

A stage of w replicas takes every w-th micro-batch on each of them, so w devices make it w times as fast (Narayanan et
al., PipeDream, SOSP 2019, section 3.1). Stages lie on neighbouring devices of an order; the last stage on its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..basics import check_time
from ..graph import StashPolicy, gather_seconds, sum_seconds
from .chain import Chain, Floats
from .mixed import _Priced
from .stash_choice import StashChoice

_MANY = 1 << 30
"""Bytes by which a price that is linear in bytes is asked."""


@dataclass(frozen=True)
class Block:
    """A stage: layers first..end-1, on the `width` devices of an order that begin at position `at`."""

    first: int
    end: int
    at: int
    width: int


Blocks = tuple[Block, ...]
Ints = NDArray[np.intp]


def cut_replicated(
    table: Callable[[int, int], Floats], size: int, devices: int, widths: Sequence[int], most: int
) -> dict[tuple[int, int], tuple[float, Blocks]]:
    """By number of stages, up to `most`, and of devices: the least maximum over stages of their cost, and such stages.

    table(at, width)[i, j]: cost of layers i..j-1 on the devices at..at+width-1; infinite where they may not be a stage.
    So a stage's cost may depend on how many devices are behind it, and on which it has. Devices left over are the first
    ones. Left out where it costs no less than with fewer devices.
    """
    known: dict[tuple[int, int], Floats] = {}
    best: dict[int, Floats] = {0: np.full(size, np.inf)}  # by devices that are used, from the end
    best[0][-1] = 0.0
    chosen: list[dict[int, tuple[Ints, Ints]]] = []
    found: dict[tuple[int, int], tuple[float, Blocks]] = {}
    for count in range(1, min(most, devices, size - 1) + 1):
        following: dict[int, Floats] = {}
        ways: dict[int, tuple[Ints, Ints]] = {}
        for used in range(count, devices + 1):
            check_time()
            value, end, width = np.full(size, np.inf), np.zeros(size, dtype=np.intp), np.zeros(size, dtype=np.intp)
            for w in widths:
                if w > used or used - w not in best:
                    continue
                if (used, w) not in known:
                    known[used, w] = table(devices - used, w)
                reached = np.maximum(known[used, w], best[used - w][None, :])
                choice = reached.argmin(axis=1)
                least = reached[np.arange(size), choice]
                better = least < value
                value[better], end[better], width[better] = least[better], choice[better], w
            if np.isfinite(value).any():
                following[used], ways[used] = value, (end, width)
        if not following:
            break
        best = following
        chosen.append(ways)
        least_s = math.inf
        for used, value in best.items():
            if value[0] < least_s:
                least_s = float(value[0])
                found[count, used] = least_s, _traced(chosen, used, devices, size - 1)
    return found


def _traced(chosen: Sequence[dict[int, tuple[Ints, Ints]]], used: int, devices: int, last: int) -> Blocks:
    """The stages behind the choices, those of all stages last."""
    found, first = [], 0
    for ways in reversed(chosen):
        end, width = ways[used]
        found.append(Block(first, int(end[first]), devices - used, int(width[first])))
        used, first = used - found[-1].width, found[-1].end
    assert (used, first) == (0, last)
    return tuple(found)


@dataclass(frozen=True)
class OnBlocks:
    """What intervals of layers cost on neighbouring devices of an order: matrices [i, j] of layers i..j-1.

    Where devices of a block differ, the slowest and the smallest count: every replica has as many micro-batches.
    """

    chain: Chain
    order: tuple[int, ...]

    @cached_property
    def forward_s(self) -> Floats:
        """Seconds of a forward at speed 1."""
        return _sums(self.chain.costs.forward_s) + self.chain.around_s

    @cached_property
    def backward_s(self) -> Floats:
        """Seconds of a whole backward at speed 1."""
        return _sums(self.chain.costs.backward_s) + self.chain.around_s

    @cached_property
    def own_bytes(self) -> Floats:
        """Bytes of trained parameters that no layer outside shares."""
        return _sums(self.chain.costs.own_trained_bytes.astype(float))

    def devices(self, at: int, width: int) -> tuple[int, ...]:
        """The devices of a block."""
        return self.order[at : at + width]

    def speed(self, at: int, width: int) -> float:
        """Of the slowest device."""
        return min(self.chain.speed(d) for d in self.devices(at, width))

    def limit(self, at: int, width: int) -> int:
        """Bytes that the smallest device may fill."""
        return min(self.chain.limit(d) for d in self.devices(at, width))

    def reduce_s(self, at: int, width: int) -> Floats:
        """Seconds of adding up the gradients of all replicas once, and of gathering sharded parameters."""
        problem = self.chain.problem
        devices = tuple(sorted(self.devices(at, width)))
        taken = sum_seconds(problem, devices, _MANY), gather_seconds(problem, devices, _MANY)
        rate, latency_s = map(sum, zip(*taken, strict=True))
        return np.where(self.own_bytes > 0, self.own_bytes / _MANY * rate + latency_s, 0.0)

    def step_s(self, at: int, width: int) -> Floats:
        """Seconds of the optimizer's step on the slowest device; of its part, where replicas share it."""
        parts = width if self.chain.problem.workload.sharded else 1
        kinds = {self.chain.problem.cluster.devices[d].kind: d for d in self.devices(at, width)}
        steps = [self.chain.step_s(d) for d in kinds.values()]
        return np.asarray(np.max([step[None, :] - step[:, None] for step in steps], axis=0) / parts)

    def links_s(self, at: int, width: int) -> Floats:
        """Seconds a micro-batch on the busiest way into or out of a device: between nodes both ends share its NIC."""
        cluster, crossing = self.chain.problem.cluster, self.chain.boundary_bytes
        nic, inside = np.zeros_like(self.own_bytes), np.zeros_like(self.own_bytes)
        for here, other in ((at, at - 1), (at + width - 1, at + width)):
            if not 0 <= other < len(self.order):
                continue
            a, b = self.order[here], self.order[other]
            seconds = crossing / min(cluster.link(a, b).bandwidth, cluster.link(b, a).bandwidth)
            side = seconds[:, None] if other < here else seconds[None, :]
            if cluster.same_node(a, b):
                inside = np.maximum(inside, side)
            else:
                nic = nic + side
        return np.maximum(nic, inside)

    def busy_s(self, at: int, width: int, in_flight: int, options: Sequence[StashChoice], more: Floats) -> Floats:
        """Seconds of a micro-batch on its replica under the cheapest stash choice that fits; infinite where none does.

        in_flight: micro-batches between forward and backward. more: bytes of every interval besides.
        """
        chain, found = self.chain, np.full_like(self.own_bytes, np.inf)
        room = self.limit(at, width) - chain.bytes(0, replicas=width) - more
        devices = {chain.problem.cluster.devices[d].kind: d for d in self.devices(at, width)}
        for choice in options:
            priced = self._priced(choice.row)
            fits = priced.bytes(choice, in_flight) <= room
            seconds = np.max([priced.seconds(choice, device) for device in devices.values()], axis=0)
            found = np.minimum(found, np.where(fits, seconds, np.inf))
        return found

    def stay_s(self) -> Floats:
        """Seconds between forward and backward of a micro-batch at the least, by first layer: what is behind it."""
        work = self.forward_s[:, -1:] + self.backward_s[:, -1:]
        return np.asarray(work / max(self.chain.speed(d) for d in self.order))

    def numbers_in_flight(self, at: int, width: int, most: int) -> list[int]:
        """Numbers in flight on a replica worth looking at: of the devices from it on, one more, and fewer."""
        full = -(-(len(self.order) - at) // width)
        return sorted({max(1, min(most, n)) for n in (full + 1, full, (full + 1) // 2, 1)})

    def _priced(self, row: StashPolicy) -> _Priced:
        if row not in self._prices:
            self._prices[row] = _Priced(self.chain, row)
        return self._prices[row]

    @cached_property
    def _prices(self) -> dict[StashPolicy, _Priced]:
        return {}


def _sums(values: Floats) -> Floats:
    before = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(before[None, :] - before[:, None], dtype=np.float64)


def in_flight(blocks: Blocks) -> list[int]:
    """Micro-batches in flight on every replica of each stage that keep all later devices busy: PipeDream's NOAM.

    As many as there are devices from the stage on, shared out over its replicas, rounded up.
    """
    behind, found = 0, []
    for block in reversed(blocks):
        behind += block.width
        found.append(-(-behind // block.width))
    return sloping(found[::-1], [block.width for block in blocks])


def sloping(flights: Sequence[int], widths: Sequence[int], whole: Sequence[bool] = ()) -> list[int]:
    """At least so many in flight that no stage waits in a circle: what a stage starts before its first backward comes.

    whole: by stage, whether the forward behind that backward must come too.
    """
    found = list(flights)
    for s in reversed(range(len(found) - 1)):
        ahead = found[s + 1] - (0 if whole and whole[s + 1] else 1)
        found[s] = max(found[s], ahead * widths[s + 1] // widths[s] + 1)
    return found


def deal(blocks: Blocks, order: Sequence[int], micro_batches: int) -> dict[tuple[int, ...], list[int]]:
    """Devices of the stages by micro-batch, dealt out round robin on every stage: routes with their micro-batches."""
    found: dict[tuple[int, ...], list[int]] = {}
    for m in range(micro_batches):
        found.setdefault(tuple(order[block.at + m % block.width] for block in blocks), []).append(m)
    return found
