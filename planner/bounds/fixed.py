"""Bounds for one candidate: every order of its ops that fits the memory.

Each device is looked at alone, with what other devices certainly add: no F before the first tensors arrive, no I
before a micro-batch went forward and back, no end before the last gradient has gone back. Memory then forces
idle time where it holds too little work to fill these waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf

import numpy as np

from ..basics import MOST_MEMORY_BYTES
from ..graph import Candidate
from ..partition import Floats
from .items import Asked, Item
from .knapsack import MostWork, ramp


def candidate(
    candidate: Candidate,
    shares: tuple[int, ...] | None = None,
    split: bool = True,
    limits: Sequence[int] | None = None,
) -> float:
    """Valid for every order of ops of a candidate whose pipelines take `shares` micro-batches each, in seconds.

    Infinite when no order fits the memory. `shares` None: the best of all shares with at least one micro-batch
    each. `split`: whether the plans may split backwards into I and W. `limits`: bytes a device, None: those of
    the problem; plans that exceed them may be faster.

    Every device d is busy for its load, and for nothing else (`DeviceIdle`) during its first wait and its last. Its
    memory curve encloses every stash for its least stay (`_filled`). With one stage on the device, stashes take
    turns in its slots (`_slots`). And one micro-batch takes its round trip.
    """
    asked = Asked(candidate, split, limits)
    batches = candidate.problem.workload.micro_batches
    table = _shares(candidate, shares, batches)
    if table is None:
        return _any_shares(asked, batches)
    present = [bool(column.any()) for column in table.T]
    least = np.zeros(len(table))
    for device, items in enumerate(asked.items):
        mine = [item for item in items if present[item.pipeline]]
        if mine:
            least = np.maximum(least, _device(asked, device, mine, table))
    trips = [trip for trip, some in zip(asked.round_s, present, strict=True) if some]
    return max(float(least.min()), max(trips, default=0.0))


def whatever_stashes(of: Candidate, shares: tuple[int, ...] | None = None, split: bool = True) -> float:
    """The same in any amount of memory, so whatever becomes of stashes that the candidate keeps, in seconds."""
    return candidate(of, shares, split, [MOST_MEMORY_BYTES] * len(of.problem.cluster))


def _shares(candidate: Candidate, shares: tuple[int, ...] | None, batches: int) -> Floats | None:
    """One row of micro-batches per pipeline for every way to share them out; None where there are too many."""
    if shares is not None:
        return np.array([shares], dtype=float)
    if len(candidate.pipelines) == 1:
        return np.array([[batches]], dtype=float)
    if len(candidate.pipelines) > 2 or batches < 2:
        return None
    first = np.arange(1.0, batches)
    return np.stack([first, batches - first], axis=1)


def _device(asked: Asked, device: int, items: list[Item], table: Floats) -> Floats:
    """The bound of one device for every row of shares."""
    counts = table[:, [item.pipeline for item in items]]
    if not device_fits(asked, device, items):
        return np.full(len(table), inf)
    idle = DeviceIdle(asked, device, items, counts.max(axis=0).astype(int).tolist())
    work = counts @ np.array([item.work for item in items])
    held = counts @ np.array([item.waiting for item in items], dtype=float)
    drained = np.where(held > idle.ahead_bytes, idle.first_s, idle.head_s) + idle.last_s
    found = np.maximum(work + np.maximum(idle.first_s + idle.tail_s, drained), 0.0)
    if not asked.separate[device]:
        area = counts @ np.array([item.area for item in items])
        found = np.maximum(found, _filled(asked, device, items, idle.head_s, area))
        if len(items) == 1 and not items[0].policy.ops:
            found = np.maximum(found, [_slots(asked, device, items[0], int(n)) for n in counts[:, 0]])
    return np.asarray(found, dtype=float)


def device_fits(asked: Asked, device: int, items: list[Item]) -> bool:
    """Whether every op finds room; in a chain of stages a micro-batch's earlier stashes are there as well."""
    room = asked.room[device]
    if asked.separate[device]:
        return room >= 0
    for item in items:
        if item.left + item.running[0] > room or item.stash + item.running[1] > room:
            return False
    together: dict[int, int] = {}
    for item in items:
        together[item.pipeline] = together.get(item.pipeline, 0) + item.waiting
    return not asked.chain or max(together.values()) <= room


class DeviceIdle:
    """Seconds in which a device is certainly idle, `counts` micro-batches of each item at most.

    head_s: before its first F. first_s: before its first I, at t at the earliest: until then it runs F and R
    only, and all that was made is in memory; idle for t less the most such work that the memory holds. tail_s:
    after its last I, of a stage with `rest` seconds back to the end: only W may still run, of what the memory
    held. last_s: after its last F, likewise with trip, I and rest; may be negative. tail_s and last_s count from
    the end of the device's load, and last_s applies together with first_s only when the device cannot hold all
    its micro-batches at once: then its last F comes after its first I. Shares of memory: planner.memory.
    """

    def __init__(self, asked: Asked, device: int, items: list[Item], counts: list[int]) -> None:
        room, pairs = asked.room[device], list(zip(counts, items, strict=True))
        self.head_s = min(item.first_f for item in items)
        self.tail_s = max(asked.steps[device], min(item.finish for item in items))
        self.first_s, self.last_s = self.head_s, -inf
        self.ahead_bytes = room - min(item.running[0] for item in items)
        if asked.separate[device]:
            return
        work = MostWork((n, item.ahead) for n, item in pairs).within(self.ahead_bytes)
        weights = MostWork((n, ((item.after, item.weights),)) for n, item in pairs)
        behind = MostWork((n, item.behind) for n, item in pairs)
        self.first_s = max(self.head_s, min(item.first_i for item in items) - work)
        self.tail_s = max(self.tail_s, min(self._after_last_input(item, weights, room) for item in items))
        self.last_s = min(_after_last_forward(item, behind, room) for item in items)

    def _after_last_input(self, last: Item, weights: MostWork, room: int) -> float:
        wait = last.rest - last.weights
        if wait <= self.tail_s:
            return wait
        return wait - weights.within(room - last.stash - last.running[1])


def _after_last_forward(last: Item, behind: MostWork, room: int) -> float:
    own = last.remake + last.inputs + last.weights
    wait = last.trip + last.inputs + last.rest - own
    return wait if wait <= 0 else wait - behind.within(room - last.left - last.running[0])


def _filled(asked: Asked, device: int, items: list[Item], head_s: float, area: Floats) -> Floats:
    """The memory curve from the first F to the last op encloses `area` byte-seconds and stays below the room.

    It cannot be full at once: it grows only by F and R, and shrinks only by I and W, which run one at a time.
    """
    room, finish = asked.room[device], min(item.finish for item in items)
    sizes = [size for item in items for size in (item.stash, item.after, item.waiting)]
    unit = gcd(*sizes)
    room = room // unit * unit if unit else room
    if room <= 0:
        return np.zeros(len(area))
    lost, ramps = 0.0, 0.0
    if not any(item.policy.leaves for item in items):
        steps = [(item.waiting, item.forward) for item in items]
        steps += [(item.stash - item.waiting, item.remake) for item in items]
        up, rising = ramp(steps, room)
        steps = [(item.stash - item.after, item.inputs) for item in items]
        down, falling = ramp([*steps, *((item.after, item.weights) for item in items)], room)
        lost, ramps = up + down, rising + falling
    full = (area + lost) / room
    return np.asarray(head_s + finish + np.where(full >= ramps, full, area / room))


def _slots(asked: Asked, device: int, item: Item, count: int) -> float:
    """At most k stashes at once, each from its F to its I: the j+k-th F waits until j I have ended.

    Sorted by start, k + 1 stays of length s never overlap, so the last of n starts (n-1) // k stays after one
    of the first k, and these start a forward apart.
    """
    slots = (asked.room[device] - item.running[0]) // item.stash if item.stash else count
    if slots <= 0 or count <= 0:
        return 0.0
    turns, place = divmod(count - 1, slots)
    stay = item.forward + item.trip + item.inputs
    return item.first_f + place * item.forward + (turns + 1) * stay + item.rest


def _any_shares(asked: Asked, batches: int) -> float:
    """The bound of devices that get the least of all shares, and of their mean: all work goes somewhere."""
    pipelines = len(asked.candidate.pipelines)
    load = np.zeros((len(asked.items), pipelines))
    idle = np.zeros(len(asked.items))
    for device, items in enumerate(asked.items):
        if not items:
            continue
        if not device_fits(asked, device, items):
            return inf
        gaps = DeviceIdle(asked, device, items, [batches] * len(items))
        idle[device] = gaps.first_s + gaps.tail_s
        for item in items:
            load[device, item.pipeline] += item.work
    used = [device for device, items in enumerate(asked.items) if items]
    alone = float((idle[used] + batches * load[used].min(axis=1)).max())
    mean = float(idle[used].mean() + batches * load[used].sum(axis=0).min() / len(used))
    return max(alone, mean, min(asked.round_s))
