"""Cuts for routes that visit devices repeatedly, or in both directions: all devices should be done at the same time.

A device is busy for the load of all its stages, after the first micro-batch has come to it. Whole layers rarely come
out even, so a good cut puts more where less has to be waited for. From the dynamic programme's cut of equal stages on,
boundaries are moved at random, one or two or a run of them, towards the least such sum on the worst device: first
downhill alone, then annealed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from ...partition import Chain, Cuts, cut
from .effort import COUNT, HOPE

Order = tuple[int, ...]


def balanced(chain: Chain, route: Order, twin: Order = ()) -> Cuts | None:
    """A cut for the stages of a route, and of one in the opposite direction with as many micro-batches if there is one.

    Of equal stages where every device has one of them. None where there are fewer layers than stages.
    """
    if (route, twin) not in chain.found:
        chain.found[route, twin] = _balanced(chain, route, twin)
    return chain.found[route, twin]


def _balanced(chain: Chain, route: Order, twin: Order) -> Cuts | None:
    start = cut(chain, route, [0] * len(route), buffers=0)
    if start is None or len(set(route)) == 1 or (not twin and len(set(route)) == len(route)):
        return start
    work, rng = _Work(chain, [route, twin] if twin else [route]), random.Random(len(route))
    now = best = [0, *start, len(chain)]
    load = work.load_of(now)
    cost = least = work.cost(now, load)
    for k in range(COUNT.balanced):
        left = 2 * (1 - k / COUNT.balanced)
        worse = HOPE.slack * rng.random() * left if left < 1 else 0.0
        ends, changed = _moved(now, rng)
        if not all(ends[at - 1] < ends[at] < ends[at + 1] for at in changed):  # a stage would be empty
            continue
        after = work.moved(load, now, ends, changed)
        other = work.cost(ends, after)
        if other <= cost * (1 + worse):
            now, load, cost = ends, after, other
            if cost < least:
                best, least = now, cost
    return tuple(best[1:-1])


def _moved(ends: Sequence[int], rng: random.Random) -> tuple[list[int], set[int]]:
    """One or two boundaries moved by a layer, or neighbours in one direction, and which.

    Neighbours that move together hand a layer on from a stage to one far from it, whatever lies between.
    """
    found, changed = list(ends), set()
    if rng.random() < HOPE.handed_on:
        first, last = sorted((rng.randrange(1, len(ends) - 1), rng.randrange(1, len(ends) - 1)))
        by = rng.choice((-1, 1))
        found[first : last + 1] = [end + by for end in found[first : last + 1]]
        return found, set(range(first, last + 1))
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(1, len(ends) - 1)
        found[at] += rng.choice((-1, 1))
        changed.add(at)
    return found, changed


class _Work:
    """What every device of these routes has to do for a cut."""

    def __init__(self, chain: Chain, routes: Sequence[Order]) -> None:
        devices = sorted(set(routes[0]))
        self.routes = [[(devices.index(d), 1 / chain.speed(d)) for d in route] for route in routes]
        self.devices = len(devices)
        self.each = chain.problem.workload.micro_batches / len(routes)
        self.load: list[float] = chain.load_s.tolist()
        self.forward = [0.0, *accumulate(chain.costs.forward_s.tolist())]
        speeds = sum(chain.speed(d) for d in devices)
        self.even, self.stage = HOPE.uneven / len(routes[0]), self.load[-1] / len(routes[0]) or 1.0
        self.mean = self.each * len(routes) * self.load[-1] / speeds or 1.0
        self.arrivals = [self._until_all(route) for route in self.routes]

    def _until_all(self, route: Sequence[tuple[int, float]]) -> list[tuple[int, float, bool]]:
        """A route until it has come to all devices: devices, paces, and whether it comes there for the first time."""
        known: set[int] = set()
        found = []
        for device, pace in route:
            found.append((device, pace, device not in known))
            known.add(device)
            if len(known) == self.devices:
                break
        return found

    def load_of(self, ends: Sequence[int]) -> list[float]:
        """Seconds of a micro-batch of each route on every device; then by how much stages differ from their mean."""
        found = [0.0] * self.devices
        for route in self.routes:
            for (device, pace), (a, b) in zip(route, pairwise(ends), strict=True):
                found[device] += (self.load[b] - self.load[a]) * pace
        return [*found, sum(abs(self.load[b] - self.load[a] - self.stage) for a, b in pairwise(ends))]

    def moved(self, load: list[float], old: Sequence[int], new: Sequence[int], changed: Collection[int]) -> list[float]:
        """The same after some boundaries were moved."""
        found = load.copy()
        for at in changed:
            more = self.load[new[at]] - self.load[old[at]]
            for route in self.routes:
                (before, pace), (behind, other) = route[at - 1], route[at]
                found[before] += more * pace
                found[behind] -= more * other
        for s in {stage for at in changed for stage in (at - 1, at)}:
            found[-1] += abs(self.load[new[s + 1]] - self.load[new[s]] - self.stage)
            found[-1] -= abs(self.load[old[s + 1]] - self.load[old[s]] - self.stage)
        return found

    def cost(self, ends: Sequence[int], load: Sequence[float]) -> float:
        """Seconds until the worst device is done, its share of the mean of all, smoothed over the devices."""
        first = [math.inf] * self.devices
        for arrivals in self.arrivals:
            there = 0.0
            for s, (device, pace, new) in enumerate(arrivals):
                if new and there < first[device]:
                    first[device] = there
                there += (self.forward[ends[s + 1]] - self.forward[ends[s]]) * pace
        each, mean = self.each, self.mean
        worst = sum(((each * busy + begin) / mean) ** HOPE.worst for busy, begin in zip(load, first, strict=False))
        return float(worst ** (1 / HOPE.worst)) + self.even * load[-1] / self.stage
