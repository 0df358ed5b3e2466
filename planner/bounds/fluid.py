"""A bound of one candidate that knows what runs when: the linear relaxation of its time-indexed formulation.

Variables are the micro-batches that have begun each op by each instant, in any amount (Dyer and Wolsey 1990,
"Formulating the single machine sequencing problem with release dates as a mixed integer program"). They flow along the
stages, fill devices and memory, and as many as there are must have gone through by the end. Durations count in whole
instants, rounded down; work counts as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, floor, inf

import numpy as np

from ..basics import time_left
from ..graph import KEEP, Candidate
from ..partition import Floats
from ..plan import Kind
from .fixed import candidate as closed
from .items import Asked, Item
from .times import message_seconds

_SIZES = 1500, 4000, 9000
"""Variables at most, of coarse programmes and then of finer ones: of the last the solver needs seconds each."""
_ROUNDS = 12
"""Programmes at most: each halves what is open, or closes it."""
_CLOSE = 1e-3
"""Of the step: no nearer than this is a bound sought."""
_SURELY = 1e-5
"""Of the micro-batches, that must be left over before a step is ruled out: more than the solver may be wrong by."""
_EXACT = 1e-9
"""Of an instant: what is as near to a whole number of them is one."""


@dataclass(frozen=True)
class _Task:
    """One op of every micro-batch of a pipeline and stage: earliest start, and seconds from its start to the end."""

    pipeline: int
    device: int
    seconds: float
    head_s: float
    tail_s: float


@dataclass(frozen=True)
class _Stay:
    """Bytes from the start of one task to the end of another, on a device."""

    device: int
    begin: int
    end: int
    size: int


def fluid(candidate: Candidate, step_s: float, split: bool = True, sizes: Sequence[int] = _SIZES) -> float | None:
    """No order of a candidate's ops takes less, in seconds: `bounds.candidate`, and more with one stage a device.

    With several stages a device the relaxation knows no more than that: their ops fill each other's waits.

    `step_s`: of a plan of this candidate, the most that can come out. `split`: whether backwards may be split. `sizes`:
    variables at most, of one programme after another. The answer is what is known when the time of the context ends;
    raises OutOfTime where it has ended before. None where stashes are not kept, or a stage's forward and backward run
    on different devices: such candidates are not described here.
    """
    if any(policy != KEEP for row in candidate.stash for policy in row):
        return None
    if any(pipeline.forward != pipeline.backward for pipeline in candidate.pipelines):
        return None
    shares = tuple(len(pipeline.micro_batches) for pipeline in candidate.pipelines)
    least_s = closed(candidate, shares, split)
    flow = _Flow(candidate, split)
    if any(len(items) > 1 for items in flow.asked.items) or least_s >= step_s * (1 - _CLOSE):
        return min(least_s, step_s)
    for size in sizes:
        least_s = _raised(flow, least_s, step_s, size)
        if flow.exact(step_s, size):
            break
    return least_s


def _raised(flow: _Flow, least_s: float, most_s: float, size: int) -> float:
    """The largest step found that is too short for all micro-batches, from `least_s` on."""
    close_s = _CLOSE * most_s
    guess_s = least_s
    for _ in range(_ROUNDS):
        left_s = time_left()
        if most_s - least_s <= close_s or left_s <= 0:
            break
        if not least_s < guess_s < most_s:
            guess_s = (least_s + most_s) / 2
        done = flow.done_in(guess_s, size, left_s)
        if done is None:
            break
        if done < 1 - _SURELY:
            least_s = guess_s
            guess_s += max(close_s, (1 - done) * flow.load_s)
        else:
            most_s = guess_s
    return least_s


class _Flow:
    """The programme of one candidate, for a step of any length."""

    def __init__(self, candidate: Candidate, split: bool) -> None:
        self.candidate = candidate
        self.asked = Asked(candidate, split, None)
        self.counts = [len(pipeline.micro_batches) for pipeline in candidate.pipelines]
        self.tasks: list[_Task] = []
        self.stays: list[_Stay] = []
        self.lags: list[tuple[int, int, float]] = []
        self._number: dict[tuple[int, int, Kind], int] = {}
        for device, items in enumerate(self.asked.items):
            for item in items:
                if self.counts[item.pipeline]:
                    self._add(device, item)
        for edge in candidate.costs.edges:
            self._join(*edge)
        self.head_s = [min((t.head_s for t in mine), default=0.0) for mine in self.on_device]
        self.end_s = [
            max(steps, min((item.finish for item in items), default=0.0))
            for steps, items in zip(self.asked.steps, self.asked.items, strict=True)
        ]

    def _add(self, device: int, item: Item) -> None:
        ends = item.first_i + item.inputs
        rows = [
            (Kind.F, item.forward, item.first_f, item.forward + item.trip + item.inputs + item.rest),
            (Kind.I, item.inputs, item.first_i, item.inputs + item.rest),
        ]
        if item.weights > 0:
            rows.append((Kind.W, item.weights, ends, item.weights + item.finish))
        first = len(self.tasks)
        for kind, seconds, head_s, tail_s in rows:
            self._number[item.pipeline, item.stage, kind] = len(self.tasks)
            self.tasks.append(_Task(item.pipeline, device, seconds, head_s, tail_s))
        self.lags.append((first, first + 1, item.forward + item.trip))
        self.stays.append(_Stay(device, first, first + 1, item.stash - item.after))
        if item.weights > 0:
            self.lags.append((first + 1, first + 2, item.inputs))
            self.stays.append(_Stay(device, first, first + 2, item.after))

    def _join(self, producer: int, consumer: int, size: int) -> None:
        for p, pipeline in enumerate(self.candidate.pipelines):
            if not self.counts[p]:
                continue
            a, b = pipeline.forward[producer], pipeline.forward[consumer]
            for kind, one, other, source, target in (
                (Kind.F, producer, consumer, a, b),
                (Kind.I, consumer, producer, b, a),
            ):
                before, after = self._number[p, one, kind], self._number[p, other, kind]
                lag_s = self.tasks[before].seconds + message_seconds(self.candidate, source, target, size)
                self.lags.append((before, after, lag_s))

    @cached_property
    def on_device(self) -> list[list[_Task]]:
        """The tasks of every device."""
        return [[task for task in self.tasks if task.device == device] for device in range(len(self.asked.items))]

    @cached_property
    def load_s(self) -> float:
        """Seconds of all ops of the device that computes longest."""
        return max(sum(self.counts[t.pipeline] * t.seconds for t in mine) for mine in self.on_device)

    @cached_property
    def common_s(self) -> float:
        """What all durations and lags are whole multiples of; 0 where there is no such."""
        lags = [lag_s for _, _, lag_s in self.lags]
        return _common(np.array([s for s in (*lags, *(task.seconds for task in self.tasks)) if s > 0]))

    def exact(self, step_s: float, size: int) -> bool:
        """Whether so many variables suffice for durations that are not rounded."""
        return bool(self.common_s) and step_s / self.common_s <= size // len(self.tasks)

    def instant_s(self, step_s: float, size: int) -> float:
        """Seconds between instants: of those that need no more variables, what rounds durations least."""
        if self.exact(step_s, size):
            return self.common_s
        most = max(2, size // len(self.tasks))
        sizes = step_s / np.linspace(most / 2, most, 200)
        durations = np.array([task.seconds for task in self.tasks])
        rounded = np.floor(durations[None, :] / sizes[:, None] + _EXACT) * sizes[:, None]
        return float(sizes[int(rounded.sum(axis=1).argmax())])

    def done_in(self, step_s: float, size: int, limit_s: float) -> float | None:
        """The part of all micro-batches that a step so long has time for; None where the solver had too little."""
        if any(task.head_s + task.tail_s > step_s for task in self.tasks):
            return 0.0
        return _Programme(self, step_s, self.instant_s(step_s, size)).solved(limit_s)


def _common(durations: Floats) -> float:
    """What all durations are whole multiples of, where it is no less than a thousandth of the least; else 0."""
    least = float(durations.min(initial=inf))
    for parts in range(1, 1001):
        ratio = durations / (least / parts)
        if np.abs(ratio - np.round(ratio)).max(initial=0.0) <= _EXACT * ratio.max(initial=1.0):
            return least / parts
    return 0.0


class _Programme:
    """The linear programme for one step and one distance of instants."""

    def __init__(self, flow: _Flow, step_s: float, instant_s: float) -> None:
        from ortools.linear_solver import pywraplp  # loaded when needed

        self.flow, self.step_s, self.instant_s = flow, step_s, instant_s
        self.last = self._down(step_s)
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        self.done = self.solver.NumVar(0.0, 1.0, "")
        self.begun = [self._variables(task) for task in flow.tasks]
        for before, after, lag_s in flow.lags:
            self._follows(before, after, lag_s)
        for device in range(len(flow.on_device)):
            self._device(device)

    def _down(self, seconds: float) -> int:
        return floor(seconds / self.instant_s + _EXACT)

    def _up(self, seconds: float) -> int:
        return ceil(seconds / self.instant_s - _EXACT)

    def _variables(self, task: _Task) -> list[int | None]:
        """By instant, the part of the micro-batches that has begun: None before the earliest start, at the end all."""
        first, last = self._up(task.head_s), self._up(self.step_s - task.tail_s)
        found: list[int | None] = [None] * min(first, self.last + 1)
        for _ in range(len(found), min(last, self.last + 1)):
            found.append(self.solver.NumVar(0.0, 1.0, "").index())
        found += [self.done.index()] * (self.last + 1 - len(found))
        for earlier, later in pairwise(found):
            self._row([(earlier, 1.0), (later, -1.0)], 0.0)
        return found

    def _follows(self, before: int, after: int, lag_s: float) -> None:
        """Of `after` no more has begun than of `before` so much earlier."""
        lag = self._down(lag_s)
        for instant, begun in enumerate(self.begun[after]):
            earlier = self.begun[before][instant - lag] if instant >= lag else None
            self._row([(begun, 1.0), (earlier, -1.0)], 0.0)

    def _device(self, device: int) -> None:
        """One op at a time; before and after every instant no more work than seconds; no more bytes than there are."""
        flow, counts = self.flow, self.flow.counts
        mine = [(n, task, counts[task.pipeline]) for n, task in enumerate(flow.tasks) if task.device == device]
        stays = [stay for stay in flow.stays if stay.device == device and stay.size > 0]
        room, work_s = float(flow.asked.room[device]), sum(count * task.seconds for _, task, count in mine)
        for t in range(self.last + 1):
            running, ended, later = [], [], [(self.done.index(), work_s)]
            for n, task, count in mine:
                running += [(self._at(n, t), count), (self._at(n, t - self._down(task.seconds)), -count)]
                ended.append((self._at(n, t - self._up(task.seconds)), count * task.seconds))
                later.append((self._at(n, t), -count * task.seconds))
            held = []
            for stay in stays:
                size, ends = counts[flow.tasks[stay.begin].pipeline] * stay.size / room, flow.tasks[stay.end].seconds
                held += [(self._at(stay.begin, t), size), (self._at(stay.end, t - self._down(ends)), -size)]
            now_s = t * self.instant_s
            self._row(running, 1.0)
            self._row(ended, max(0.0, now_s - flow.head_s[device]))
            self._row(later, max(0.0, self.step_s - flow.end_s[device] - now_s))
            self._row(held, 1.0)

    def _at(self, task: int, instant: int) -> int | None:
        return self.begun[task][instant] if instant >= 0 else None

    def _row(self, terms: Sequence[tuple[int | None, float]], most: float) -> None:
        """The sum of these is at most that; None is nothing."""
        merged: dict[int, float] = {}
        for variable, factor in terms:
            if variable is not None:
                merged[variable] = merged.get(variable, 0.0) + factor
        if sum(factor for factor in merged.values() if factor > 0) <= most:  # holds for any parts
            return
        row = self.solver.Constraint(-inf, most)
        for variable, factor in merged.items():
            row.SetCoefficient(self.solver.variable(variable), factor)

    def solved(self, limit_s: float) -> float | None:
        """The largest part of all micro-batches that goes through; None where that was not found in time."""
        self.solver.Objective().SetCoefficient(self.done, 1.0)
        self.solver.Objective().SetMaximization()
        if limit_s < inf:
            self.solver.SetTimeLimit(max(1, int(1000 * limit_s)))
        if self.solver.Solve() != self.solver.OPTIMAL:
            return None
        return float(self.solver.Objective().Value())
