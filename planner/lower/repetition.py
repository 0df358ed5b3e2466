"""The same plan over another number of micro-batches: shorter by leaving out, longer by repeating its periodic body.

A run begins and ends with an empty pipeline. Between start-up and drain the lists of an asynchronous plan repeat:
every op stands there again a few updates later. The body found is the longest stretch of each list that does so.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile
from typing import NamedTuple

import numpy as np

from ..basics import PerObject, PlanError
from ..forecast import Deadlock, build, simulate_orders
from ..graph import Candidate, Ints, Versions, costs_of, holders, route, update_size
from ..plan import IN_LINE, Kind, Op, Pipeline, Plan, Problem
from .complete import complete

_KEPT = (IN_LINE | {Kind.RECV_P}) - {Kind.PREDICT}
_PASSES = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
_RETURNS = (Kind.RECV_S, Kind.FETCH)
_SETTLED = 2
"""A run of so many times a plan's length shows what it holds in the long run."""
_SHIPS = {Kind.SEND_S, Kind.RECV_S}
_ALL, _ROOM, _LINE = "all ops", "what stands in line, or where it does for lack of room", "what stands in line"


def repeat(plan: Plan, micro_batches: int) -> Plan:
    """The plan over so many micro-batches, whole updates of it, without a forecast.

    Messages, copies and reductions of a longer plan are placed anew. Raises PlanError where the number is no multiple
    of an update, where a list has no periodic body, and where a pipeline that trains a replica would stay empty.
    """
    size, now = update_size(plan), plan.problem.workload.micro_batches
    if micro_batches < 1 or micro_batches % size:
        raise PlanError(f"cannot run {micro_batches} micro-batches: an update takes {size}")
    if micro_batches == now:
        return replace(plan, forecast=None)
    return _shorter(plan, micro_batches) if micro_batches < now else _longer(plan, micro_batches)


def _shorter(plan: Plan, micro_batches: int) -> Plan:
    pipelines, rows = [], []
    for pipeline, row in zip(plan.pipelines, plan.stash, strict=True):
        taken = tuple(m for m in pipeline.micro_batches if m < micro_batches)
        if taken:
            pipelines.append(replace(pipeline, micro_batches=taken))
            rows.append(row)
    orders = tuple(tuple(op for op in order if op.micro_batch < micro_batches) for order in plan.orders)
    found = replace(plan, problem=_problem(plan, micro_batches), pipelines=tuple(pipelines), orders=orders)
    found = replace(found, stash=tuple(rows), forecast=None)
    if holders(found) != holders(plan):
        raise PlanError(f"a run of {micro_batches} micro-batches would leave a replica without any")
    if not any(op.kind is Kind.SEND_P for order in orders for op in order):
        return found
    versions = Versions.of(found)
    return replace(found, orders=tuple(_sending(versions, order) for order in orders))


def _sending(versions: Versions, order: tuple[Op, ...]) -> tuple[Op, ...]:
    """A list with the PREDICTs before its SEND_Ps made anew: which forward uses a version first may have changed."""
    ahead, size, found = versions.sent_ahead, versions.update, list[Op]()
    for op in order:
        if op.kind is Kind.SEND_P:
            if found and found[-1].kind is Kind.PREDICT and found[-1][1:3] == op[1:3]:
                found.pop()
            count = ahead.get((op.stage, op.peer, op.micro_batch // size), 0)
            found += [Op(Kind.PREDICT, op.stage, op.micro_batch, count)] if count else []
        found.append(op)
    return tuple(found)


def _longer(plan: Plan, micro_batches: int) -> Plan:
    """What stands in line is repeated, and the rest placed anew; the lists as they are where that takes too much room.

    Raises PlanError where nothing repeats.
    """
    if _overfull.get(plan, "", lambda: _exceeds(plan)):
        whole = _with_bodies(plan, _ALL, micro_batches)
        if whole is not None:
            return _cut_to(whole, micro_batches)
    return _placed_anew(plan, micro_batches)


def _placed_anew(plan: Plan, micro_batches: int) -> Plan:
    for which in (_ROOM, _LINE):
        long = _with_bodies(plan, which, micro_batches)
        if long is not None:
            return _cut_to(long, micro_batches)
    raise PlanError(
        f"cannot run {micro_batches} micro-batches: the plan of {plan.problem.workload.micro_batches} has no part that"
        " repeats itself; plan more micro-batches"
    )


def _cut_to(plan: Plan, micro_batches: int) -> Plan:
    return plan if plan.problem.workload.micro_batches == micro_batches else _shorter(plan, micro_batches)


def _exceeds(plan: Plan) -> bool:
    """Whether a longer run, all but what stands in line placed anew, takes more than some device has.

    Stashes come back as late as the plan's own end allows; where the pipeline goes on, others are still there.
    """
    if not any(op.kind in _RETURNS for order in plan.orders for op in order):
        return False
    workload, devices = plan.problem.workload, plan.problem.cluster.devices
    try:
        long = _placed_anew(plan, _SETTLED * workload.micro_batches)
        memory = simulate_orders(long, costs_of(plan), long.orders).device_memory
    except (PlanError, Deadlock):
        return False
    limits = [workload.memory_limit(device.kind.memory_bytes) for device in devices]
    return any(held.peak_bytes > limit for held, limit in zip(memory, limits, strict=True))


class _Found(NamedTuple):
    """Lists, micro-batches of the body that all of them have, and where each has it."""

    lines: list[_Line]
    shift: int
    cuts: list[_Cut]


_overfull: PerObject[bool] = PerObject()
_bodies_of: PerObject[_Found | None] = PerObject()


def _kept(plan: Plan, which: str) -> Sequence[Sequence[Op]]:
    """The ops of every list that a longer one has where its body says; the others are placed anew."""
    if which == _ALL:
        return plan.orders
    if which == _LINE:
        return [_keeps_in_line(order) for order in plan.orders]
    late = {stage for order in plan.orders for stage in _late(order)}
    return [_keeps(order, late) for order in plan.orders]


def _found(plan: Plan, which: str) -> _Found | None:
    """The lists with their bodies; None where they have none."""
    size, now = update_size(plan), plan.problem.workload.micro_batches
    path = route(plan)
    known = np.array([path.get(m, -1) for m in range(now)], dtype=np.int64)
    lines = [_Line.of(listed, known) for listed in _kept(plan, which)]
    bodies = _bodies(lines, size, now // size)
    return None if bodies is None else _Found(lines, *bodies)


def _with_bodies(plan: Plan, which: str, micro_batches: int) -> Plan | None:
    """The plan with as many more bodies of these lists as the micro-batches need; None where they have none."""
    found = _bodies_of.get(plan, which, lambda: _found(plan, which))
    if found is None:
        return None
    lines, shift, cuts = found
    now = plan.problem.workload.micro_batches
    times = -(-(micro_batches - now) // shift)
    paths = _paths(plan, lines, cuts, shift, times)
    pipelines = tuple(
        Pipeline(p.forward, p.backward, tuple(m for m, path in enumerate(paths) if path == number))
        for number, p in enumerate(plan.pipelines)
    )
    orders = tuple(tuple(line.repeated(cut, shift, times)) for line, cut in zip(lines, cuts, strict=True))
    candidate = Candidate(_problem(plan, now + times * shift), plan.stages, pipelines, plan.stash, plan.weights)
    if which != _ALL:
        orders = complete(candidate, candidate.costs, orders)
    elif not _runs(candidate, orders):
        return None
    return replace(plan, problem=candidate.problem, pipelines=pipelines, orders=orders, forecast=None)


def _runs(candidate: Candidate, orders: Sequence[Sequence[Op]]) -> bool:
    """Whether every message of these lists has both ends, and no two of them wait for each other."""
    try:
        return build(candidate, candidate.costs, orders).complete
    except PlanError:
        return False


def _keeps_in_line(order: Sequence[Op]) -> list[Op]:
    """The ops of a list whose places a longer one keeps."""
    return [op for op in order if op.kind in _KEPT]


def _keeps(order: Sequence[Op], late: Set[int]) -> list[Op]:
    """The same, and what stands where it does for lack of room.

    FETCHes where each stands directly before the backward that it is for; what ships the stashes of stages whose
    RECV_Ss come late, SEND_Ss too: messages between two devices are taken in the order in which they are sent.
    """
    line = [op for op in order if op.kind in _KEPT or op.kind is Kind.FETCH]
    passes = [(op, after) for op, after in pairwise(line) if op.kind is Kind.FETCH]
    waits = all(after.kind in (Kind.B, Kind.I) and after[1:3] == op[1:3] for op, after in passes)
    kept = _KEPT | {Kind.FETCH} if waits else _KEPT
    return [op for op in order if op.kind in kept or (op.kind in _SHIPS and op.stage in late)]


def _late(order: Sequence[Op]) -> set[int]:
    """Stages whose RECV_Ss all stand directly before a backward of theirs, equally many micro-batches before their own.

    But for those that are there before the first backward.
    """
    waiting, leads, others = list[Op](), dict[int, set[int]](), set[int]()
    begun: set[int] = set()
    for op in order:
        if op.kind is Kind.RECV_S:
            waiting.append(op)
        elif op.kind in IN_LINE:
            for asked in (each for each in waiting if each.stage in begun):
                if op.kind in (Kind.B, Kind.I) and op.stage == asked.stage:
                    leads.setdefault(asked.stage, set()).add(asked.micro_batch - op.micro_batch)
                else:
                    others.add(asked.stage)
            waiting.clear()
            if op.kind in (Kind.B, Kind.I):
                begun.add(op.stage)
    return {stage for stage, found in leads.items() if len(found) == 1 and min(found) > 0} - others


def _problem(plan: Plan, micro_batches: int) -> Problem:
    workload = replace(plan.problem.workload, micro_batches=micro_batches)
    return replace(plan.problem, workload=workload)


def _bodies(lines: Sequence[_Line], size: int, updates: int) -> tuple[int, list[_Cut]] | None:
    """Micro-batches of the body that all lists have, and where each has it.

    Of several the one that repeats itself for most micro-batches: its multiples do so for less, and what only looks
    like one, between two micro-batches that are treated otherwise, for few. None other is looked for once that is half
    of them.
    """
    best: tuple[float, int, list[_Cut]] | None = None
    for shift in range(size, size * updates, size):
        found = list(takewhile(bool, (line.body(shift, size * updates) for line in lines)))
        cuts = [body[0] for body in found if body is not None]
        if len(cuts) < len(lines) or not _whole(lines, cuts, shift):
            continue
        seen = min(body[1] for body in found if body is not None)
        if best is None or seen * shift > best[0]:
            best = seen * shift, shift, cuts
        if (seen >= 1 and 2 * best[0] >= size * updates - shift) or best[0] >= size * updates - shift:
            break
    return None if best is None else best[1:]


def _whole(lines: Sequence[_Line], cuts: Sequence[_Cut], shift: int) -> bool:
    """Whether the bodies of all lists together hold every pass of `shift` micro-batches."""
    kinds = np.concatenate([line.columns[cut.first : cut.last, :2] for line, cut in zip(lines, cuts, strict=True)])
    stages = max(int(line.columns[:, 1].max(initial=0)) for line in lines) + 1
    for passes in ((Kind.F,), (Kind.B, Kind.I), (Kind.B, Kind.W)):
        stage = kinds[np.isin(kinds[:, 0], passes), 1]
        if (np.bincount(stage, minlength=stages) != shift).any():
            return False
    return True


def _paths(plan: Plan, lines: Sequence[_Line], cuts: Sequence[_Cut], shift: int, times: int) -> list[int]:
    """Pipeline of every micro-batch of the longer plan; raises PlanError where its ops do not agree."""
    total = plan.problem.workload.micro_batches + times * shift
    known = route(plan)
    found = np.full(total, -1, dtype=np.int64)
    for line, cut in zip(lines, cuts, strict=True):
        for old, new in zip(*line.micro_batches(cut, shift, times), strict=True):
            if found[new] not in (-1, known[old]):
                raise PlanError(f"cannot run {total} micro-batches: their pipelines do not repeat like their ops")
            found[new] = known[old]
    return [int(path) for path in found]


@dataclass(frozen=True)
class _Cut:
    """Where a list's body stands: places first..last-1, the next body begins at `last`."""

    first: int
    last: int


@dataclass(frozen=True)
class _Line:
    """One device's ops in line as columns.

    An op stands again where one of the same pipeline does: others have other devices or stashes.
    """

    ops: Sequence[Op]
    columns: Ints  # [op, (kind, stage, micro-batch, peer)]
    paths: Ints  # [op], the pipeline of its micro-batch

    @classmethod
    def of(cls, ops: Sequence[Op], known: Ints) -> _Line:
        columns = np.array([op[:4] for op in ops], dtype=np.int64).reshape(-1, 4)
        return cls(ops, columns, known[columns[:, 2]])

    def body(self, shift: int, count: int) -> tuple[_Cut, float] | None:
        """The longest stretch that stands again `shift` micro-batches later, and its length in bodies.

        None where there is none that leaves every op of a longer list there once.
        """
        if not self.ops:
            return _Cut(0, 0), float("inf")
        distance = self._distance(shift, count)
        edges = np.flatnonzero(np.diff(distance, prepend=0, append=0))
        runs = [(a, b) for a, b in pairwise(edges.tolist()) if distance[a] > 0]
        for a, b in sorted(runs, key=lambda run: run[0] - run[1]):
            cut = _Cut(a, a + int(distance[a]))
            if self._complete(cut, shift, count) and self._closes(cut, shift, count):
                return cut, (b - a) / (cut.last - cut.first)
        return None

    def _distance(self, shift: int, count: int) -> Ints:
        """How far behind each op its own repetition stands; 0: nowhere, or before it."""
        key = self._repeating * (count + shift) + self.columns[:, 2]
        order = np.argsort(key, kind="stable")
        at = np.minimum(np.searchsorted(key[order], key + shift), len(key) - 1)
        found = order[at] - np.arange(len(key))
        return np.where((key[order][at] == key + shift) & (found > 0), found, 0)

    @cached_property
    def _kinds(self) -> Ints:
        """A number for every kind, stage and peer."""
        return _numbered(self.columns[:, [0, 1, 3]])

    @cached_property
    def _repeating(self) -> Ints:
        """The same for every kind, stage, peer and pipeline."""
        return _numbered(np.column_stack([self._kinds, self.paths]))

    def _complete(self, cut: _Cut, shift: int, count: int) -> bool:
        """Whether the list with one more body has every op once, and each kind's micro-batches of one body more."""
        long = (self._kinds * (count + shift) + self.columns[:, 2])[self._places(cut, 1)]
        long[cut.last :] += shift
        long.sort()
        return not (long[1:] == long[:-1]).any()

    def _closes(self, cut: _Cut, shift: int, count: int) -> bool:
        """Whether the body has its share of every stage's STEPs and new parameters."""
        groups, whole = self._once
        inside = groups[cut.first : cut.last]
        part = np.bincount(inside[inside >= 0], minlength=len(whole))
        return bool((part * count == whole * shift).all())

    @cached_property
    def _once(self) -> tuple[Ints, Ints]:
        """Of every op the number of its kind and stage where an update has one of it, else -1; how many of each."""
        once = np.isin(self.columns[:, 0], (Kind.STEP.value, Kind.RECV_P.value))
        groups = np.where(once, self.columns[:, 0] * (self.columns[:, 1].max() + 1) + self.columns[:, 1], -1)
        return groups, np.bincount(groups[once])

    def _places(self, cut: _Cut, times: int) -> Ints:
        body = np.tile(np.arange(cut.first, cut.last), times)
        return np.concatenate([np.arange(cut.last), body, np.arange(cut.last, len(self.ops))])

    def _shifts(self, cut: _Cut, shift: int, times: int) -> tuple[Ints, Ints]:
        """Places of the ops of the list with so many more bodies, and by how many micro-batches each is shifted."""
        places = self._places(cut, times)
        bodies = np.repeat(np.arange(1, times + 1), cut.last - cut.first)
        rounds = np.concatenate([np.zeros(cut.last, dtype=np.int64), bodies, np.full(len(self.ops) - cut.last, times)])
        return places, shift * rounds

    def repeated(self, cut: _Cut, shift: int, times: int) -> list[Op]:
        """The list with so many more bodies."""
        places, shifts = self._shifts(cut, shift, times)
        ops = [self.ops[place] for place in places.tolist()]
        return [Op(kind, s, m + by, peer) for (kind, s, m, peer), by in zip(ops, shifts.tolist(), strict=True)]

    def micro_batches(self, cut: _Cut, shift: int, times: int) -> tuple[list[int], list[int]]:
        """Micro-batch of every pass of the list with so many more bodies: before the shift, and after."""
        places, shifts = self._shifts(cut, shift, times)
        passes = np.isin(self.columns[places, 0], [kind.value for kind in _PASSES])
        old = self.columns[places, 2]
        return old[passes].tolist(), (old + shifts)[passes].tolist()


def _numbered(rows: Ints) -> Ints:
    """The same number for equal rows, from 0 on."""
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
