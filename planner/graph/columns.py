"""Op lists as columns of numbers: what simulator and lowering compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..basics import PlanError
from ..plan import IN_LINE, SENDS, Kind, Op
from ..problem import StageCosts, returned_bytes
from .candidate import Structured, weights_offloaded
from .policies import stash_policy

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
        columns = (_KINDS[self.kind], self.stage, self.micro_batch, self.peer)
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


@dataclass(frozen=True)
class Messages:
    """Messages as columns: numbers of their SEND and RECV ops in the order of the senders' lists, and bytes."""

    send: Ints
    receive: Ints
    bytes: Ints
    arriving: Flags | None  # which take a stash to its backward device; None: no stash is sent

    @classmethod
    def of(cls, ops: Ops, costs: StageCosts) -> Messages:
        """The messages of op lists; raises PlanError where a SEND or a RECV has no other end."""
        send = ops.where(*sorted(SENDS))
        receive = np.full(len(send), -1, dtype=np.int64)
        direct = (ops.kind[send] == Kind.SEND_S.value) | (ops.kind[send] == Kind.SEND_P.value)
        some = bool(direct.any())
        boundary = send[~direct] if some else send
        found, bytes_ = _match_boundaries(ops, costs, boundary)
        if not some and not len(ops.where(Kind.RECV_S, Kind.RECV_P)):
            return cls(send, found, bytes_, None)
        size = np.zeros(len(send), dtype=np.int64)
        receive[~direct], size[~direct] = found, bytes_
        receive[direct], size[direct] = _match_direct(ops, send[direct]), direct_bytes(ops, costs, send[direct])
        stash = ops.kind[send] == Kind.SEND_S.value
        if not stash.any():
            return cls(send, receive, size, None)
        backward = ops.at(ops.table(Kind.B, Kind.I), receive[stash])
        arriving = stash.copy()
        arriving[stash] = (backward >= 0) & (ops.device[backward] == ops.device[receive[stash]])
        return cls(send, receive, size, arriving)


def direct_bytes(ops: Ops, costs: StageCosts, send: Ints) -> Ints:
    """Bytes of the stashes and parameters that these ops send; of a stash that is made again, what makes it."""
    stage = ops.stage[send]
    size = np.where(ops.at(ops.table(Kind.R), send) >= 0, costs.incoming_bytes[stage], costs.stash_bytes[stage])
    sent = np.flatnonzero(ops.kind[send] == Kind.SEND_P.value)
    size[sent] = costs.trained_bytes[stage[sent]]
    if costs.ties and len(sent):
        back = ops.where(Kind.B, Kind.I)
        for k in sent.tolist():
            trained = ops.stage[back[ops.device[back] == ops.peer[send[k]]]].tolist()
            size[k] = returned_bytes(int(size[k]), costs.ties, int(stage[k]), trained)
    return np.asarray(size, dtype=np.int64)


def copied_bytes(plan: Structured, costs: StageCosts, ops: Ops, copies: Ints) -> Ints:
    """Bytes of each of these OFFLOADs and FETCHes: the stash, and the version of the weights that goes with it."""
    return costs.stash_bytes[ops.stage[copies]] + costs.trained_bytes[ops.stage[copies]] * carries(plan, ops, copies)


def carries(plan: Structured, ops: Ops, copies: Ints) -> Flags:
    """Which of these OFFLOADs and FETCHes take a version of the weights along."""
    if not any(stash_policy(policy).versioned for row in set(plan.stash) for policy in row):
        return np.zeros(len(copies), dtype=np.bool_)
    with_weights = weights_offloaded(plan)
    pairs = zip(ops.stage[copies].tolist(), ops.micro_batch[copies].tolist(), strict=True)
    return np.array([pair in with_weights for pair in pairs], dtype=np.bool_)


def _match_boundaries(ops: Ops, costs: StageCosts, send: Ints) -> tuple[Ints, Ints]:
    """RECV op and bytes of the activations and gradients that these ops send."""
    receive = ops.where(Kind.RECV_F, Kind.RECV_B)
    edge_sent, key_sent = _boundary_keys(ops, costs, send, Kind.SEND_F)
    _, key_got = _boundary_keys(ops, costs, receive, Kind.RECV_F)
    table = np.full(2 * len(costs.edges) * (ops.width + 1), -1, dtype=np.int64)
    table[key_got] = receive
    once = np.count_nonzero(table >= 0) == len(receive) == len(send)
    found = table[key_sent]
    table[key_sent] = -1
    if not once or (len(found) and found.min() < 0) or (table[key_got] >= 0).any():
        raise PlanError("some message has no SEND or no RECV")
    size = np.array([edge.bytes for edge in costs.edges], dtype=np.int64)
    return found, size[edge_sent]


def _boundary_keys(ops: Ops, costs: StageCosts, place: Ints, activation: Kind) -> tuple[Ints, Ints]:
    """Edge, and a number for edge, direction and micro-batch, of ops that send or receive a boundary tensor."""
    kind, stage, peer = ops.kind[place], ops.stage[place], ops.peer[place]
    if len(place) and (peer.min() < 0 or peer.max() >= ops.stages):
        raise PlanError("a message names a stage that does not exist")
    forward = kind == activation.value
    here_produces = forward if activation == Kind.SEND_F else ~forward
    edge = costs.edge_number[np.where(here_produces, stage, peer), np.where(here_produces, peer, stage)]
    if len(edge) and edge.min() < 0:
        raise PlanError("a message connects two stages that share no edge")
    return edge, (2 * edge + forward) * (ops.width + 1) + ops.micro_batch[place] + 1


def _match_direct(ops: Ops, send: Ints) -> Ints:
    """RECV op of the stashes and parameters that these ops send."""
    receive = ops.where(Kind.RECV_S, Kind.RECV_P)
    for place in (send, receive):
        if len(place) and (ops.peer[place].min() < 0 or ops.peer[place].max() >= ops.devices):
            raise PlanError("a stash or parameters on their way name a device that does not exist")

    def key(place: Ints, source: Ints, target: Ints) -> Ints:
        parameters = ops.kind[place] >= Kind.SEND_P.value
        flow = (parameters * ops.devices + source[place]) * ops.devices + target[place]
        return np.asarray(
            (flow * ops.stages + ops.stage[place]) * (ops.width + 1) + ops.micro_batch[place] + 1, dtype=np.int64
        )

    sent, got = key(send, ops.device, ops.peer), key(receive, ops.peer, ops.device)
    by_sent, by_got = np.argsort(sent, kind="stable"), np.argsort(got, kind="stable")
    if not np.array_equal(sent[by_sent], got[by_got]):
        raise PlanError("some message has no SEND or no RECV")
    found = np.empty(len(send), dtype=np.int64)
    found[by_sent] = receive[by_got]
    return found
