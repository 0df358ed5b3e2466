"""Cuts for routes that visit devices repeatedly, or in both directions: all devices should be done at the same time.

A device is busy for the load of all its stages, after the first micro-batch has come to it. Whole layers rarely come
out even, so a good cut puts more where less has to be waited for. From the dynamic programme's cut of equal stages on,
boundaries are moved at random, one or two or a run of them, towards the least such sum on the worst device: first
downhill alone, then annealed.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from ...basics import Loops
from ...partition import Chain, Cuts, cut
from .balancing import RANDOM, descend
from .effort import COUNT, HOPE, SIZE

Order = tuple[int, ...]
_loops = Loops(descend, small=0, worth=SIZE.balanced_plainly)


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
    import numpy as np

    ends = [0, *start, len(chain)]
    devices, stages, routes = sorted(set(route)), len(route), [route, twin] if twin else [route]
    speeds = {d: chain.speed(d) for d in devices}
    each = chain.problem.workload.micro_batches / len(routes)
    load, forward = chain.load_s.tolist(), [0.0, *accumulate(chain.costs.forward_s.tolist())]
    work: list[Any] = [
        ends, list(ends), list(ends), [0.0] * (len(devices) + 1), [0.0] * (len(devices) + 1), [0.0] * len(devices),
        load, forward,
        [devices.index(d) for one in routes for d in one], [1 / speeds[d] for one in routes for d in one],
        [mark for one in routes for mark in _arrivals(one)],
    ]  # fmt: skip
    randoms = np.random.default_rng(stages).random(COUNT.balanced * RANDOM)
    mean = each * len(routes) * load[-1] / sum(speeds.values()) or 1.0
    rest: list[float] = [HOPE.slack, HOPE.handed_on, each, mean, HOPE.uneven / stages, HOPE.worst]
    if _loops.compiled(COUNT.balanced * stages):
        work = [*map(np.array, work), randoms]
        _loops.functions[0](*work, *rest)
    else:
        work = [*work, randoms.tolist()]
        descend(*work, *rest)
    return tuple(int(end) for end in work[1][1:-1])


def _arrivals(route: Order) -> list[int]:
    """1 where a route comes to a device for the first time, 0 where it has been there, -1 once it was everywhere."""
    known, found, devices = set[int](), list[int](), len(set(route))
    for device in route:
        found.append(-1 if len(known) == devices else int(device not in known))
        known.add(device)
    return found
