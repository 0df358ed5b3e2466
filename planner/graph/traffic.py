"""Every message of a step: which there are, what they bring, and the SEND and RECV ops of op lists that are their ends.

Nothing else lists messages but the checker, whose rules are its own (`rules/ops.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..basics import PlanError
from ..plan import SENDS, Kind, Op, Pipeline
from ..problem import StageCosts, returned_bytes
from .columns import Flags, Ints, Ops
from .homes import Homes
from .policies import ship_target, stash_policy
from .structured import Structured


class Message(NamedTuple):
    """One tensor (or the parameters of a stage) that crosses devices, and the ops at its two ends."""

    source: int
    send: Op
    target: int
    receive: Op
    bytes: int


class Traffic(NamedTuple):
    """Messages of one sort as columns: `kind` and `receives` of their ops, the SEND's stage and the RECV's.

    arriving: whether it brings a stash (or what makes it again) to its backward's device.
    """

    kind: Kind
    receives: Kind
    stage: Ints
    to_stage: Ints
    micro_batch: Ints
    source: Ints
    target: Ints
    bytes: Ints
    arriving: bool = False

    @property
    def direct(self) -> bool:
        """Whether both ops name the stage itself, and as their peer the other device."""
        return self.kind in (Kind.SEND_S, Kind.SEND_P)

    @property
    def send_peer(self) -> Ints:
        """Peer of the SEND ops."""
        return self.target if self.direct else self.to_stage

    @property
    def receive_peer(self) -> Ints:
        """Peer of the RECV ops."""
        return self.source if self.direct else self.stage


def activations(homes: Homes, costs: StageCosts) -> Traffic:
    """Of every edge whose stages run forward on different devices."""
    producer, consumer, size = _edges(costs)
    return _boundary((Kind.SEND_F, Kind.RECV_F), homes.device, producer, consumer, size)


def gradients(homes: Homes, costs: StageCosts) -> Traffic:
    """Of every edge whose stages run backward on different devices; a consumer's follow one another."""
    producer, consumer, size = _edges(costs)
    order = np.argsort(consumer, kind="stable")
    return _boundary((Kind.SEND_B, Kind.RECV_B), homes.back, consumer[order], producer[order], size[order])


def _edges(costs: StageCosts) -> Ints:
    return np.array(costs.edges, dtype=np.int64).reshape(-1, 3).T


def _boundary(kinds: tuple[Kind, Kind], device: Ints, near: Ints, far: Ints, size: Ints) -> Traffic:
    edge, m = np.nonzero(device[near] != device[far])
    stage, to_stage = near[edge], far[edge]
    return Traffic(*kinds, stage, to_stage, m, device[stage, m], device[to_stage, m], size[edge])


def crossing(homes: Homes, costs: StageCosts) -> Traffic:
    """What a forward leaves, on its way to its backward's device."""
    return _stashes(homes, costs, homes.moved, homes.device, homes.back, arriving=True)


def shipped(homes: Homes, costs: StageCosts) -> tuple[Traffic, Traffic]:
    """What goes to the device that its policy names, and back: the way there and the way home."""
    there = _stashes(homes, costs, homes.shipped, homes.device, homes.away)
    return there, _stashes(homes, costs, homes.shipped, homes.away, homes.back, arriving=True)


def _stashes(
    homes: Homes, costs: StageCosts, where: Flags, source: Ints, target: Ints, arriving: bool = False
) -> Traffic:
    stage, m = np.nonzero(where)
    size = homes.bytes_of(costs)[homes.row[stage, m], stage]
    ends = source[stage, m], target[stage, m]
    return Traffic(Kind.SEND_S, Kind.RECV_S, stage, stage, m, *ends, size, arriving)


def parameters(homes: Homes, costs: StageCosts) -> Traffic:
    """New parameters for every device that runs a stage's forward only, after every update.

    With a flush, none of a stage without trained parameters; without, versions count all the same.
    """
    stage, source, target = homes.returned
    some = (costs.trained_bytes[stage] > 0) | bool(homes.update)
    stage, source, target = stage[some], source[some], target[some]
    size = costs.trained_bytes[stage]
    if costs.ties:
        trained = [np.flatnonzero(homes.held[device]).tolist() for device in target]
        rows = zip(size.tolist(), stage.tolist(), trained, strict=True)
        size = np.array([returned_bytes(count, costs.ties, s, those) for count, s, those in rows], dtype=np.int64)
    ends, count = homes.update_ends, len(homes.update_ends)
    columns = (np.repeat(column, count) for column in (stage, source, target, size))
    stage, source, target, size = columns
    m = np.tile(ends, len(stage) // count)
    return Traffic(Kind.SEND_P, Kind.RECV_P, stage, stage, m, source, target, size)


def stash_hops(pipeline: Pipeline, stage: int, policy: str) -> list[tuple[int, int]]:
    """The pairs of devices between which a stage's stash (or what makes it again) goes as a message, in order."""
    home, back, away = pipeline.forward[stage], pipeline.backward[stage], ship_target(policy)
    if away is not None:
        return [(home, away), (away, home)] if home == back != away else []
    return [(home, back)] if home != back and stash_policy(policy).crosses else []


def messages(plan: Structured, costs: StageCosts) -> Iterator[Message]:
    """Every message of a step, even of 0 bytes: activations forward, gradients back, stashes, and new parameters.

    None between stages on one device. A stash goes from the forward to the backward device, or is shipped there and
    back.
    """
    homes = Homes.of(plan)
    away, home = shipped(homes, costs)
    tensors = activations(homes, costs), gradients(homes, costs), away, home, crossing(homes, costs)
    for some in (*tensors, parameters(homes, costs)):
        columns = (some.stage, some.micro_batch, some.send_peer, some.to_stage, some.receive_peer, *some[5:8])
        for stage, m, peer, to_stage, back, source, target, size in zip(*map(np.ndarray.tolist, columns), strict=True):
            yield Message(source, Op(some.kind, stage, m, peer), target, Op(some.receives, to_stage, m, back), size)


@dataclass(frozen=True)
class Messages:
    """The messages of op lists as columns: numbers of their SEND and RECV ops in the order of the senders' lists."""

    send: Ints
    receive: Ints
    bytes: Ints
    arriving: Flags | None  # which take a stash to its backward device; None: no stash is sent

    @classmethod
    def of(cls, plan: Structured, costs: StageCosts, ops: Ops) -> Messages:
        """The messages of op lists of a plan; raises PlanError where a SEND or a RECV has no other end."""
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
        receive[direct] = _match_direct(ops, send[direct])
        stash = ops.kind[send] == Kind.SEND_S.value
        sent = direct & ~stash
        size[sent] = parameter_bytes(costs, ops, send[sent])
        if not stash.any():
            return cls(send, receive, size, None)
        size[stash] = Homes.of(plan, ops.width).moved_bytes(costs, ops, send[stash])
        backward = ops.at(ops.table(Kind.B, Kind.I), receive[stash])
        arriving = stash.copy()
        arriving[stash] = (backward >= 0) & (ops.device[backward] == ops.device[receive[stash]])
        return cls(send, receive, size, arriving)


def parameter_bytes(costs: StageCosts, ops: Ops, send: Ints) -> Ints:
    """Bytes of the parameters that these SEND_Ps take to other devices."""
    stage = ops.stage[send]
    size = costs.trained_bytes[stage]
    if costs.ties and len(send):
        back = ops.where(Kind.B, Kind.I)
        for k, number in enumerate(send.tolist()):
            trained = ops.stage[back[ops.device[back] == ops.peer[number]]].tolist()
            size[k] = returned_bytes(int(size[k]), costs.ties, int(stage[k]), trained)
    return np.asarray(size, dtype=np.int64)


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
