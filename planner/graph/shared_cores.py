"""Jobs of nodes whose devices share cores: where more compute at a time than there are cores, each is slower.

A node's devices that compute share its cores evenly, as an operating system's scheduler shares them among processes:
each goes on at full speed or at cores over their number. So what an op takes depends on what runs beside it, and is
found by following time from event to event. The work that a node has done for each since the start, its virtual time,
says in which order they end (Parekh and Gallager, A Generalized Processor Sharing Approach to Flow Control, 1993).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..basics import check_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OFTEN = 4096
"""Jobs between two looks at the clock."""


@dataclass
class _Node:
    """What a node computes at the moment. `running`: (virtual time at which it ends, job), a heap."""

    cores: float
    running: list[tuple[float, int]] = field(default_factory=list)
    virtual: float = 0.0
    now: float = 0.0

    @property
    def rate(self) -> float:
        """Of each that runs."""
        return min(1.0, self.cores / len(self.running))

    def next_end(self) -> float:
        """When the first of them ends if no other one begins; infinite where nothing runs."""
        if not self.running:
            return math.inf
        return self.now + (self.running[0][0] - self.virtual) / self.rate

    def begin(self, job: int, seconds: float, now: float) -> None:
        """One more, which takes so long at full speed."""
        if self.running:
            self.virtual += (now - self.now) * self.rate
        self.now = now
        heapq.heappush(self.running, (self.virtual + seconds, job))

    def end(self, now: float) -> int:
        """The first of them is over."""
        self.now = now
        self.virtual, job = heapq.heappop(self.running)
        return job


@dataclass(frozen=True)
class Sharing:
    """Of every job the number of the node whose cores it needs, -1: none; and how many cores every node has."""

    node: NDArray[np.int64]
    cores: NDArray[np.float64]


def run_sharing(
    duration: NDArray[np.float64],
    edges: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
    occupied: tuple[NDArray[np.int64], NDArray[np.int64], int],
    idle: NDArray[np.int64],
    sharing: Sharing,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], int]:
    """Starts, seconds with what sharing adds, order of service, and number of jobs served; see `run_jobs`.

    `duration`: at full speed. `edges`: before, after, lag. `occupied`: resources of every job as offsets into a list,
    and how many there are. Raises OutOfTime at the deadline.
    """
    import numpy as np

    jobs, (before, after, lag), (first_resource, resource, resources) = len(duration), edges, occupied
    successors: list[list[tuple[int, float]]] = [[] for _ in range(jobs)]
    for source, target, later in zip(before.tolist(), after.tolist(), lag.tolist(), strict=True):
        successors[source].append((target, later))
    waiting = np.bincount(after, minlength=jobs)
    waiting[idle] = -1
    left, takes, free = waiting.tolist(), resource.tolist(), [0.0] * resources
    ends = first_resource.tolist()
    seconds, home = duration.tolist(), sharing.node.tolist()
    nodes = [_Node(cores) for cores in sharing.cores.tolist()]
    start, took, rank = [0.0] * jobs, seconds.copy(), [-1] * jobs
    ready = [(0.0, job) for job in range(jobs) if left[job] == 0]
    heapq.heapify(ready)

    def release(job: int, end: float) -> None:
        for successor, later in successors[job]:
            start[successor] = max(start[successor], end + later)
            left[successor] -= 1
            if left[successor] == 0:
                heapq.heappush(ready, (start[successor], successor))

    served = 0
    while True:
        ending = min(nodes, key=_Node.next_end)
        end = ending.next_end()
        if ending.running and (not ready or end <= ready[0][0]):
            job = ending.end(end)
            took[job] = end - start[job]
            release(job, end)
            continue
        if not ready:
            break
        now, job = heapq.heappop(ready)
        rank[job] = served
        served += 1
        if served % _OFTEN == 0:
            check_time()
        if home[job] >= 0 and seconds[job] > 0:
            nodes[home[job]].begin(job, seconds[job], now)
            continue
        mine = takes[ends[job] : ends[job + 1]]
        start[job] = max([now, *(free[k] for k in mine)])
        for k in mine:
            free[k] = start[job] + seconds[job]
        release(job, start[job] + seconds[job])
    return np.array(start), np.array(took), np.array(rank, dtype=np.int64), served
