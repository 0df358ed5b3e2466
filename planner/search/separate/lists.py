"""What the dispatcher wrote as a candidate and its op lists."""

from __future__ import annotations

import numpy as np

from ... import graph
from ...graph import Candidate, regroup
from ...plan import Kind, Op, Pipeline, Problem
from .case import Stages
from .tables import (
    AWAY,
    BATCH_AT,
    BATCHES,
    DEVICE_AT,
    FETCH,
    FREE,
    FRONT,
    HALVES,
    HOST,
    KEEP,
    LOGGED,
    POLICY,
    QUARTERS,
    REAR,
    RECEIVE,
    RECOMPUTE,
    SEND,
    STAGE_AT,
    STAGES,
    TARGET,
    TURNS,
    B,
    F,
    Ints,
    R,
    W,
    Work,
)  # fmt: skip

_KINDS = {
    F: Kind.F, B: Kind.B, W: Kind.W, R: Kind.R, SEND: Kind.SEND_S, RECEIVE: Kind.RECV_S, FETCH: Kind.FETCH,
    FREE: Kind.FREE,
}  # fmt: skip
_MAKES = frozenset({Kind.F, Kind.R, Kind.RECV_S, Kind.FETCH})
_NAMES = {KEEP: graph.KEEP, RECOMPUTE: graph.RECOMPUTE, HOST: graph.OFFLOAD}


def candidate_of(problem: Problem, stages: Stages, dec: Ints) -> Candidate:
    """The candidate of these decisions: one route, a row of stash policies for every turn of the micro-batches."""
    batches = problem.workload.micro_batches
    route = Pipeline(tuple(dec[FRONT].tolist()), tuple(dec[REAR].tolist()), tuple(range(batches)))
    rows = {m: tuple(_policy(dec, s, m) for s in range(len(stages))) for m in range(batches)}
    return regroup(problem, stages, (route,), rows)


def _policy(dec: Ints, s: int, m: int) -> str:
    """The text of a stash's policy; what cannot be shipped away and back is kept."""
    chosen = int(dec[POLICY, s]) if int(dec[TURNS, s]) >> (m % QUARTERS) & 1 else KEEP
    if chosen != AWAY:
        return _NAMES[chosen]
    home, target = int(dec[FRONT, s]), int(dec[TARGET, s])
    return graph.KEEP if home != int(dec[REAR, s]) or home == target else f"{graph.SHIP}>{target}"


def op_lists(dec: Ints, work: Work) -> list[list[Op]]:
    """Per device what the dispatcher wrote last; FREEs that nothing waits for are left out."""
    found = []
    for log, length in zip(work.log, work.device[LOGGED], strict=True):
        codes = log[:length]
        at = (codes >> STAGE_AT) & STAGES, (codes >> BATCH_AT) & BATCHES, (codes >> DEVICE_AT) - 1
        columns = (codes & 7, *at)
        line = [_op(dec, *row) for row in zip(*map(np.ndarray.tolist, columns), strict=True)]
        last = max((n for n, op in enumerate(line) if op.kind in _MAKES), default=-1)
        found.append([op for n, op in enumerate(line) if op.kind is not Kind.FREE or n < last])
    return found


def _op(dec: Ints, code: int, s: int, k: int, peer: int) -> Op:
    kind = Kind.I if code == B and dec[HALVES, s] else _KINDS[code]
    return Op(kind, s, k, peer) if code in (SEND, RECEIVE) else Op(kind, s, k)
