"""Which versions of weights outlive the STEP that replaces them, read off columns of op lists."""

from __future__ import annotations

import numpy as np

from ..basics import PerObject
from ..graph import Ints, Ops, Structured, update_size, weights_offloaded
from ..plan import Kind
from ..problem import BATCH, CURRENT, WEIGHT_POLICIES

_BACKWARD = (Kind.B, Kind.I, Kind.W, Kind.R)
Kept = tuple[Ints, Ints]
_known: PerObject[Kept] = PerObject(2)


def kept_copies(plan: Structured, ops: Ops) -> Kept:
    """Of every version that outlives its replacement: the op that replaces it and the last that reads it."""
    return _known.get(ops, plan.weights, lambda: _kept(plan, ops))


def _kept(plan: Structured, ops: Ops) -> Kept:
    replaces = ops.where(Kind.STEP, Kind.RECV_P)
    group = ops.device * ops.stages + ops.stage
    by_group = replaces[np.argsort(group[replaces], kind="stable")]
    keys, span = group[by_group] * (len(ops) + 1) + by_group, len(ops) + 1
    first = np.searchsorted(keys, group * span)  # of every op's stage on its device

    version = _taken(plan, ops, np.searchsorted(keys, group * span + np.arange(len(ops))) - first)
    readers, read = _reading(plan, ops, version)
    number = np.arange(len(by_group)) - first[by_group]
    most = max(number.max(initial=0), read.max(initial=0)) + 1
    last = np.full(len(by_group), -1, dtype=np.int64)
    wanted = group[by_group] * most + number
    place = np.searchsorted(wanted, group[readers] * most + read)
    found = place < len(wanted)
    found[found] = wanted[place[found]] == (group[readers] * most + read)[found]
    np.maximum.at(last, place[found], readers[found])
    outlives = last > by_group
    return by_group[outlives], last[outlives]


def _taken(plan: Structured, ops: Ops, newest: Ints) -> Ints:
    """The version that the forward of every stage and micro-batch uses, [stages, micro-batches]; `newest`: by op."""
    policy, update, forward = WEIGHT_POLICIES[plan.weights], update_size(plan), ops.table(Kind.F)
    found = newest[forward]
    if policy.takes == CURRENT:
        return found
    entry = found[0]
    if policy.takes == BATCH:
        entry = np.repeat(entry.reshape(-1, update).min(axis=1), update)
    return np.broadcast_to(entry, found.shape)


def _reading(plan: Structured, ops: Ops, version: Ints) -> tuple[Ints, Ints]:
    """The ops that read a version, and which. A backward whose version comes back from the host reads none here; what
    takes it there does.
    """
    away = np.zeros(version.shape, dtype=np.int64)
    for stage, m in weights_offloaded(plan):
        away[stage, m] = 1
    own = np.broadcast_to(np.arange(version.shape[1]) // update_size(plan), version.shape)
    back = version if WEIGHT_POLICIES[plan.weights].stashed else own
    forwards, backwards, leaving = ops.where(Kind.F), ops.where(*_BACKWARD), ops.where(Kind.OFFLOAD)
    backwards, leaving = backwards[ops.at(away, backwards) == 0], leaving[ops.at(away, leaving) == 1]
    readers = np.concatenate([forwards, leaving, backwards])
    versions = [ops.at(version, forwards), ops.at(version, leaving), ops.at(back, backwards)]
    return readers, np.concatenate(versions)
