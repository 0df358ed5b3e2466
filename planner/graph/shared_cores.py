"""Jobs of nodes whose devices share cores: where more is to be done at a time than there are cores for, each is slower.

What a node's devices compute and the threads that carry their messages share its cores evenly, as an operating
system's scheduler shares them: each goes on at full speed, or at the cores over all that is asked for. So what an op
takes depends on what runs beside it, and is found by following time from event to event. The work that a node has done
for each since the start, its virtual time, says in which order they end (Parekh and Gallager, A Generalized Processor
Sharing Approach to Flow Control, 1993).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
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
    """What a node's cores do at the moment.

    `running`: (virtual time at which it ends, job, cores that it asks for), a heap; `asked`: cores of all together.
    """

    cores: float
    running: list[tuple[float, int, float]] = field(default_factory=list)
    asked: float = 0.0
    virtual: float = 0.0
    now: float = 0.0

    @property
    def rate(self) -> float:
        """Of each that runs."""
        return min(1.0, self.cores / self.asked)

    def next_end(self) -> float:
        """When the first of them ends if no other one begins; infinite where nothing runs."""
        if not self.running:
            return math.inf
        return self.now + (self.running[0][0] - self.virtual) / self.rate

    def begin(self, job: int, seconds: float, asks: float, now: float) -> None:
        """One more, which takes so long at full speed on so many cores."""
        if self.running:
            self.virtual += (now - self.now) * self.rate
        self.now = now
        self.asked += asks
        heapq.heappush(self.running, (self.virtual + seconds, job, asks))

    def end(self, now: float) -> int:
        """The first of them is over."""
        self.now = now
        self.virtual, job, asks = heapq.heappop(self.running)
        self.asked = self.asked - asks if self.running else 0.0
        return job


@dataclass(frozen=True)
class Sharing:
    """Of every job the number of the node whose cores it needs, -1: none, and how many; how many every node has."""

    node: NDArray[np.int64]
    asks: NDArray[np.float64]
    cores: NDArray[np.float64]


class _Waits:
    """What waits for what.

    Attributes:
        start: when each job may begin, as far as is known. ready: those that wait for no other, a heap: when it may
            begin, since when it is ready, and the job.
    """

    def __init__(
        self,
        jobs: int,
        edges: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
        idle: Sequence[int],
    ) -> None:
        self._left, self._successors = [0] * jobs, [list[tuple[int, float]]() for _ in range(jobs)]
        for source, target, later in zip(*(column.tolist() for column in edges), strict=True):
            self._successors[source].append((target, later))
            self._left[target] += 1
        for job in idle:
            self._left[job] = -1
        self.start = [0.0] * jobs
        self.ready = [(0.0, 0.0, job) for job in range(jobs) if self._left[job] == 0]
        heapq.heapify(self.ready)

    def release(self, job: int, end: float) -> None:
        """A job is over then: those that wait for it alone are ready."""
        for successor, later in self._successors[job]:
            self.start[successor] = max(self.start[successor], end + later)
            self._left[successor] -= 1
            if self._left[successor] == 0:
                begins = self.start[successor]
                heapq.heappush(self.ready, (begins, begins, successor))


class _Ways:
    """Resources: when each is free again, and who waits for one that is held until nobody knows when."""

    def __init__(self, count: int) -> None:
        self._free_s = [0.0] * count
        self._waiting: dict[int, list[tuple[float, int]]] = {}

    def free_s(self, mine: Sequence[int], since: float, job: int) -> float:
        """When all of these are free; infinite where one is held: the job, ready since then, now waits for it."""
        for k in mine:
            if k in self._waiting:
                self._waiting[k].append((since, job))
                return math.inf
        return max((self._free_s[k] for k in mine), default=0.0)

    def take(self, mine: Sequence[int], until: float) -> None:
        """They are free again then."""
        for k in mine:
            self._free_s[k] = until

    def hold(self, mine: Sequence[int]) -> None:
        """They are held until `leave`."""
        self._waiting.update((k, []) for k in mine)

    def leave(self, mine: Sequence[int], now: float) -> list[tuple[float, int]]:
        """They are free from now on; who has waited for one of them, and since when it was ready."""
        self.take(mine, now)
        return [one for k in mine for one in self._waiting.pop(k)]


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

    waits = _Waits(len(duration), edges, idle.tolist())
    first, resource, resources = occupied
    takes, ends, ways = resource.tolist(), first.tolist(), _Ways(resources)
    seconds, home, asks = duration.tolist(), sharing.node.tolist(), sharing.asks.tolist()
    nodes = [_Node(cores) for cores in sharing.cores.tolist()]
    start, ready = waits.start, waits.ready
    took, rank, served = seconds.copy(), [-1] * len(duration), 0
    while True:
        ending = min(nodes, key=_Node.next_end)
        end = ending.next_end()
        if ending.running and (not ready or end <= ready[0][0]):
            job = ending.end(end)
            took[job] = end - start[job]
            for since, other in ways.leave(takes[ends[job] : ends[job + 1]], end):
                heapq.heappush(ready, (end, since, other))
            waits.release(job, end)
            continue
        if not ready:
            break
        now, since, job = heapq.heappop(ready)
        mine, working = takes[ends[job] : ends[job + 1]], home[job] >= 0 and seconds[job] > 0
        begins = max(now, ways.free_s(mine, since, job))
        if math.isinf(begins):
            continue  # comes back when what holds one of them is over
        if working and begins > now:
            heapq.heappush(ready, (begins, since, job))
            continue
        start[job], rank[job] = begins, served
        served += 1
        if served % _OFTEN == 0:
            check_time()
        if working:
            ways.hold(mine)
            nodes[home[job]].begin(job, seconds[job], asks[job], begins)
            continue
        ways.take(mine, begins + seconds[job])
        waits.release(job, begins + seconds[job])
    return np.array(start), np.array(took), np.array(rank, dtype=np.int64), served
