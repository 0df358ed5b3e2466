"""Whether stages with replicas, ways and modes exist whose every load is within a target, over a family of ideals.

From the last ideal to the first: the fewest replicas in all (they decide what is in flight) for every number of devices
that the rest of the graph can be run on. A row of steps is what is left of them, more devices and fewer replicas each.

      ideal i      ...ideal j          rows of steps (devices, replicas) that are known for j
      |  one stage   |   the rest   |  t d more devices, d more replicas: steps of i, where a stage of
      +--------------+--------------+  the layers between them fits with ceil(replicas / d) in flight
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
# compiled functions: numba infers their types from Arrays and Goal

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from .ideals import unpack
from .mode_choice import NO, UNKNOWN, YES, choose
from .widths import WidthProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NEVER = 1 << 40
ROUNDING = 1e-11
"""Loads are differences of sums over ideals: so much more, relatively, still counts as within a target."""


class Arrays(NamedTuple):
    """A problem over a family of ideals. Axes: ways, then group, edge or ideal, then mode."""

    rows: NDArray[np.uint64]
    member: NDArray[np.uint8]
    ways: Ints
    replicas: Ints
    sync: Floats
    choices: Ints
    work: Floats
    weights: Floats
    flying: Floats
    static: Floats
    sums: Floats
    barred: Ints
    area: Floats
    source: Ints
    target: Ints
    cost: Floats
    entering: Floats
    leaving: Floats
    least_in: Floats
    least_out: Floats
    crossing: Ints
    crossing_of: Ints
    cut: Floats
    uniform: bool


class Goal(NamedTuple):
    """What is asked: a load, the devices, the replicas of all stages, bytes; whether what is unknown counts as yes."""

    load: float
    devices: int
    replicas: int
    limit: float
    hopeful: bool


WORK, WEIGHTS, FLYING, STATIC, LEAST_FLYING, LEAST_STATIC = range(6)
"""Rows of `sums`: of every group's fastest mode, the least of any, and so on, summed over each ideal."""


def arrays_of(problem: WidthProblem, masks: Sequence[int]) -> Arrays:
    """The problem over a family of ideals, the smaller first."""
    ways = sorted(problem.modes)
    deep = max((len(m) for t in ways for m in problem.modes[t]), default=1)
    shape = (len(ways), len(problem), max(1, deep))
    count = np.zeros(shape[:2], dtype=np.int64)
    work = np.full(shape, np.inf)
    weights, flying, static = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    edges = [(t.source, target, t.cost) for t in problem.graph.tensors for target in t.targets]
    edges = [] if problem.graph.overlap else edges
    place = {(a, b): e for e, (a, b, _) in enumerate(edges)}
    entering, leaving = np.zeros((shape[0], len(edges), shape[2])), np.zeros((shape[0], len(edges), shape[2]))
    for w, t in enumerate(ways):
        for g, modes in enumerate(problem.modes[t]):
            count[w, g] = len(modes)
            for k, mode in enumerate(modes):
                work[w, g, k], weights[w, g, k] = mode.work, mode.weight_bytes
                flying[w, g, k], static[w, g, k] = mode.in_flight_bytes, mode.static_bytes
                for other, cost in mode.entering.items():
                    entering[w, place[other, g], k] = cost
                for other, cost in mode.leaving.items():
                    leaving[w, place[g, other], k] = cost
    member = np.ascontiguousarray(unpack(masks, len(problem)))
    sums, barred, uniform = _sums(member, count, (work, weights, flying, static))
    uniform = uniform and _same(entering) and _same(leaving)
    source, target = (np.array([edge[end] for edge in edges], dtype=np.int64) for end in (0, 1))
    crossed = (member[:, source] > 0) & (member[:, target] == 0)
    replicas = sorted(problem.sync)
    found = Arrays(
        _packed(member), member, np.array(ways), np.array(replicas), np.array([problem.sync[d] for d in replicas]),
        count, work, weights, flying, static, sums, barred, member @ np.array(problem.area), source, target,
        np.array([edge[2] for edge in edges], dtype=float), entering, leaving,
        _least(entering, count[:, target]), _least(leaving, count[:, source]),
        np.flatnonzero(crossed) % max(1, len(edges)), np.concatenate([[0], np.cumsum(crossed.sum(axis=1))]),
        _cuts(problem, member), bool(uniform),
    )  # fmt: skip
    parts: Any = (np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part for part in found)
    return Arrays(*parts)  # one layout, so that it is compiled once


def _least(values: Floats, count: Ints) -> Floats:
    """The least of the modes that there are, 0 where there are none."""
    there = np.arange(values.shape[2]) < count[:, :, None]
    return np.where(count > 0, np.where(there, values, np.inf).min(axis=2), 0.0)


def _sums(member: NDArray[np.uint8], count: Ints, costs: tuple[Floats, ...]) -> tuple[Floats, Ints, bool]:
    """Sums over each ideal, how many groups cannot run in so many ways, and whether weights depend on no mode."""
    work, weights, flying, static = costs
    there = np.arange(work.shape[2]) < count[:, :, None]

    fastest = np.lexsort((np.where(there, static + flying, np.inf), np.where(there, work, np.inf)))[:, :, :1]
    own = [np.take_along_axis(values, fastest, axis=2)[:, :, 0] for values in (flying, static)]
    rows = [_least(work, count), _least(weights, count), *own, _least(flying, count), _least(static, count)]
    sums = np.stack([row @ member.T for row in rows])
    return (
        sums,
        (count == 0) @ member.T.astype(np.int64),
        bool((_least(weights, count) == -_least(-weights, count)).all()),
    )


def _same(values: Floats) -> bool:
    """Do they depend on no mode?"""
    return not values.size or bool((values == values[:, :, :1]).all())


def _packed(member: NDArray[np.uint8]) -> NDArray[np.uint64]:
    padded = np.zeros((len(member), -(-member.shape[1] // 64) * 8), dtype=np.uint8)
    packed = np.packbits(member.astype(bool), axis=1)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def _cuts(problem: WidthProblem, member: NDArray[np.uint8]) -> Floats:
    """Time of the tensors that cross each ideal's border, each once; nothing where it is not asked for."""
    cut = np.zeros(len(member))
    if problem.graph.overlap:
        for t in problem.graph.tensors:
            cut += t.cost * ((member[:, t.source] > 0) & (member[:, sorted(t.targets)] == 0).any(axis=1))
    return cut


@numba.njit(cache=True, nogil=True)
def decide(arrays, goal, row, end, start, steps):
    """Works through the ideals from `row` down to `end`: the first row that `steps` had no place for, else end - 1.

    `start[i]` and `start[i, 1]` say where the steps of ideal i begin and end; a step is (devices, replicas in all,
    next ideal, ways' position, replicas' position, the step it goes on with).
    """
    most = goal.devices
    best = np.empty(most + 1, np.int64)
    how = np.empty((most + 1, 4), np.int64)
    used = start[row + 1, 1]
    unknown = 0
    for i in range(row, end - 1, -1):
        if used + most + 1 > len(steps):
            return i, unknown
        for k in range(most + 1):
            best[k] = _NEVER
        unknown += _extend(arrays, goal, i, start, steps, best, how)
        start[i, 0] = used
        before = _NEVER
        for k in range(most + 1):
            if best[k] < before:
                before = best[k]
                steps[used, 0], steps[used, 1] = k, before
                for x in range(4):
                    steps[used, 2 + x] = how[k, x]
                used += 1
        start[i, 1] = used
    return end - 1, unknown


@numba.njit(cache=True, nogil=True)
def _extend(arrays, goal, i, start, steps, best, how):
    """One stage from ideal i to every later one, before every step known there; how many answers were unknown."""
    reserve = 1 if i > 0 else 0
    most_devices = goal.devices - max(reserve, int(np.ceil(arrays.area[i] / goal.load * (1 - ROUNDING) - 1e-9)))
    most = (most_devices, goal.replicas - reserve)
    unknown = 0
    for j in range(i + 1, len(arrays.rows)):
        if start[j, 0] == start[j, 1] or steps[start[j, 0], 0] >= most_devices:
            continue
        spent = (arrays.area[j] - arrays.area[i]) / goal.load * (1 - ROUNDING) - 1e-9
        if steps[start[j, 0], 0] + spent > most_devices or not _within(arrays.rows, i, j):
            continue
        for w in range(len(arrays.ways)):
            if arrays.barred[w, j] == arrays.barred[w, i]:
                unknown += _stage(arrays, goal, (i, j, w), most, (start, steps), (best, how))
    return unknown


@numba.njit(cache=True, nogil=True)
def _within(rows, i, j):
    outside = rows[i, 0] & ~rows[j, 0]
    for word in range(1, rows.shape[1]):
        outside |= rows[i, word] & ~rows[j, word]
    return outside == 0


@numba.njit(cache=True, nogil=True)
def _stage(arrays, goal, place, most, known_steps, own):
    """The stage between ideals i and j in so many ways, with every number of replicas, before every step of j."""
    i, j, w = place
    (start, steps), (best, how) = known_steps, own
    t = arrays.ways[w]
    work = arrays.sums[WORK, w, j] - arrays.sums[WORK, w, i] + _moved(arrays, i, j, w)
    weights = arrays.sums[WEIGHTS, w, j] - arrays.sums[WEIGHTS, w, i]
    widths = len(arrays.replicas)
    fine = np.empty(widths, np.bool_)
    known = np.empty((widths, 2), np.int64)  # fits with so many in flight, does not with so many
    some = False
    cut = max(arrays.cut[i], arrays.cut[j])
    for x in range(widths):
        d = arrays.replicas[x]
        load = max(work / d + arrays.sync[x] * weights, cut / d)
        fine[x] = load <= goal.load * (1 + ROUNDING)
        known[x, 0], known[x, 1] = 0, _NEVER
        some = some or (fine[x] and d * t <= most[0])
    unknown = 0
    if not some:
        return unknown
    for step in range(start[j, 0], start[j, 1]):
        if steps[step, 0] + t > most[0]:
            break
        for x in range(widths):
            d = arrays.replicas[x]
            k, s = steps[step, 0] + t * d, steps[step, 1] + d
            if k > most[0] or s > most[1]:
                break
            if not fine[x] or best[k] <= s:
                continue
            flying = -(-s // d)
            if flying > known[x, 0]:
                if flying >= known[x, 1]:
                    continue
                answer = _fits(arrays, goal, place, x, flying)
                unknown += answer == UNKNOWN
                if answer == NO or (answer == UNKNOWN and not goal.hopeful):
                    known[x, 1] = flying
                    continue
                known[x, 0] = flying
            while k <= most[0] and best[k] > s:  # whatever more devices had is no better
                best[k] = s
                how[k, 0], how[k, 1], how[k, 2], how[k, 3] = j, w, x, step
                k += 1
            break  # more replicas take more devices and leave more in flight before them
    return unknown


@numba.njit(cache=True, nogil=True)
def _moved(arrays, i, j, w):
    """Time of the edges between ideals i and j and the rest, with the least that is exchanged over them."""
    total = 0.0
    for x in range(arrays.crossing_of[i], arrays.crossing_of[i + 1]):
        e = arrays.crossing[x]
        if arrays.member[j, arrays.target[e]]:
            total += arrays.cost[e] + arrays.least_in[w, e]
    for x in range(arrays.crossing_of[j], arrays.crossing_of[j + 1]):
        e = arrays.crossing[x]
        if not arrays.member[i, arrays.source[e]]:
            total += arrays.cost[e] + arrays.least_out[w, e]
    return total


@numba.njit(cache=True, nogil=True)
def _fits(arrays, goal, place, x, flying):
    """Do modes exist for a stage between two ideals whose load is known to be within the goal at its least?"""
    i, j, w = place
    held = arrays.sums[FLYING, w, j] - arrays.sums[FLYING, w, i]
    held = flying * held + arrays.sums[STATIC, w, j] - arrays.sums[STATIC, w, i]
    if arrays.uniform and held <= goal.limit:
        return YES
    least = arrays.sums[LEAST_FLYING, w, j] - arrays.sums[LEAST_FLYING, w, i]
    least = flying * least + arrays.sums[LEAST_STATIC, w, j] - arrays.sums[LEAST_STATIC, w, i]
    if least > goal.limit * (1 + ROUNDING):
        return NO
    members, cost, memory, free = stage_costs(arrays, place, x, flying)
    count = np.empty(len(members), np.int64)
    for v in range(len(members)):
        count[v] = arrays.choices[w, members[v]]
    return choose(cost, memory, count, len(members), goal.load * (1 + ROUNDING) - free, goal.limit)


@numba.njit(cache=True, nogil=True)
def stage_costs(arrays, place, x, flying):
    """Groups between two ideals, time and memory of each in every mode, and the time that no mode has to do with."""
    i, j, w = place
    d, sync = arrays.replicas[x], arrays.sync[x]
    groups, deep = arrays.member.shape[1], arrays.work.shape[2]
    members, where = np.empty(groups, np.int64), np.empty(groups, np.int64)
    n = 0
    for g in range(groups):
        where[g] = -1
        if arrays.member[j, g] > arrays.member[i, g]:
            where[g], members[n] = n, g
            n += 1
    cost, memory = np.empty((n, deep)), np.empty((n, deep))
    for v in range(n):
        g = members[v]
        for k in range(deep):
            cost[v, k] = arrays.work[w, g, k] / d + sync * arrays.weights[w, g, k]
            memory[v, k] = flying * arrays.flying[w, g, k] + arrays.static[w, g, k]
    free = 0.0
    for y in range(arrays.crossing_of[i], arrays.crossing_of[i + 1]):
        e = arrays.crossing[y]
        v = where[arrays.target[e]]
        if v >= 0:
            free += arrays.cost[e] / d
            for k in range(deep):
                cost[v, k] += arrays.entering[w, e, k] / d
    for y in range(arrays.crossing_of[j], arrays.crossing_of[j + 1]):
        e = arrays.crossing[y]
        v = where[arrays.source[e]]
        if v >= 0:
            free += arrays.cost[e] / d
            for k in range(deep):
                cost[v, k] += arrays.leaving[w, e, k] / d
    return members[:n], cost, memory, free
