"""The hot loop of the simulator: jobs with precedences and shared resources, served first come first served.

One function, written once: run as plain Python for small graphs and compiled by numba for large ones.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from ..basics import Loops, OutOfTime, check_time, time_left

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SMALL = 3000
"""Jobs of a graph that are no reason to compile, however many such graphs there are."""
WORTH = 400_000
"""Jobs of larger graphs served by plain Python until what is compiled is worth loading: both take a third of a second.
"""
JOB_S = 1e-6
"""Time that plain Python takes for a job."""


def serve(
    duration: Any, waiting: Any, first: Any, after: Any, lag: Any, first_resource: Any, resource: Any,
    free: Any, open_jobs: Any, start: Any, rank: Any,
) -> int:  # fmt: skip
    """Fills `start` and `rank` (order of service); returns how many jobs could run (fewer: a cycle).

    Jobs become ready when all predecessors have ended and their lags have passed. Those that need resources take
    them in the order they became ready, job number breaking ties; the others start at once. `waiting`, `free` and
    `open_jobs` are consumed. Arrays: duration [jobs] seconds; waiting [jobs] predecessors left (a job that never
    runs: -1); first [jobs+1] into after/lag (successors, seconds); first_resource [jobs+1] into resource;
    free [resources] seconds; open_jobs [jobs] room for the jobs that can start.
    """
    ready = [(0.0, 0)]
    ready.pop()
    count = 0
    for job in range(len(duration)):
        if waiting[job] == 0:
            if first_resource[job] == first_resource[job + 1]:
                open_jobs[count] = job
                count += 1
            else:
                ready.append((0.0, job))
    heapq.heapify(ready)
    served = 0
    while count > 0 or len(ready) > 0:
        if count > 0:
            # whatever could become ready before the first job of the heap depends on these
            count -= 1
            job = open_jobs[count]
            begin = start[job]
        else:
            begin, job = heapq.heappop(ready)
            for k in range(first_resource[job], first_resource[job + 1]):
                begin = max(begin, free[resource[k]])
            for k in range(first_resource[job], first_resource[job + 1]):
                free[resource[k]] = begin + duration[job]
            start[job] = begin
        end = begin + duration[job]
        rank[job] = served
        served += 1
        for k in range(first[job], first[job + 1]):
            successor = after[k]
            # start doubles as "earliest ready time so far" until the job is served
            start[successor] = max(start[successor], end + lag[k])
            waiting[successor] -= 1
            if waiting[successor] == 0:
                if first_resource[successor] == first_resource[successor + 1]:
                    open_jobs[count] = successor
                    count += 1
                else:
                    heapq.heappush(ready, (start[successor], successor))
    return served


def by_predecessor(
    before: Any, after: Any, lag: Any, cursor: Any, waiting: Any, sorted_after: Any, sorted_lag: Any
) -> None:
    """Groups edges by their first job (a counting sort) and counts every job's predecessors.

    `cursor` [jobs] starts as the place of each job's first successor, and is consumed.
    """
    for k in range(len(before)):
        job = before[k]
        sorted_after[cursor[job]] = after[k]
        sorted_lag[cursor[job]] = lag[k]
        cursor[job] += 1
        waiting[after[k]] += 1


_loops = Loops(serve, by_predecessor, small=SMALL, worth=WORTH)


def run_jobs(
    duration: NDArray[np.float64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    lag: NDArray[np.float64],
    first_resource: NDArray[np.int64],
    resource: NDArray[np.int64],
    resources: int,
    idle: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    """Start times, order of service and number of jobs served, for edges before -> after with lags (seconds).

    `idle`: numbers that no job has; they are not served. Raises OutOfTime where they cannot be served by the deadline.
    """
    import numpy as np

    check_time()
    jobs = len(duration)
    first = np.zeros(jobs + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=jobs), out=first[1:])
    if not _loops.compiled(jobs):
        if jobs > SMALL and time_left() < jobs * JOB_S:
            raise OutOfTime(f"no time to serve {jobs} jobs")
        waiting = np.bincount(after, minlength=jobs)
        waiting[idle] = -1
        by_source = np.argsort(before, kind="stable")
        arrays = (duration, waiting, first, after[by_source], lag[by_source], first_resource, resource)
        start, rank = [0.0] * jobs, [-1] * jobs
        plain: Any = serve
        served = plain(*(a.tolist() for a in arrays), [0.0] * resources, [0] * jobs, start, rank)
        return np.array(start, dtype=np.float64), np.array(rank, dtype=np.int64), served
    fast_serve, fast_group = _loops.functions
    waiting, successor, delay = np.zeros(jobs, dtype=np.int64), np.empty_like(after), np.empty_like(lag)
    fast_group(before, after, lag, first[:-1].copy(), waiting, successor, delay)
    waiting[idle] = -1
    graph = (duration, waiting, first, successor, delay, first_resource, resource)
    begin, order, room = np.zeros(jobs), np.full(jobs, -1, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    served = int(fast_serve(*graph, np.zeros(resources), room, begin, order))
    return begin, order, served


def run_many(
    durations: NDArray[np.float64],
    edges: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
    first_resource: NDArray[np.int64],
    resource: NDArray[np.int64],
    idle: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Start times and order of service of one graph's jobs under many durations, one row of each a row of these.

    `edges`: before, after, lag, as for `run_jobs`. Raises OutOfTime at the deadline.
    """
    import numpy as np

    (batch, jobs), (before, after, lag) = durations.shape, edges
    first = np.zeros(jobs + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=jobs), out=first[1:])
    waiting, by_source = np.bincount(after, minlength=jobs), np.argsort(before, kind="stable")
    waiting[idle] = -1
    graph: Any = (first, after[by_source], lag[by_source], first_resource, resource)
    starts, ranks = np.zeros((batch, jobs)), np.full((batch, jobs), -1, dtype=np.int64)
    resources, room = int(resource.max(initial=-1)) + 1, np.empty(jobs, dtype=np.int64)
    if _loops.compiled(batch * jobs):
        for duration, start, rank in zip(durations, starts, ranks, strict=True):
            check_time()
            _loops.functions[0](duration, waiting.copy(), *graph, np.zeros(resources), room, start, rank)
        return starts, ranks
    plain: Any = serve
    listed, left = [column.tolist() for column in graph], waiting.tolist()
    for k, row in enumerate(durations.tolist()):
        check_time()
        begin, order = [0.0] * jobs, [-1] * jobs
        plain(row, left.copy(), *listed, [0.0] * resources, [0] * jobs, begin, order)
        starts[k], ranks[k] = begin, order
    return starts, ranks
