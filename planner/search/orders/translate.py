"""Orders of op types to and from lists of ops, and stashes that leave the device woven into an order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph import Candidate
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
                shipped = a.lent[unit] >= 0  # lowering finds the places of its messages
                if kind != Kind.FETCH or not shipped:
                    orders[place].append(Op(kind, s, batch))
                if kind == Kind.F and a.away[unit] and not shipped:
                    orders[place].append(Op(Kind.OFFLOAD, s, batch))
            counts[o] += 1
    return orders


def remade(a: Arrays, order: Ints) -> Ints:
    """An order with a recomputation before every backward that needs one, no others, and no copies of what stays."""
    units = len(a.batches)
    found: list[int] = []
    for o in order.tolist():
        kind, u = divmod(o, units)
        if kind == R or (kind in (FREE, FETCH) and not a.away[u]):
            continue
        if kind == B and a.remade[u]:
            found.append(R * units + u)
        found.append(o)
    return np.array(found, dtype=np.int64)


def weave(a: Arrays, order: Ints, lead: int) -> Ints | None:
    """An order with FREE and FETCH of the units that are offloaded put in; None where it cannot fit.

    order: complete but for those two. Memory is made by weight halves that can run, then by freeing the oldest
    stash; a stash is fetched `lead` ops before its backward, or as soon after as there is room. On a device on which
    what is fetched so early takes the room of an op before that backward, fewer ops before it.
    """
    parts: list[Ints] = []
    plain = order[~np.isin(order // len(a.batches), (FREE, FETCH))]
    home = a.home[plain]
    for d in range(len(a.first) - 1):
        mine, limit = plain[home == d].tolist(), int(a.limit[d])
        ways = (_weave_device(a, mine, limit, earlier) for earlier in range(lead, -1, -1))
        woven = next((way for way in ways if way is not None), None)
        if woven is None:
            return None
        parts.append(np.array(woven, dtype=np.int64))
    return np.concatenate(parts)


def _weave_device(a: Arrays, mine: list[int], limit: int, lead: int) -> list[int] | None:
    weaver = _Weaver(a, limit)
    fetches = _fetches(a, mine)
    nth = 0
    for n, o in enumerate(mine):
        if not weaver.due(o):
            continue
        while nth < len(fetches) and fetches[nth][0] <= n + lead:
            at, u, k = fetches[nth]
            if weaver.made[u] <= k:
                break
            if not weaver.fetch(u, k, urgent=at == n):
                if at == n:
                    return None
                break
            nth += 1
        if not weaver.run(o):
            return None
    return weaver.woven


def _fetches(a: Arrays, mine: list[int]) -> list[tuple[int, int, int]]:
    """(index of the backward, unit, count) of every stash that one device's order has to fetch, in order."""
    units = len(a.batches)
    counts = [0] * len(a.home)
    found = []
    for n, o in enumerate(mine):
        if o // units == B and a.away[o % units]:
            found.append((n, o % units, counts[o]))
        counts[o] += 1
    return found


class _Weaver:
    """One device's order under construction and what the device holds meanwhile.

    Attributes:
        made: by unit, forwards so far whose stashes are offloaded.
        home: (unit, count) of those stashes that are still on the device, oldest first.
        pending: units whose weight halves can run. early: by unit, weight halves that ran before their turn.
    """

    def __init__(self, a: Arrays, limit: int) -> None:
        self.a, self.limit, self.units = a, limit, len(a.batches)
        self.stash = a.delta[FETCH * self.units :].tolist()
        self.need, self.delta = a.need.tolist(), a.delta.tolist()
        self.woven: list[int] = []
        self.held = 0
        self.made = [0] * self.units
        self.home: list[tuple[int, int]] = []
        self.pending: list[int] = []
        self.early = [0] * self.units

    def due(self, o: int) -> bool:
        """Whether the next op of the order still has to run; a weight half may have run early."""
        kind, u = divmod(o, self.units)
        if kind != W:
            return True
        if self.early[u]:
            self.early[u] -= 1
            return False
        self.pending.remove(u)
        return True

    def fetch(self, u: int, k: int, urgent: bool) -> bool:
        """Fetches a stash where there is room for it, if `urgent` also by making room; returns whether it did.

        Everything that is offloaded leaves before it is fetched.
        """
        if (u, k) in self.home:
            self.home.remove((u, k))
            self._free(u)
        if not self._fits(self.stash[u]) and not (urgent and self._make_room(self.stash[u])):
            return False
        self.woven.append(FETCH * self.units + u)
        self.held += self.stash[u]
        return True

    def run(self, o: int) -> bool:
        """Appends an op of the order; returns False where it cannot fit."""
        if not self._fits(self.need[o]) and not self._make_room(self.need[o]):
            return False
        self.woven.append(o)
        self.held += self.delta[o]
        kind, u = divmod(o, self.units)
        if kind == F and self.a.away[u]:
            self.home.append((u, self.made[u]))
            self.made[u] += 1
        elif kind == B and self.a.split[u]:
            self.pending.append(u)
        return True

    def _fits(self, room: int) -> bool:
        return self.held + room <= self.limit

    def _free(self, u: int) -> None:
        self.woven.append(FREE * self.units + u)
        self.held -= self.stash[u]

    def _make_room(self, room: int) -> bool:
        """Runs weight halves and frees the oldest stashes on the device until `room` bytes are there."""
        while not self._fits(room):
            if self.pending:
                u = self.pending.pop(0)
                self.early[u] += 1
                self.woven.append(W * self.units + u)
                self.held += self.delta[W * self.units + u]
            elif self.home:
                self._free(self.home.pop(0)[0])
            else:
                return False
        return True
