"""Cuts for routes that visit devices repeatedly, or in both directions: all devices should be done at the same time.

A device is busy for the load of all its stages, after the first micro-batch has come to it. Whole layers rarely come
out even, so a good cut puts more where less has to be waited for; the boundaries are moved at random, one or two at a
time, towards the least such sum on the worst device, from the dynamic programme's cut of equal stages on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate

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
    cost = least = work.cost(now)
    for k in range(COUNT.balanced):
        ends = _moved(now, rng)
        if ends is None:
            continue
        other = work.cost(ends)
        if other <= cost * (1 + HOPE.slack * rng.random() * (1 - k / COUNT.balanced)):
            now, cost = ends, other
            if cost < least:
                best, least = now, cost
    return tuple(best[1:-1])


def _moved(ends: Sequence[int], rng: random.Random) -> list[int] | None:
    """One or two boundaries moved by a layer; None where a stage would be empty."""
    found = list(ends)
    for _ in range(rng.randint(1, 2)):
        found[rng.randrange(1, len(ends) - 1)] += rng.choice((-1, 1))
    return found if all(a < b for a, b in zip(found, found[1:], strict=False)) else None


class _Work:
    """What every device of these routes has to do for a cut."""

    def __init__(self, chain: Chain, routes: Sequence[Order]) -> None:
        self.routes = [[(d, 1 / chain.speed(d)) for d in route] for route in routes]
        self.devices = sorted(set(routes[0]))
        self.each = chain.problem.workload.micro_batches / len(routes)
        self.load: list[float] = chain.load_s.tolist()
        self.forward = [0.0, *accumulate(chain.costs.forward_s.tolist())]
        speeds = sum(chain.speed(d) for d in self.devices)
        self.even, self.stage = HOPE.uneven / len(routes[0]), self.load[-1] / len(routes[0]) or 1.0
        self.mean = self.each * len(routes) * self.load[-1] / speeds or 1.0

    def cost(self, ends: Sequence[int]) -> float:
        """Seconds until the worst device is done, its share of the mean of all, smoothed over the devices."""
        busy, first = dict.fromkeys(self.devices, 0.0), dict.fromkeys(self.devices, math.inf)
        for route in self.routes:
            there = 0.0
            for s, (device, pace) in enumerate(route):
                a, b = ends[s], ends[s + 1]
                busy[device] += (self.load[b] - self.load[a]) * pace
                first[device] = min(first[device], there)
                there += (self.forward[b] - self.forward[a]) * pace
        uneven = sum(abs(self.load[b] - self.load[a] - self.stage) for a, b in zip(ends, ends[1:], strict=False))
        worst = [(self.each * busy[d] + first[d]) / self.mean for d in self.devices]
        return float(sum(x**HOPE.worst for x in worst) ** (1 / HOPE.worst)) + self.even * uneven / self.stage
