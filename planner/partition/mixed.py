"""Cuts for orders that do not fit with every stash kept: every stage gets the cheapest stash choice that fits."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from ..basics import PerCall
from ..graph import INCOMING, REST, STASH, Content, StashPolicy
from .chain import Chain, Cuts, Floats, _cheapest, bottleneck, link_seconds, trace
from .stash_choice import StashChoice, choices


def cut_mixed(
    chain: Chain,
    devices: Sequence[int],
    in_flight: Sequence[int],
    policies: Collection[str],
    less: Sequence[int] = (),
    more: Sequence[Floats] = (),
) -> Cuts | None:
    """The contiguous cut with the smallest bottleneck, each stage under the cheapest choice that fits, or None.

    As `chain.cut`, where a stage's seconds contain what it recomputes, and are not less than what its copies take on
    the host link; of equal cuts, that with the least sum of seconds. `less`: bytes taken off every device's limit;
    `more`: bytes that every interval of layers holds beside, as each stage.
    """
    size = len(chain) + 1
    if len(devices) >= size:
        return None
    statics = [chain.bytes(0) + (more[s] if len(more) else 0) for s in range(len(devices))]
    tables = list(_tables(chain, devices, in_flight, choices(policies), less, statics))
    worst = bottleneck(iter(tables), size)[0]
    if math.isinf(worst):
        return None
    allowed = worst * (1 + 1e-12)
    return trace(_cheapest((np.where(t <= allowed, t, np.inf) for t in tables), size)[1], size - 1)


def _tables(
    chain: Chain,
    devices: Sequence[int],
    in_flight: Sequence[int],
    options: Sequence[StashChoice],
    less: Sequence[int],
    statics: Sequence[Floats],
) -> Iterator[Floats]:
    """Per stage, the seconds of every interval of layers under its cheapest choice; infinite where none fits."""
    priced = {
        choice.policy: _prices.get(chain, choice.policy, partial(_Priced, chain, choice.row)) for choice in options
    }
    for s, (device, static) in enumerate(zip(devices, statics, strict=True)):
        room = chain.limit(device) - (less[device] if len(less) else 0) - static
        best = np.full_like(static, np.inf)
        for choice in options:
            fits = priced[choice.policy].bytes(choice, in_flight[s]) <= room
            best = np.minimum(best, np.where(fits, priced[choice.policy].seconds(choice, device), np.inf))
        yield np.maximum(best, link_seconds(chain, devices, s)[0][:, None])


class _Priced:
    """What a policy holds and takes, of every interval of layers as a stage."""

    def __init__(self, chain: Chain, row: StashPolicy) -> None:
        self.chain, self.work = chain, chain.seconds
        self.stash, self.resting = self._bytes([STASH]), self._bytes(row.resting)
        self.moved = self._bytes(row.moved if row.leaves else ())
        self.forward = _intervals(chain.costs.forward_s) + chain.around_s
        self.again = _intervals(row.remake_s(chain.costs)) + chain.around_s

    def _bytes(self, contents: Iterable[Content]) -> Floats:
        chain = self.chain
        found = _intervals(np.zeros(len(chain)))
        for content in contents:
            of_layers = chain.costs.input_bytes if content is INCOMING else content.bytes(chain.costs)
            found = found + _intervals(of_layers.astype(float))
            if content in (STASH, REST):
                found = found - chain.stash.inside
            if content is INCOMING:
                found = found + chain.boundary_bytes[:, None]
        return found

    def bytes(self, choice: StashChoice, in_flight: int) -> Floats:
        """The most that is held with so many micro-batches in flight; where a stash is made again, one as well."""
        kept = choice.kept(in_flight)
        held = kept * self.stash + (in_flight - kept) * self.resting + choice.moving(in_flight) * self.moved
        if choice.row.partial:
            return held + self.stash - self.resting
        return held + self.stash if choice.row.remade else held

    def seconds(self, choice: StashChoice, device: int) -> Floats:
        """Seconds of a micro-batch, whether computing or copying takes longer, or both wait for each other."""
        speed = self.chain.speed(device)
        forward, seconds = self.forward / speed, self.work / speed
        if choice.row.remade:
            seconds = seconds + choice.share * self.again / speed
        if choice.row.hosted:
            copy_s = self.moved * host_seconds(self.chain, device)
            waiting = choice.waiting_s(copy_s, forward, self.work / speed - forward)
            seconds = np.maximum(seconds, choice.share * copy_s) + waiting
        return seconds


_prices: PerCall[_Priced] = PerCall()


def host_seconds(chain: Chain, device: int) -> float:
    """Seconds a byte of one device's share of its host link."""
    cluster = chain.problem.cluster
    group = cluster.node_groups[cluster.devices[device].node]
    return group.host_link_shared_by / group.host_link.bandwidth


def _intervals(values: Floats) -> Floats:
    """Sums over every interval [i, j) of layers; shape (L + 1, L + 1)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[None, :] - total[:, None])
