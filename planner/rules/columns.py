"""What the checker's rules share: violations, and a plan's op lists as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..graph import Flags, Homes, Ints
from ..plan import IN_LINE, Kind, Op, Plan

_IN_LINE = np.array([kind in IN_LINE for kind in Kind])


@dataclass(frozen=True)
class Violation:
    """One reason why a plan cannot run as promised: a stable code, where, and one line for people."""

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.where}: {self.message}"


@dataclass(frozen=True)
class Columns:
    """Ops as columns: the fields of `Op`, and the device whose list holds them."""

    kind: Ints
    stage: Ints
    micro_batch: Ints
    peer: Ints
    device: Ints

    @classmethod
    def of(
        cls, kind: int, stage: Ints | int, micro_batch: Ints | int, device: Ints | int, peer: Ints | int = -1
    ) -> Columns:
        """Ops of one kind; single numbers stand for a whole column."""
        columns = np.broadcast_arrays(kind, stage, micro_batch, peer, device)
        return cls(*(np.asarray(column, dtype=np.int64).reshape(-1) for column in columns))

    @classmethod
    def of_tables(cls, kind: int, device: Ints) -> Columns:
        """Ops of one kind for all of a table of devices [stage, micro-batch]."""
        stage, micro_batch = np.nonzero(device >= 0)
        return cls.of(kind, stage, micro_batch, device.reshape(-1))

    @classmethod
    def join(cls, parts: Sequence[Columns]) -> Columns:
        """All of these, one after the other."""
        fields = ("kind", "stage", "micro_batch", "peer", "device")
        empty = np.zeros(0, dtype=np.int64)
        return cls(*(np.concatenate([empty, *(getattr(part, key) for part in parts)]) for key in fields))

    def op(self, row: int) -> Op:
        """One row as an op."""
        fields = (self.stage[row], self.micro_batch[row], self.peer[row])
        return Op(Kind(self.kind[row]), *map(int, fields))

    def keys(self, homes: Homes) -> Ints:
        """One number for every op, different for different ops; -1 for ops that no plan of this size can have."""
        stages, count = homes.device.shape
        peers = max(stages, homes.devices, homes.groups)
        key = (self.kind * homes.devices + self.device) * stages + self.stage
        key = (key * (count + 1) + self.micro_batch + 1) * (peers + 1) + self.peer + 1
        sound = (self.stage >= 0) & (self.stage < stages) & (self.micro_batch >= -1) & (self.micro_batch < count)
        sound &= (self.peer >= -1) & (self.peer < peers)
        return np.where(sound, key, -1)


def _flat(orders: Sequence[Sequence[Op]]) -> Ints:
    """The ops' fields [op, field], device after device; numbers beyond 64 bits become -2, which nothing has."""
    count = sum(map(len, orders))
    fields = chain.from_iterable(chain.from_iterable(orders))
    try:
        flat = np.fromiter(fields, dtype=np.int64, count=4 * count)
    except OverflowError:
        small = (x if abs(x) < 1 << 62 else -2 for x in chain.from_iterable(chain.from_iterable(orders)))
        flat = np.fromiter(small, dtype=np.int64, count=4 * count)
    return flat.reshape(count, 4)


@dataclass(frozen=True)
class Listed:
    """The op lists of a plan as columns, device after device; an op's row is its *place*."""

    orders: tuple[tuple[Op, ...], ...]
    homes: Homes
    columns: Columns
    first: Ints  # place of each device's first op
    key: Ints
    sorted_key: Ints
    by_key: Ints

    @classmethod
    def of(cls, plan: Plan, homes: Homes) -> Listed:
        """The op lists of a plan whose structure is sound."""
        lengths = np.array([len(order) for order in plan.orders], dtype=np.int64)
        kind, stage, micro_batch, peer = _flat(plan.orders).T.copy()
        columns = Columns(kind, stage, micro_batch, peer, np.repeat(np.arange(len(lengths)), lengths))
        key = columns.keys(homes)
        by_key = np.argsort(key, kind="stable")
        return cls(plan.orders, homes, columns, np.cumsum(lengths) - lengths, key, key[by_key], by_key)

    def __len__(self) -> int:
        return len(self.key)

    def op(self, place: int) -> Op:
        """The op at a place, as the plan has it."""
        device = int(self.columns.device[place])
        return self.orders[device][place - int(self.first[device])]

    def find(self, wanted: Columns) -> Ints:
        """First places of these ops; -1 where the lists do not have one."""
        if not len(self):
            return np.full(len(wanted.kind), -1, dtype=np.int64)
        key = wanted.keys(self.homes)
        at = np.minimum(np.searchsorted(self.sorted_key, key), len(self) - 1)
        return np.where(self.sorted_key[at] == key, self.by_key[at], -1)

    def table(self, kind: Kind) -> Ints:
        """[stage, micro-batch]: places of the ops of this kind on the stages' own devices; -1: none."""
        home = self.homes.of_kind(kind)
        return self.find(Columns.of_tables(kind, home)).reshape(home.shape)

    @property
    def in_line(self) -> Flags:
        """Whether each op runs in list order (the others are posted)."""
        return np.asarray(_IN_LINE[self.columns.kind], dtype=np.bool_)

    @property
    def previous(self) -> Ints:
        """The place of the last in-line op before each op in its list; -1: none."""
        last = np.maximum.accumulate(np.where(self.in_line, np.arange(len(self)), -1))
        before = np.concatenate([[-1], last])[: len(self)].astype(np.int64)
        return np.where(before < self.first[self.columns.device], -1, before)
