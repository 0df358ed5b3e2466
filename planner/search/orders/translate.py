"""Orders of op types to and from lists of ops, and stashes that leave the device woven into an order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...operations import Candidate
from ...plan import Kind, Op
from .arrays import mirror
from .kernels import FETCH, FREE, Arrays, B, F, Ints, R, W

_KINDS = {F: Kind.F, B: Kind.B, W: Kind.W, R: Kind.R, FREE: Kind.FREE, FETCH: Kind.FETCH}
_CODES = {Kind.F: F, Kind.B: B, Kind.I: B, Kind.W: W, Kind.R: R, Kind.FREE: FREE, Kind.FETCH: FETCH}


def from_ops(candidate: Candidate, a: Arrays, orders: Sequence[Sequence[Op]]) -> Ints:
    """The op types of compute orders; whole backwards of stages that can be split are taken apart.

    Micro-batches are taken first in first out per unit. Not for folded arrays.
    """
    units, stages = len(a.batches), len(candidate.stages)
    pipeline = {m: p for p, line in enumerate(candidate.pipelines) for m in line.micro_batches}
    seq: list[int] = []
    for order in orders:
        for op in order:
            if op.kind not in _CODES:
                continue
            unit = pipeline[op.micro_batch] * stages + op.stage
            if op.kind == Kind.W and not a.split[unit]:
                continue
            seq.append(_CODES[op.kind] * units + unit)
            if op.kind == Kind.B and a.split[unit]:
                seq.append(W * units + unit)
    return np.array(seq, dtype=np.int64)


def to_ops(candidate: Candidate, a: Arrays, seq: Ints, folded: bool = False) -> list[list[Op]]:
    """Compute orders per device; of folded arrays, both pipelines' orders on every device and its twin."""
    units, stages = len(a.batches), len(candidate.stages)
    counts = [0] * len(a.home)
    orders: list[list[Op]] = [[] for _ in candidate.problem.cluster.devices]
    twin = (mirror(candidate) or {}) if folded else {}
    for d, (low, high) in enumerate(zip(a.first[:-1].tolist(), a.first[1:].tolist(), strict=True)):
        for o in seq[low:high].tolist():
            code, unit = divmod(o, units)
            p, s = divmod(unit, stages)
            kind = Kind.I if code == B and a.split[unit] else _KINDS[code]
            for q in (0, 1) if folded else (p,):
                here = candidate.pipelines[0].forward[s] == d
                place = d if not folded or (q == 0) == here else twin[d]
                batch = candidate.pipelines[q].micro_batches[counts[o]]
                orders[place].append(Op(kind, s, batch))
                if kind == Kind.F and a.away[unit]:
                    orders[place].append(Op(Kind.OFFLOAD, s, batch))
            counts[o] += 1
    return orders


def remade(a: Arrays, order: Ints) -> Ints:
    """An order with a recomputation right before every backward that needs one, and no others."""
    units = len(a.batches)
    found: list[int] = []
    for o in order.tolist():
        kind, u = divmod(o, units)
        if kind == R:
            continue
        if kind == B and a.remade[u]:
            found.append(R * units + u)
        found.append(o)
    return np.array(found, dtype=np.int64)


def weave(a: Arrays, order: Ints, lead: int) -> Ints | None:
    """An order with FREE and FETCH of the units that are offloaded put in; None where it cannot fit.

    order: complete but for those two. Memory is made by weight halves that can run, then by freeing the oldest
    stash; a stash is fetched `lead` ops before its backward, or as soon after as there is room.
    """
    parts: list[Ints] = []
    plain = order[~np.isin(order // len(a.batches), (FREE, FETCH))]
    home = a.home[plain]
    for d in range(len(a.first) - 1):
        woven = _weave_device(a, plain[home == d].tolist(), int(a.limit[d]), lead)
        if woven is None:
            return None
        parts.append(np.array(woven, dtype=np.int64))
    return np.concatenate(parts)


def _weave_device(a: Arrays, mine: list[int], limit: int, lead: int) -> list[int] | None:
    units = len(a.batches)
    stash = a.delta[FETCH * units :].tolist()
    need, delta = a.need.tolist(), a.delta.tolist()
    need_at = {}  # (unit, count) -> index of its backward
    counts = [0] * len(a.home)
    for n, o in enumerate(mine):
        if o // units == B and a.away[o % units]:
            need_at[o % units, counts[o]] = n
        counts[o] += 1
    fetches = sorted((n, u, k) for (u, k), n in need_at.items())
    woven: list[int] = []
    home: list[tuple[int, int]] = []  # offloaded stashes on the device, oldest first
    pending: list[int] = []  # units whose weight halves can run
    early = [0] * units  # weight halves that ran before their turn
    held, made, nth = 0, [0] * units, 0

    def free_some(room: int) -> bool:
        """Runs weight halves and frees the oldest stashes on the device until `room` bytes are there."""
        nonlocal held
        while held + room > limit:
            if pending:
                u = pending.pop(0)
                early[u] += 1
                woven.append(W * units + u)
                held += delta[W * units + u]
            elif home:
                u, _ = home.pop(0)
                woven.append(FREE * units + u)
                held -= stash[u]
            else:
                return False
        return True

    for n, o in enumerate(mine):
        kind, u = divmod(o, units)
        if kind == W:
            if early[u]:
                early[u] -= 1
                continue
            pending.remove(u)
        while nth < len(fetches) and fetches[nth][0] <= n + lead:
            at, v, k = fetches[nth]
            if made[v] <= k:
                break
            urgent = at == n
            if (v, k) in home:  # everything that is offloaded leaves before it is fetched
                home.remove((v, k))
                woven.append(FREE * units + v)
                held -= stash[v]
            if held + stash[v] > limit and not (urgent and free_some(stash[v])):
                if urgent:
                    return None
                break
            woven.append(FETCH * units + v)
            held += stash[v]
            nth += 1
        if held + need[o] > limit and not free_some(need[o]):
            return None
        woven.append(o)
        held += delta[o]
        if kind == F and a.away[u]:
            home.append((u, made[u]))
            made[u] += 1
        elif kind == B and a.split[u]:
            pending.append(u)
    return woven
