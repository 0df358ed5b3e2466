"""A candidate as the arrays that the kernels read, and scratch space for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...basics import PlanError
from ...bounds import finishes
from ...graph import (
    OFFLOAD,
    SHIP,
    Candidate,
    StashPolicy,
    gather_seconds,
    holders,
    ship_target,
    stash_policy,
    static_bytes,
    step_seconds,
)
from ...plan import Pipeline
from ...problem import StageCosts
from ..common import limits
from .kernels import KINDS, Arrays, B, F, Floats, Ints, Work


def mirror(candidate: Candidate) -> dict[int, int] | None:
    """The twin of every device when the two pipelines are mirror images with equal shares; None otherwise.

    Then the second pipeline may do on every device's twin what the first does, at the same time: half of the
    problem is searched. A restriction that loses little (it may exclude the optimum).
    """
    if len(candidate.pipelines) != 2:
        return None
    down, up = candidate.pipelines
    twin = dict(zip(down.forward, up.forward, strict=True))
    cluster = candidate.problem.cluster
    limit = limits(candidate.problem)
    same = all(
        twin.get(e) == d and d != e and cluster.devices[d].kind == cluster.devices[e].kind and limit[d] == limit[e]
        for d, e in twin.items()
    )
    if not same or len(down.micro_batches) != len(up.micro_batches) or candidate.stash[0] != candidate.stash[1]:
        return None
    if any(OFFLOAD in row for row in candidate.stash) and len(set(cluster.host_links)) < len(cluster):
        return None
    hops = [(down.forward[e.producer], down.forward[e.consumer]) for e in candidate.costs.edges]
    if any(
        a != b and (cluster.link(a, b), cluster.same_node(a, b)) != (cluster.link(*t), cluster.same_node(*t))
        for a, b in hops
        for t in [(twin[a], twin[b])]
    ):
        return None
    return twin


@dataclass(frozen=True)
class _Units:
    """Columns of the units: one pipeline's stage each."""

    stage: Ints
    home: Ints
    batches: Ints
    policy: tuple[str, ...]


def _units(candidate: Candidate, pipelines: Sequence[Pipeline], place: dict[int, int]) -> _Units:
    stages = len(candidate.stages)
    return _Units(
        np.tile(np.arange(stages), len(pipelines)),
        np.array([place[d] for p in pipelines for d in p.forward], dtype=np.int64),
        np.repeat([len(p.micro_batches) for p in pipelines], stages).astype(np.int64),
        tuple(policy for row in candidate.stash[: len(pipelines)] for policy in row),
    )


def build(candidate: Candidate, split: bool = True, lowered: Sequence[int] = (), folded: bool = False) -> Arrays:
    """The arrays of a candidate.

    split: backward in two halves where the stage's layers allow it. lowered: bytes taken off every device's limit.
    folded: only the first pipeline of a mirrored candidate, each device standing for its twin as well.
    """
    costs, problem = candidate.costs, candidate.problem
    devices = len(problem.cluster)
    twin = {d: d for d in range(devices)} | ((mirror(candidate) or {}) if folded else {})
    place = {d: min(d, e) for d, e in twin.items()}
    pipelines = candidate.pipelines[:1] if folded else candidate.pipelines
    units = _units(candidate, pipelines, place)
    _require_known(candidate)
    remade = np.array([stash_policy(policy).remade for policy in units.policy])
    away = np.array([stash_policy(policy).leaves for policy in units.policy])
    halves = np.array(costs.separable)[units.stage] & split
    speed = np.array([x.kind.speed for x in problem.cluster.devices])[units.home]
    duration = _durations(candidate, units, halves) / np.tile(speed, KINDS)
    need, delta = _bytes(candidate, units, halves, remade)
    used = np.ones(len(halves), dtype=bool)
    times = np.concatenate([units.batches * flag for flag in (used, used, halves, remade, away, away)])
    home = np.tile(units.home, KINDS)
    static = np.array([sum(parts.values()) for parts in static_bytes(candidate, costs)], dtype=np.int64)
    limit = np.array(limits(problem), dtype=np.int64) - static
    if len(lowered):
        limit = limit - np.array(lowered, dtype=np.int64)
    order = np.lexsort((np.arange(len(units.stage)), units.stage, units.home)).astype(np.int64)
    finish = finishes(candidate)
    tail = [finish(s, d) for p in pipelines for s, d in enumerate(p.backward)]
    into, outof, source, target, lag, work, link = _edges(candidate, pipelines, twin)
    return Arrays(
        _offsets(np.bincount(home, times, devices)), home, duration, need, delta, units.batches, halves, remade, away,
        np.array(tail, dtype=np.float64), *_copies(candidate, pipelines, place), *into, *outof, source, target, lag,
        work, link, limit, np.bincount(home, times * duration, devices).astype(np.float64),
        _done(candidate, place),
        _offsets(np.bincount(units.home, minlength=devices)), order, devices * devices + 2 * devices,
    )  # fmt: skip


def _done(candidate: Candidate, place: Mapping[int, int]) -> Floats:
    """By device, the seconds of the steps of its stages, which come after all else, and of the shortest gathering."""
    owners, costs, found = holders(candidate), candidate.costs, np.zeros(len(candidate.problem.cluster))
    for d, at in place.items():
        mine = {s for pipeline in candidate.pipelines for s, on in enumerate(pipeline.backward) if on == d}
        steps = sum(step_seconds(candidate, costs, s, d, owners) for s in mine)
        gathers = (gather_seconds(candidate.problem, owners[s], int(costs.own_trained_bytes[s])) for s in mine)
        found[at] = max(found[at], steps + min(map(sum, gathers), default=0.0))
    return found


def knows(candidate: Candidate) -> bool:
    """Whether the arrays have columns for a candidate's stash policies: not for others than ours that leave."""
    return all(_known(stash_policy(policy)) for row in candidate.stash for policy in row)


def _known(row: StashPolicy) -> bool:
    return not row.leaves or row.name in (OFFLOAD, SHIP)


def _require_known(candidate: Candidate) -> None:
    """Raises PlanError for what these arrays have no columns for: other policies, two devices a stage."""
    for policy in {policy for row in candidate.stash for policy in row}:
        if not _known(stash_policy(policy)):
            raise PlanError(f"order search: no columns for the stash policy {policy!r}: it leaves its device")
    if any(pipeline.forward != pipeline.backward for pipeline in candidate.pipelines):
        raise PlanError("order search: forward and backward of a stage run on one device")


def _offsets(counts: NDArray[np.generic]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _durations(candidate: Candidate, units: _Units, halves: NDArray[np.bool_]) -> Floats:
    costs, stage = candidate.costs, units.stage
    forward = costs.forward_s[stage]
    back = np.where(halves, costs.backward_input_s[stage], costs.backward_s[stage])
    weight = np.where(halves, costs.backward_weight_s[stage], 0.0)
    nothing = np.zeros(len(stage))
    again = _of_policies(units, {policy: stash_policy(policy).remake_s(costs) for policy in set(units.policy)})
    return np.concatenate([forward, back, weight, again, nothing, nothing])


def _bytes(
    candidate: Candidate, units: _Units, halves: NDArray[np.bool_], remade: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """By op type, the most bytes an op holds beside what is live, and what it leaves (see planner.memory)."""
    costs, stage = candidate.costs, units.stage
    kept, stash = _stashes(costs, units)
    later, work = costs.weight_stash_bytes[stage], costs.workspaces
    forward, backward = work.forward.copy(), 0 * work.backward
    for producer, consumer, size in costs.edges:
        forward[producer] += size
        backward[producer] += size
        backward[consumer] += size
    change = np.where(halves, later - stash, -stash)
    nothing = np.zeros(len(stage), dtype=np.int64)
    delta = [kept, change, np.where(halves, -later, 0), np.where(remade, stash - kept, 0), -stash, stash]
    rows = {policy: stash_policy(policy) for policy in set(units.policy)}
    again = np.where(remade, np.maximum(stash - kept, 0), 0)
    again = again + _of_policies(units, {policy: row.again_bytes(costs) for policy, row in rows.items()})
    inner = _of_policies(units, {policy: row.beside_bytes(costs) for policy, row in rows.items()})
    back = np.maximum(change, 0) + np.where(halves, work.inputs[stage], work.backward[stage]) + backward[stage]
    need = [kept + forward[stage] + inner, back, work.weights[stage], again, nothing, stash]
    return np.concatenate(need).astype(np.int64), np.concatenate(delta).astype(np.int64)


def _of_policies(units: _Units, tables: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """By unit, what its policy's table says of its stage."""
    return np.array([tables[policy][s] for policy, s in zip(units.policy, units.stage, strict=True)])


def _stashes(costs: StageCosts, units: _Units) -> tuple[Ints, Ints]:
    """By unit, the bytes that a forward leaves under the unit's policy, and those that its backward finds."""
    held = {policy: stash_policy(policy).held_bytes(costs) for policy in set(units.policy)}
    ends = ([held[policy][at][2][s] for policy, s in zip(units.policy, units.stage, strict=True)] for at in (0, -1))
    left, found = (np.array(column, dtype=np.int64) for column in ends)
    return left, found


def _copies(
    candidate: Candidate, pipelines: Sequence[Pipeline], place: dict[int, int]
) -> tuple[Floats, Floats, Ints, Ints, Ints]:
    """By unit: seconds and latency of a copy of its stash over the host link or to another device, the engines or links
    out and in, and whose guests its stashes are.
    """
    cluster = candidate.problem.cluster
    devices, first = len(cluster), dict[int, int]()
    for device in cluster.devices:
        first.setdefault(device.node, device.index)
    base, rows = devices * devices, []
    for pipeline, row in zip(pipelines, candidate.stash, strict=False):
        for stage, (d, policy) in enumerate(zip(pipeline.forward, row, strict=True)):
            node, target = cluster.devices[d].node, ship_target(policy)
            group = cluster.node_groups[node]
            link = group.host_link if target is None else cluster.link(d, target)
            seconds = link.occupation_s(int(candidate.costs.stash_bytes[stage]))
            if target is None:
                shared = place[first[node] + (d - first[node]) // group.host_link_shared_by]
                rows.append((seconds, link.latency_s, base + shared, base + devices + shared, -1))
            else:
                there, back = d * devices + target, target * devices + d
                rows.append((seconds, link.latency_s, there, back, there))
    work, lag, out, into, lent = (np.array(column) for column in zip(*rows, strict=True))
    return (
        work.astype(np.float64), lag.astype(np.float64),
        out.astype(np.int64), into.astype(np.int64), lent.astype(np.int64),
    )  # fmt: skip


def _edges(
    candidate: Candidate, pipelines: Sequence[Pipeline], twin: dict[int, int]
) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints], Ints, Ints, Floats, Floats, Ints]:
    """Messages between units, activations and gradients, with CSR lists of those into and out of each op type."""
    cluster, stages = candidate.problem.cluster, len(candidate.stages)
    devices, units = len(cluster), len(pipelines) * stages
    rows: list[tuple[int, int, int, float, float, int]] = []
    for p, pipeline in enumerate(pipelines):
        for producer, consumer, size in candidate.costs.edges:
            for kind, x, y in ((F, producer, consumer), (B, consumer, producer)):
                s, t = pipeline.forward[x], pipeline.forward[y]
                way = cluster.link(s, t)
                times = (0.0, 0.0) if s == t else (way.latency_s, way.occupation_s(size))
                first = kind * units + p * stages
                link = min(s * devices + t, twin[s] * devices + twin[t])
                rows.append((first + x, first + y, min(t, twin[t]), *times, link))
    source, sink, target = (np.array([row[k] for row in rows], dtype=np.int64) for k in range(3))
    lag, work = (np.array([row[k] for row in rows], dtype=np.float64) for k in (3, 4))

    def listed(ends: Ints) -> tuple[Ints, Ints]:
        return _offsets(np.bincount(ends, minlength=KINDS * units)), np.argsort(ends, kind="stable").astype(np.int64)

    return listed(sink), listed(source), source, target, lag, work, np.array([r[5] for r in rows], dtype=np.int64)


def scratch(a: Arrays) -> Work:
    """Scratch space for one thread."""
    types, units, most = len(a.home), len(a.batches), int(a.batches.max())
    total, devices = int(a.first[-1]), len(a.first) - 1
    pairs = devices * devices if (a.lent >= 0).any() else 0

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return Work(
        ints(types), ints(devices), ints(devices), np.zeros(devices), np.zeros(devices), ints(devices),
        np.zeros((len(a.edge_lag), most)), np.zeros((units, most)), np.zeros(devices),
        ints(devices), ints(pairs), ints(pairs), np.zeros((units, most)),
        np.zeros(a.links), ints(devices), np.zeros(devices, dtype=np.bool_), ints(total), ints(devices),
        ints(devices), ints(total), np.zeros(total), ints(total), ints(types, most), ints(2), ints(total), ints(total),
        np.zeros(total), np.zeros(total), np.zeros(total), ints(total), ints(total),
    )  # fmt: skip
