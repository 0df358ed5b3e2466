"""Op lists in the making: given ops, and others that are put between them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..basics import PlanError
from ..graph import NOWHERE, Candidate, Flags, Homes, Ints, Messages, Ops, StageCosts
from ..plan import Kind

BEGIN, RECEIVE, COPY, RETURN, HERE, SEND, LEAVE, LAST = -4, -3, -2, -1, 0, 1, 2, 3
"""Places around an op: what is posted just before it, the op itself, and what follows it at once."""
_HEAD, _ROOM = -8, 16


class Links(NamedTuple):
    """Messages as items of a lowering: SEND, RECV, bytes, and whether the RECV's place was given.

    arriving: it takes a stash to its backward device.
    """

    send: Ints
    receive: Ints
    bytes: Ints
    arriving: Flags
    given: Flags


class Lowering:
    """The given ops, in order, and what has been added to them.

    An item is one op, numbered as added; the given ops are items 0..given-1. Each given op stands in a slot of its
    own and every device has one more slot at its end; added items stand around the slots. Slots ascend over all
    devices, and items at the same place stand in the order of their numbers.
    """

    def __init__(self, candidate: Candidate, costs: StageCosts, given: Ops) -> None:
        self.candidate, self.costs, self.given, self.ops = candidate, costs, given, given
        batches = candidate.problem.workload.micro_batches
        if given.width > batches:
            raise PlanError(f"an op names micro-batch {given.width - 1}, and there are {batches}")
        self.homes = Homes.of(candidate, given.width)
        divided = (self.homes.device != self.homes.back) & ~self.homes.where(lambda row: row.two_devices)
        if divided.any():
            raise PlanError("a stash whose forward and backward devices differ cannot be shipped away and back")
        devices = np.arange(given.devices)
        self.first_slot = given.first + devices
        self.end_slot = np.append(given.first[1:], len(given)) + devices
        self._key = _ROOM * (np.arange(len(given)) + given.device)
        nothing = np.zeros(0, dtype=np.bool_)
        self.links = Links(NOWHERE, NOWHERE, NOWHERE, nothing, nothing)

    @property
    def slot(self) -> Ints:
        """Slot of every item."""
        return np.asarray((self._key - _HEAD) // _ROOM, dtype=np.int64)

    def add(
        self, kind: Kind | Ints, stage: Ints, micro_batch: Ints, peer: Ints, device: Ints, slot: Ints, where: int
    ) -> Ints:
        """Adds ops around these slots, of one kind or a kind each; returns the new items."""
        old, count = self.ops, len(stage)
        self.ops = Ops(
            np.concatenate([old.kind, np.full(count, kind.value) if isinstance(kind, Kind) else kind]),
            np.concatenate([old.stage, stage]),
            np.concatenate([old.micro_batch, micro_batch]),
            np.concatenate([old.peer, peer]),
            np.concatenate([old.device, device]),
            old.devices,
            old.stages,
        )
        self._key = np.concatenate([self._key, _ROOM * slot + where])
        return np.arange(len(old), len(old) + count)

    def link(self, send: Ints, receive: Ints, size: Ints, arriving: Flags | bool, given: bool) -> None:
        """Records that these items are the two ends of messages."""
        flags = np.full(len(send), arriving), np.full(len(send), given)
        pairs = zip(self.links, (send, receive, size, *flags), strict=True)
        self.links = Links(*(np.concatenate(pair) for pair in pairs))

    def add_receives(self, kind: Kind, send: Ints, device: Ints, size: Ints, arriving: Flags | bool = False) -> None:
        """Adds the other ends of messages at the head of these devices' lists."""
        ops = self.ops
        stage, peer = ops.stage[send], ops.peer[send]
        stage, peer = (stage, ops.device[send]) if kind in (Kind.RECV_S, Kind.RECV_P) else (peer, stage)
        received = self.add(kind, stage, ops.micro_batch[send], peer, device, self.first_slot[device], _HEAD)
        self.link(send, received, size, arriving, given=False)

    def move_receives(self, links: Ints, slot: Ints) -> None:
        """Puts the RECVs of these messages before the ops of these slots, at one slot in the order given."""
        rows = np.sort(self.links.receive[links])
        old, ops = self.links.receive[links], self.ops
        for column in (ops.kind, ops.stage, ops.micro_batch, ops.peer, ops.device):
            column[rows] = column[old]
        self.links.receive[links] = rows
        self._key[rows] = _ROOM * slot + RECEIVE
        self.ops = replace(ops)

    @property
    def order(self) -> Ints:
        """Items in list order."""
        return np.argsort(self._key, kind="stable")

    def columns(self, order: Ints) -> tuple[Ops, Messages]:
        """The op lists and messages as they are now, for the items in list order."""
        ops = self.ops
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        kind, stage, micro_batch = ops.kind[order], ops.stage[order], ops.micro_batch[order]
        listed = Ops(kind, stage, micro_batch, ops.peer[order], ops.device[order], ops.devices, ops.stages)
        send = place[self.links.send]
        by_send = np.argsort(send, kind="stable")
        receive, size = place[self.links.receive][by_send], self.links.bytes[by_send]
        some = len(ops.where(Kind.SEND_S)) > 0
        arriving = self.links.arriving[by_send] if some else None
        return listed, Messages(send[by_send], receive, size, arriving)
