"""Which versions of weights outlive the STEP that replaces them, read off columns of op lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..plan import Kind
from ..problem import BATCH, CURRENT, WEIGHT_POLICIES
from .candidate import weights_offloaded
from .columns import Ints, Ops
from .structured import Structured, update_size
from .versions import Scheduled

_BACKWARD = (Kind.B, Kind.I, Kind.W, Kind.R)


@dataclass(frozen=True)
class Kept:
    """A version that is still used after the STEP (or arrival) that replaces it: a copy of its own until then.

    `until`: place of the last op in the device's list that reads it.
    """

    stage: int
    version: int
    replaced: int
    until: int


def kept_versions(plan: Scheduled) -> list[list[Kept]]:
    """Per device, the versions that outlive their replacement, in the order in which they are replaced."""
    ops = Ops.of(plan.orders, len(plan.stages))
    found: list[list[Kept]] = [[] for _ in plan.orders]
    first = ops.first.tolist()
    for replaced, until, version in sorted(zip(*(column.tolist() for column in kept_copies(plan, ops)), strict=True)):
        device = int(ops.device[replaced])
        kept = Kept(int(ops.stage[replaced]), version, replaced - first[device], until - first[device])
        found[device].append(kept)
    return found


def kept_copies(plan: Structured, ops: Ops) -> tuple[Ints, Ints, Ints]:
    """Of every version that outlives its replacement: the op that replaces it, the last that reads it, its number."""
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
    return by_group[outlives], last[outlives], number[outlives]


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
