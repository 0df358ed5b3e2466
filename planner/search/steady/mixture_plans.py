"""Layers as the compiled timetable of `modulo` reads them, and the op lists of its times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ...basics import PlanError
from ...graph import (
    KEEP,
    OFFLOAD,
    RECOMPUTE,
    Candidate,
    parameter_returns,
    require_sound,
    stash_policy,
    training_bytes,
    update_ends,
)
from ...lower import Assembled, assembled
from ...plan import Kind, Op, Pipeline
from ...problem import BATCH, CURRENT, ENTRY, WEIGHT_POLICIES
from .. import modulo
from ..common import limits
from .rules import Rules
from .separate import require_runs
from .tables import Floats, Split, predict_seconds

POLICIES = {modulo.KEEP: KEEP, modulo.LATE: KEEP, modulo.RECOMPUTE: RECOMPUTE, modulo.HOST: OFFLOAD}
_VERSIONS = {CURRENT: modulo.CURRENT, ENTRY: modulo.ENTRY, BATCH: modulo.BATCH}
CODES = {KEEP: modulo.KEEP, RECOMPUTE: modulo.RECOMPUTE, OFFLOAD: modulo.HOST}
_MOVE, _FREE, _COMPUTE = range(3)
"""What comes first at equal times."""
_TICKS, _AHEAD, _FREED = 10**8, 3, 6
"""Times are whole numbers, so many a period, the same for every micro-batch; what moves is listed so many before its
time, and what waits until something has left before that."""


@dataclass(frozen=True)
class Method:
    """A weight policy on all devices as one group. update: micro-batches. stages: at the most."""

    name: str
    update: int
    stages: int

    @property
    def rules(self) -> Rules:
        """What it asks of a stage."""
        return Rules(WEIGHT_POLICIES[self.name], self.update, False)


def case_of(split: Split, method: Method, halves: bool = True) -> modulo.Case:
    """The layers of a problem on its devices as one group; halves: whether backwards may be two ops."""
    problem, chain, x = split.whole, split.chain, split.intervals
    costs, cluster, train, devices = chain.costs, problem.cluster, problem.workload, range(len(problem.cluster))
    rows = zip(costs.own_bytes, costs.parameter_tensors, costs.own_trained_bytes, strict=True)
    owned = np.array([sum(training_bytes(train, int(p), int(n), int(t)).values()) for p, n, t in rows])
    boundary, policy = chain.boundary_bytes.astype(float), WEIGHT_POLICIES[method.name]
    boundary[0] = boundary[-1] = 0.0
    trained = _before(costs.own_trained_bytes)
    return modulo.Case(
        forward=_before(costs.forward_s),
        backward=_before(costs.backward_s),
        inputs=_before(costs.backward_input_s),
        whole=_before([not each for each in costs.separable]),
        around=chain.around_s,
        step=np.array([chain.step_s(d) / method.update for d in devices]),
        predict=np.array([predict_seconds(problem, d, policy, trained) for d in devices]),
        stash=chain.stash.ends,
        unstashed=chain.stash.begins,
        owned=_before(owned + costs.buffer_bytes),
        lent=_before(costs.own_bytes + costs.buffer_bytes),
        trained=trained,
        boundary=boundary,
        work=x.workspace.astype(np.float64),
        incoming=x.incoming.astype(np.float64),
        inner=_inner(boundary),
        speed=np.array([device.kind.speed for device in cluster.devices], dtype=np.float64),
        limit=np.array(limits(problem), dtype=np.float64),
        update=method.update,
        versions=_VERSIONS[policy.takes] if policy.stashed else modulo.ONE,
        predicts=int(policy.predicts),
        halves=int(halves),
        apart=_apart(train.micro_batches, method.update),
        **_links(split),
    )


def _apart(micro_batches: int, update: int) -> float:
    """Periods between the first and the last pass of a device at most, so that a run has an update to repeat."""
    most = micro_batches - 2 * update
    return float(most) if most > 0 else math.inf


def _links(split: Split) -> dict[str, Any]:
    """What the case says of links between devices, and to the hosts."""
    cluster, devices = split.whole.cluster, range(len(split.whole.cluster))
    hosts = [cluster.node_groups[device.node].host_link for device in cluster.devices]
    links = [[cluster.link(a, b) for b in devices] for a in devices]
    return {
        "node": np.array([device.node for device in cluster.devices], dtype=np.int64),
        "host": np.array(cluster.host_links, dtype=np.int64),
        "host_pace": np.array([link.occupation_s(1) for link in hosts], dtype=np.float64),
        "host_lag": np.array([link.latency_s for link in hosts], dtype=np.float64),
        "pace": np.array([[link.occupation_s(1) for link in row] for row in links], dtype=np.float64),
        "lag": np.array([[link.latency_s for link in row] for row in links], dtype=np.float64),
    }


def _before(values: Any) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])


def _inner(boundary: Floats) -> Floats:
    """The largest tensor inside every interval of layers."""
    count = len(boundary)
    found = np.zeros((count, count))
    for i in range(count - 2):
        found[i, i + 2 :] = np.maximum.accumulate(boundary[i + 1 : -1])
    return found


def built(split: Split, method: Method, arm: modulo.Arm) -> Assembled | None:
    """The plan of an arm's decisions without its period; None where they do not run."""
    times = arm.times()
    if times is None:
        return None
    stages, problem = arm.stages, split.whole
    ends = (0, *(end for end, *_ in stages))
    batches = tuple(range(problem.workload.micro_batches))
    pipeline = Pipeline(tuple(a for _, a, _, _ in stages), tuple(b for _, _, b, _ in stages), batches)
    row = tuple(POLICIES[code] for *_, code in stages)
    try:
        candidate = Candidate(
            problem, tuple(split.chain.names[a:b] for a, b in pairwise(ends)), (pipeline,), (row,), method.name
        )
        require_sound(candidate)
        require_runs(candidate)
        return assembled(candidate, listed(candidate, times, arm.period_s), "search", period=False)
    except PlanError:
        return None


def listed(candidate: Candidate, times: modulo.Floats, period: float) -> list[list[Op]]:
    """The passes of all micro-batches and the ends of what moves, at their times, device by device.

    A stash that has left is freed where the times say so, so what follows may use its memory; what is sent, or asked
    for, stands behind the op that has ended before.
    """
    lines: list[list[tuple[int, int, int, int, Op]]] = [[] for _ in candidate.problem.cluster.devices]
    arriving: defaultdict[tuple[int, int], list[tuple[int, int, int, Op]]] = defaultdict(list)
    (pipeline,), (row,) = candidate.pipelines, candidate.stash
    at = [[0 if math.isnan(time) else round(time / period * _TICKS) for time in row] for row in times.tolist()]
    halved = ~np.isnan(times[modulo.WEIGHTS])
    for s, text in enumerate(row):
        here, there, policy = pipeline.forward[s], pipeline.backward[s], stash_policy(text)
        apart, behind = here != there and not policy.hosted, 2 * len(row) - s
        passes = [(here, modulo.FORWARD, s, Kind.F)]
        if halved[s]:
            passes += [(there, modulo.BACKWARD, 2 * behind, Kind.I), (there, modulo.WEIGHTS, 2 * behind, Kind.W)]
        else:
            passes.append((there, modulo.BACKWARD, 2 * behind, Kind.B))
        if policy.remade:
            passes.append((there, modulo.BACKWARD, behind, Kind.R))
        for i, m in enumerate(pipeline.micro_batches):
            begin = [time[s] + i * _TICKS for time in at]
            for d, which, number, kind in passes:
                lines[d].append((begin[which], _COMPUTE, begin[which], number, Op(kind, s, m)))

            left = begin[modulo.LEFT] - _FREED
            if apart:
                leaving, asked = begin[modulo.SENDING] - _AHEAD + 1, begin[modulo.RECEIVING] - _AHEAD
                key = begin[modulo.SENDING], begin[modulo.SENT]
                lines[here].append((leaving, _MOVE, begin[modulo.SENT], s, Op(Kind.SEND_S, s, m, there)))
                arriving[here, there].append((*key, asked, Op(Kind.RECV_S, s, m, here)))
                left = max(left, leaving)  # no bytes have left when they begin to
            if policy.hosted:
                fetching, leaving = begin[modulo.FETCHING] - _AHEAD, begin[modulo.SENDING] - _AHEAD + 1
                leaving = max(leaving, begin[modulo.FORWARD] + 1)
                left = max(left, leaving)
                lines[here].append((leaving, _MOVE, begin[modulo.SENT], s, Op(Kind.OFFLOAD, s, m)))
                lines[there].append((fetching, _MOVE, begin[modulo.FETCHED], s, Op(Kind.FETCH, s, m)))
            if apart or policy.hosted:
                lines[here].append((left, _FREE, begin[modulo.LEFT], s, Op(Kind.FREE, s, m)))
    for s, source, target in parameter_returns(candidate, candidate.costs):
        for m in update_ends(candidate):
            last = modulo.WEIGHTS if halved[s] else modulo.BACKWARD
            posted = at[last][s] + m * _TICKS + _AHEAD  # right behind the backward
            asked = at[modulo.RETURNING][s] + m * _TICKS - _AHEAD
            arriving[source, target].append((posted, posted, asked, Op(Kind.RECV_P, s, m, source)))
    for (_, target), mine in arriving.items():
        last = min(asked for *_, asked, _ in mine)
        for _, sent, asked, op in sorted(mine):  # in the order in which they are sent
            last = max(last, asked)
            lines[target].append((last, _MOVE, sent, op.stage, op))
    return [_needed([op for *_, op in sorted(line)]) for line in lines]


def _needed(line: Sequence[Op]) -> list[Op]:
    """A list without the FREEs that nothing waits for."""
    waiting = {Kind.F, Kind.RECV_S, Kind.FETCH, Kind.R}
    last = max((k for k, op in enumerate(line) if op.kind in waiting), default=-1)
    return [op for k, op in enumerate(line) if op.kind is not Kind.FREE or k < last]
