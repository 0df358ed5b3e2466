"""Exact memory of every device over the simulated step: who allocates what, when, and what made the peak.

An op allocates at its start and releases at its end; at equal times releases come first (design: instants).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .jobs import Ints, Jobs
from .operations import RECOMPUTE, StageCosts, Structured, route, static_bytes
from .plan import Kind

CATEGORIES = ("parameters", "gradients", "optimizer", "buffers", "stashes", "messages", "workspace")
_STASH, _MESSAGE, _WORKSPACE = 4, 5, 6
_START, _END, _POST, _ASYNC = 1, 2, 3, 0
_TIE = 1e-9  # times closer than this share of the step are equal


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device after every change: times in seconds, totals, and the peak with its composition."""

    times_s: NDArray[np.float64]
    bytes: Ints
    peak_bytes: int
    peak_at_s: float
    peak_parts: tuple[tuple[str, int], ...]


class _Events:
    """Collects changes of memory: at a place in the device's op list, or at a time (a send that completes)."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs, self.end = jobs, jobs.end
        self.parts: list[tuple[Ints, NDArray[np.float64], Ints, Ints, Ints]] = []

    def _add(self, device: Ints, time: NDArray[np.float64], key: Ints, delta: Ints, category: int) -> None:
        some = delta != 0
        kind = np.full(int(some.sum()), category)
        self.parts.append((device[some], time[some], key[some], delta[some], kind))

    def start(self, op: Ints, delta: Ints, category: int) -> None:
        self._add(self.jobs.ops.device[op], self.jobs.start[op], 4 * op + _START, delta, category)

    def finish(self, op: Ints, delta: Ints, category: int) -> None:
        self._add(self.jobs.ops.device[op], self.end[op], 4 * op + _END, delta, category)

    def post(self, op: Ints, delta: Ints, category: int) -> None:
        """At the place of a posted op: when the compute op before it has ended."""
        previous = self.jobs.ops.previous[op]
        time = np.where(previous >= 0, self.end[previous], 0.0)
        self._add(self.jobs.ops.device[op], time, np.where(previous >= 0, 4 * previous + _POST, -1), delta, category)

    def sent(self, message: Ints, delta: Ints, category: int) -> None:
        """When a message has left its link; before whatever starts at the same time on the sender."""
        job = self.jobs.message_job[message]
        device = self.jobs.ops.device[self.jobs.messages.send[message]]
        self._add(device, self.end[job], np.full(len(message), -1), delta, category)

    def columns(self) -> tuple[Ints, NDArray[np.float64], Ints, Ints, Ints]:
        device, time, key, delta, kind = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        return device, time, key, delta, kind


def profile_memory(plan: Structured, costs: StageCosts, jobs: Jobs, step_s: float) -> list[DeviceMemory]:
    """Memory over time of every device."""
    events = _Events(jobs)
    _compute_events(events, plan, costs)
    _message_events(events, plan, costs)
    _local_events(events, plan, costs)
    device, time, key, delta, kind = events.columns()
    tick = np.rint(time / (step_s * _TIE)) if step_s > 0 else np.zeros(len(time))
    order = np.lexsort((delta, key, tick, device))
    device, time, delta, kind = device[order], time[order], delta[order], kind[order]
    static = static_bytes(plan, costs)
    edges = np.searchsorted(device, np.arange(len(static) + 1))
    return [
        _device_memory(static[d], time[a:b], delta[a:b], kind[a:b])
        for d, (a, b) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    ]


def _device_memory(static: dict[str, int], time: NDArray[np.float64], delta: Ints, kind: Ints) -> DeviceMemory:
    base = sum(static.values())
    total = base + np.concatenate([[0], np.cumsum(delta)]).astype(np.int64)
    at = int(np.argmax(total))
    parts = [static.get(name, 0) for name in CATEGORIES]
    for category in (_STASH, _MESSAGE, _WORKSPACE):
        parts[category] += int(delta[:at][kind[:at] == category].sum())
    times = np.concatenate([[0.0], time])
    named = tuple((name, count) for name, count in zip(CATEGORIES, parts, strict=True) if count)
    return DeviceMemory(times, total, int(total[at]), float(times[at]), named)


def _compute_events(events: _Events, plan: Structured, costs: StageCosts) -> None:
    ops = events.jobs.ops
    work = ops.where(Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
    space = costs.workspace_bytes[ops.stage[work]]
    events.start(work, space, _WORKSPACE)
    events.finish(work, -space, _WORKSPACE)
    forward = ops.where(Kind.F)
    kept = forward[~_recomputed(plan, ops.stage[forward], ops.micro_batch[forward])]
    makes = np.concatenate([kept, ops.where(Kind.R)])
    events.start(makes, costs.stash_bytes[ops.stage[makes]], _STASH)
    whole = ops.where(Kind.B)
    events.finish(whole, -costs.stash_bytes[ops.stage[whole]], _STASH)
    change = costs.weight_stash_bytes - costs.stash_bytes
    halves, weights = ops.where(Kind.I), ops.where(Kind.W)
    events.start(halves, np.maximum(change, 0)[ops.stage[halves]], _STASH)
    events.finish(halves, np.minimum(change, 0)[ops.stage[halves]], _STASH)
    events.finish(weights, -costs.weight_stash_bytes[ops.stage[weights]], _STASH)


def _recomputed(plan: Structured, stage: Ints, micro_batch: Ints) -> NDArray[np.bool_]:
    table = np.array([[policy == RECOMPUTE for policy in row] for row in plan.stash], dtype=bool)
    if not table.any():
        return np.zeros(len(stage), dtype=bool)
    pipeline = np.zeros(int(micro_batch.max(initial=0)) + 1, dtype=np.int64)
    for m, index in route(plan).items():
        if m < len(pipeline):
            pipeline[m] = index
    return np.asarray(table[pipeline[micro_batch], stage], dtype=bool)


def _table(jobs: Jobs, *kinds: Kind) -> Ints:
    """Position of the op of these kinds for every (stage, micro-batch); -1 where there is none."""
    ops = jobs.ops
    table = np.full((int(ops.stage.max(initial=0)) + 1, int(ops.micro_batch.max(initial=0)) + 1), -1, dtype=np.int64)
    place = ops.where(*kinds)
    table[ops.stage[place], ops.micro_batch[place]] = place
    return table


def _hold_input(events: _Events, costs: StageCosts, forward: Ints, remake: Ints, size: Ints) -> None:
    """Releases a stage's incoming tensor: into the stash when that is made, the rest when that op ends."""
    maker = np.where(remake >= 0, remake, forward)
    inside = np.minimum(size, costs.stash_bytes[events.jobs.ops.stage[maker]])
    events.start(maker, -inside, _MESSAGE)
    events.finish(maker, inside - size, _MESSAGE)


def _message_events(events: _Events, plan: Structured, costs: StageCosts) -> None:
    jobs = events.jobs
    ops, found = jobs.ops, jobs.messages
    forwards, backwards, remakes = _table(jobs, Kind.F), _table(jobs, Kind.B, Kind.I), _table(jobs, Kind.R)
    for send_kind, makers in ((Kind.SEND_F, forwards), (Kind.SEND_B, backwards)):
        chosen = np.flatnonzero(ops.kind[found.send] == send_kind)
        send, receive, size = found.send[chosen], found.receive[chosen], found.bytes[chosen]
        maker = makers[ops.stage[send], ops.micro_batch[send]]
        events.start(maker, size, _MESSAGE)
        events.sent(chosen, -size, _MESSAGE)
        events.post(receive, size, _MESSAGE)
        stage, m = ops.stage[receive], ops.micro_batch[receive]
        if send_kind == Kind.SEND_F:
            _hold_input(events, costs, forwards[stage, m], remakes[stage, m], size)
        else:
            events.finish(backwards[stage, m], -size, _MESSAGE)


def _local_events(events: _Events, plan: Structured, costs: StageCosts) -> None:
    """Tensors handed on inside a device, and the data that enters the model."""
    jobs = events.jobs
    forwards, backwards, remakes = _table(jobs, Kind.F), _table(jobs, Kind.B, Kind.I), _table(jobs, Kind.R)
    device = np.where(forwards >= 0, jobs.ops.device[forwards], -1)
    back = np.where(backwards >= 0, jobs.ops.device[backwards], -1)
    for producer, consumer, count in costs.edges:
        if count == 0 or consumer >= len(forwards):
            continue
        m = np.flatnonzero((device[producer] == device[consumer]) & (device[producer] >= 0))
        size = np.full(len(m), count)
        events.start(forwards[producer, m], size, _MESSAGE)
        _hold_input(events, costs, forwards[consumer, m], remakes[consumer, m], size)
        m = np.flatnonzero((back[producer] == back[consumer]) & (back[producer] >= 0))
        size = np.full(len(m), count)
        events.start(backwards[consumer, m], size, _MESSAGE)
        events.finish(backwards[producer, m], -size, _MESSAGE)
    for stage in np.flatnonzero(costs.input_bytes).tolist():
        m = np.flatnonzero(forwards[stage] >= 0) if stage < len(forwards) else np.zeros(0, dtype=np.int64)
        size = np.full(len(m), int(costs.input_bytes[stage]))
        events.start(forwards[stage, m], size, _MESSAGE)
        _hold_input(events, costs, forwards[stage, m], remakes[stage, m], size)
