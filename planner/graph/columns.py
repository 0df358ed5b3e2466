"""Op lists as columns of numbers: what simulator, lowering and checker compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..basics import PlanError
from ..plan import IN_LINE, Kind, Op

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_IN_LINE = np.array([kind in IN_LINE for kind in Kind])
_KINDS = np.array(list(Kind), dtype=object)
_new_op = cast(Callable[[Iterable[Any]], Op], partial(tuple.__new__, Op))
NOWHERE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Ops:
    """Every op of every device, device after device in list order; an op's number is its place in these columns."""

    kind: Ints
    stage: Ints
    micro_batch: Ints
    peer: Ints
    device: Ints
    devices: int
    stages: int

    @classmethod
    def of(cls, orders: Sequence[Sequence[Op]], stages: int) -> Ops:
        """The columns of op lists; raises PlanError when an op names a stage that does not exist."""
        lengths = [len(order) for order in orders]
        count = sum(lengths)
        try:
            flat = np.fromiter(chain.from_iterable(chain.from_iterable(orders)), dtype=np.int64, count=4 * count)
        except OverflowError:
            raise PlanError("an op names a number of more than 63 bits") from None
        kind, stage, micro_batch, peer = flat.reshape(count, 4).T.copy()
        if count and (stage.max() >= stages or stage.min() < 0):
            raise PlanError("an op names a stage that does not exist")
        if count and (kind.max() >= len(Kind) or kind.min() < 0):
            raise PlanError("an op is of no kind that there is")
        device = np.repeat(np.arange(len(orders)), lengths)
        return cls(kind, stage, micro_batch, peer, device, len(orders), stages)

    def __len__(self) -> int:
        return len(self.kind)

    def lists(self) -> tuple[tuple[Op, ...], ...]:
        """The op lists that these columns say."""
        columns = (_KINDS[self.kind], *map(_shared, (self.stage, self.micro_batch, self.peer)))
        ops = list(map(_new_op, zip(*(column.tolist() for column in columns), strict=True)))
        edges = self.first.tolist()
        return tuple(tuple(ops[a:b]) for a, b in zip(edges, [*edges[1:], len(ops)], strict=True))

    @cached_property
    def first(self) -> Ints:
        """Number of every device's first op."""
        return np.searchsorted(self.device, np.arange(self.devices))

    @cached_property
    def in_line(self) -> Flags:
        """Which ops run one after the other (the others are posted)."""
        return np.asarray(_IN_LINE[self.kind], dtype=np.bool_)

    @cached_property
    def working(self) -> Ints:
        """Numbers of the ops in line."""
        return np.flatnonzero(self.in_line)

    @cached_property
    def previous(self) -> Ints:
        """The last in-line op of the same list before each op; -1: none."""
        count = len(self)
        if count == 0:
            return NOWHERE
        last = np.empty(count, dtype=np.int64)
        last[0] = -1
        last[1:] = np.maximum.accumulate(np.where(self.in_line, np.arange(count), -1))[:-1]
        last[last < self.first[self.device]] = -1
        return last

    @cached_property
    def _by_kind(self) -> tuple[Ints, list[int]]:
        """Op numbers sorted by kind, and where each kind begins among them."""
        kind = self.kind.astype(np.uint8)
        first = np.cumsum(np.bincount(kind, minlength=len(Kind))).tolist()
        return np.argsort(kind, kind="stable"), [0, *first]

    def where(self, *kinds: Kind) -> Ints:
        """Numbers of the ops of these kinds, ascending."""
        order, first = self._by_kind
        parts = [order[first[kind] : first[kind + 1]] for kind in kinds]
        found = [part for part in parts if len(part)]
        return found[0] if len(found) == 1 else np.sort(np.concatenate(found), kind="stable") if found else NOWHERE

    @cached_property
    def width(self) -> int:
        """One more than the largest micro-batch."""
        return int(self.micro_batch.max(initial=0)) + 1

    @cached_property
    def _tables(self) -> dict[tuple[Kind, ...], Ints]:
        return {}

    def table(self, *kinds: Kind) -> Ints:
        """Number of the op of these kinds for every [stage, micro-batch]; -1 where there is none."""
        found = self._tables.get(kinds)
        if found is None:
            place = self.where(*kinds)
            found = np.full((self.stages, self.width), -1, dtype=np.int64)
            found[self.stage[place], self.micro_batch[place]] = place
            self._tables[kinds] = found
        return found

    def at(self, table: Ints, ops: Ints) -> Ints:
        """The table's entry for the stage and micro-batch of each of these ops."""
        return np.asarray(table[self.stage[ops], self.micro_batch[ops]], dtype=np.int64)

    def next_of_stage(self, ops: Ints, kind: Kind) -> Ints:
        """The next op of this kind of each op's stage behind it in its list; -1: none."""
        among = self.where(kind)
        if not len(among):
            return np.full(len(ops), -1, dtype=np.int64)
        group = self.device * self.stages + self.stage
        key = group[among] * (len(self) + 1) + among
        order = np.argsort(key)
        after = np.searchsorted(key[order], group[ops] * (len(self) + 1) + ops, "right")
        found = among[order[np.minimum(after, len(among) - 1)]]
        return np.where((group[found] == group[ops]) & (found > ops), found, -1)

    def abroad(self, ops: Ints) -> Flags:
        """Which of these ops are on another device than the forward of their stage and micro-batch."""
        home = self.at(self.table(Kind.F), ops)
        return np.asarray((home < 0) | (self.device[home] != self.device[ops]), dtype=np.bool_)


def _shared(column: Ints) -> NDArray[Any]:
    """The same with equal numbers as one object each, where that is less than one for each entry."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if most - least >= len(column):
        return column
    return np.array(range(least, most + 1), dtype=object)[column - least]
