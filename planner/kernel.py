"""The hot loop of the simulator: jobs with precedences and shared resources, served first come first served.

One function, written once: run as plain Python for small graphs and compiled by numba for large ones.
"""

from __future__ import annotations

import functools
import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SMALL = 3000


def serve(
    duration: Any, waiting: Any, first: Any, after: Any, lag: Any, first_resource: Any, resource: Any,
    free: Any, start: Any, rank: Any,
) -> int:  # fmt: skip
    """Fills `start` and `rank` (order of service); returns how many jobs could run (fewer: a cycle).

    Jobs become ready when all predecessors have ended and their lags have passed; ready jobs take their
    resources in the order they became ready, job number breaking ties. `waiting` and `free` are consumed.
    Arrays: duration [jobs] seconds; waiting [jobs] predecessors left; first [jobs+1] into after/lag
    (successors, seconds); first_resource [jobs+1] into resource; free [resources] seconds.
    """
    ready = [(0.0, 0)]
    ready.pop()
    for job in range(len(duration)):
        if waiting[job] == 0:
            ready.append((0.0, job))
    heapq.heapify(ready)
    served = 0
    while len(ready) > 0:
        begin, job = heapq.heappop(ready)
        for k in range(first_resource[job], first_resource[job + 1]):
            begin = max(begin, free[resource[k]])
        end = begin + duration[job]
        for k in range(first_resource[job], first_resource[job + 1]):
            free[resource[k]] = end
        start[job] = begin
        rank[job] = served
        served += 1
        for k in range(first[job], first[job + 1]):
            successor = after[k]
            # start doubles as "earliest ready time so far" until the job is served
            start[successor] = max(start[successor], end + lag[k])
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(ready, (start[successor], successor))
    return served


@functools.cache
def _compiled() -> Any:
    import numba

    return numba.njit(cache=True)(serve)


def run_jobs(
    duration: NDArray[np.float64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    lag: NDArray[np.float64],
    first_resource: NDArray[np.int64],
    resource: NDArray[np.int64],
    resources: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    """Start times, order of service and number of jobs served, for edges before -> after with lags (seconds)."""
    import numpy as np

    jobs = len(duration)
    by_source = np.argsort(before, kind="stable")
    first = np.zeros(jobs + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=jobs), out=first[1:])
    waiting = np.bincount(after, minlength=jobs).astype(np.int64)
    arrays = (duration, waiting, first, after[by_source], lag[by_source], first_resource, resource)
    if jobs <= SMALL:
        start, rank = [0.0] * jobs, [-1] * jobs
        plain: Any = serve
        served = plain(*(a.tolist() for a in arrays), [0.0] * resources, start, rank)
        return np.array(start, dtype=np.float64), np.array(rank, dtype=np.int64), served
    begin, order = np.zeros(jobs), np.full(jobs, -1, dtype=np.int64)
    served = int(_compiled()(*arrays, np.zeros(resources), begin, order))
    return begin, order, served
