"""What ops wait for beyond their turn in the list: every need with its reason and, in seconds, what comes between.

The simulator's precedences are these. What the list's order gives anyway (a backward stands behind its forward) is no
need here: the checker, whose rules are its own, looks whether the lists are like that, and calls reasons by the same
names.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from ..plan import Kind
from .columns import Flags, Floats, Ints, Ops
from .homes import Homes
from .machine import Machine
from .structured import Structured
from .traffic import Messages


class Why(Enum):
    """Why an op waits for another, as a person would say it."""

    LISTED = "it comes before it in line"
    TENSOR = "it makes a tensor that it takes"
    STASH = "it makes, brings or takes away the stash"
    MEMORY = "the memory that it frees is taken"
    MESSAGE_ORDER = "messages between two devices follow one another"
    COPY_ORDER = "copies in one direction follow one another"
    GRADIENTS = "its gradients are summed and used up"
    WEIGHTS = "it writes, brings or still reads the weights"


OF_A_PASS = (
    (Kind.F, Kind.R),
    (Kind.F, Kind.B),
    (Kind.F, Kind.I),
    (Kind.R, Kind.B),
    (Kind.R, Kind.I),
    (Kind.I, Kind.W),
)
"""What reads what on one device, of one stage and micro-batch: lists have them in this order, so none is a need."""


class Precedences(NamedTuple):
    """`after` starts no earlier than `lag` seconds after `before` has ended; one entry a precedence.

    parts: why, and how many of them in a row.
    """

    before: Ints
    after: Ints
    lag: Floats
    parts: tuple[tuple[Why, int], ...]

    @property
    def why(self) -> list[Why]:
        """Why each `after` waits for its `before`."""
        return [why for why, count in self.parts for _ in range(count)]


class Needs:
    """Collects what waits for what, why, and how many seconds after its end."""

    def __init__(self) -> None:
        self._parts: list[tuple[Why, Ints, Ints, Floats | None]] = []

    def add(self, why: Why, before: Ints, after: Ints, lag: Floats | None = None) -> None:
        """Each of `after` waits for its `before`; -1 on either side: nothing to wait for."""
        keep = (before >= 0) & (after >= 0)
        self._parts.append((why, before[keep], after[keep], None if lag is None else lag[keep]))

    def precedences(self) -> Precedences:
        """All of them."""
        whys, before, after, lags = zip(*self._parts, strict=True)
        lag = [np.zeros(len(a)) if b is None else b for a, b in zip(after, lags, strict=True)]
        parts = tuple(zip(whys, map(len, after), strict=True))
        return Precedences(np.concatenate(before), np.concatenate(after), np.concatenate(lag), parts)


def needs_of(
    plan: Structured, ops: Ops, found: Messages, machine: Machine, latency: Floats, receivers_order: bool = True
) -> Needs:
    """What ops wait for, reductions apart; `latency`: seconds of every message.

    Without the receivers' order, a message only follows those sent before it.
    """
    needs = Needs()
    needs.add(Why.LISTED, ops.previous[ops.working], ops.working)
    _message_needs(needs, plan, ops, found, latency, receivers_order)
    if found.arriving is not None:
        _stash_needs(needs, ops, found, latency)
    if len(ops.where(Kind.SEND_P)):
        _parameter_needs(needs, ops, found, latency, receivers_order)
    if len(ops.where(Kind.OFFLOAD, Kind.FETCH)):
        homes = Homes.of(plan, ops.width)
        _copy_needs(needs, homes, ops, machine)
        _version_needs(needs, homes, ops)
    free = ops.where(Kind.FREE)
    if len(free):
        _free_needs(needs, ops, free)
    return needs


def _in_order(needs: Needs, why: Why, group: Ints, jobs: Ints) -> None:
    """Jobs of one group follow one another as listed."""
    order = np.argsort(group, kind="stable")
    same = group[order][1:] == group[order][:-1]
    needs.add(why, jobs[order][:-1][same], jobs[order][1:][same])


def _message_needs(
    needs: Needs, plan: Structured, ops: Ops, found: Messages, latency: Floats, receivers_order: bool
) -> None:
    send, receive = found.send, found.receive
    needs.add(Why.LISTED, ops.previous[send], send)
    needs.add(Why.LISTED, ops.previous[receive], send)
    needs.add(Why.TENSOR, send, users_of(plan, ops, receive, found.arriving), latency)
    # per ordered pair, in the sender's order
    pair = ops.device[send] * ops.devices + ops.device[receive]
    order = np.argsort(pair, kind="stable")
    same = pair[order][1:] == pair[order][:-1]
    earlier, later = order[:-1][same], order[1:][same]
    needs.add(Why.MESSAGE_ORDER, send[earlier], send[later])
    # the receiver's order of the same pair; equal to the sender's in a correct plan
    if receivers_order and (receive[earlier] > receive[later]).any():
        by_receiver = np.argsort(receive, kind="stable")
        _in_order(needs, Why.MESSAGE_ORDER, pair[by_receiver], send[by_receiver])


def users_of(plan: Structured, ops: Ops, receive: Ints, arriving: Flags | None) -> Ints:
    """The compute op that needs what each of these ops receives; -1: parameters, and stashes that go on."""
    kind, stage, micro_batch = ops.kind[receive], ops.stage[receive], ops.micro_batch[receive]
    forward = kind == Kind.RECV_F.value
    users = np.where(forward, ops.table(Kind.F)[stage, micro_batch], ops.table(Kind.B, Kind.I)[stage, micro_batch])
    if arriving is not None:
        stash = kind == Kind.RECV_S.value
        users[stash & ~arriving] = -1
        brought = stash & arriving
        users[brought] = Homes.of(plan, ops.width).takers(ops, receive[brought])
    users[kind == Kind.RECV_P.value] = -1
    return np.asarray(users, dtype=np.int64)


def _stash_needs(needs: Needs, ops: Ops, found: Messages, latency: Floats) -> None:
    """A stash leaves after its forward, and a shipped one starts its way back once it has arrived."""
    send = found.send
    sent = np.flatnonzero(ops.kind[send] == Kind.SEND_S.value)
    back = ops.abroad(send[sent])
    out = sent[~back]
    needs.add(Why.STASH, ops.at(ops.table(Kind.F), send[out]), send[out])
    needs.add(Why.STASH, send[out], _same_stash(ops, send[sent[back]], send[out]), latency[out])


def _parameter_needs(needs: Needs, ops: Ops, found: Messages, latency: Floats, placed: bool) -> None:
    """New parameters leave after their update's optimizer step on the same device.

    The next forward of their stage waits for them; unless RECV_Ps are not `placed` yet, at the head of their list.
    """
    steps, sent = ops.where(Kind.STEP), ops.where(Kind.SEND_P)
    key = (ops.device * ops.stages + ops.stage) * (ops.width + 1) + ops.micro_batch + 1
    by_key = steps[np.argsort(key[steps])]
    if len(by_key):
        at = np.minimum(np.searchsorted(key[by_key], key[sent]), len(by_key) - 1)
        needs.add(Why.WEIGHTS, np.where(key[by_key[at]] == key[sent], by_key[at], -1), sent)
    returned = np.flatnonzero(ops.kind[found.send] == Kind.SEND_P.value)
    receive = found.receive[returned]
    user = ops.next_of_stage(receive, Kind.F)
    user[(ops.previous[receive] < 0) & (not placed)] = -1
    needs.add(Why.WEIGHTS, found.send[returned], user, latency[returned])


def _same_stash(ops: Ops, among: Ints, ops_of: Ints) -> Ints:
    """Which of the ops `among` is about the same stash as each of `ops_of`; -1: none."""
    table = np.full((ops.stages, ops.width), -1, dtype=np.int64)
    table[ops.stage[among], ops.micro_batch[among]] = among
    return ops.at(table, ops_of)


def _copy_needs(needs: Needs, homes: Homes, ops: Ops, machine: Machine) -> None:
    """Copies follow what is before them in line, their own stash's earlier ops, and one another in each direction."""
    offload, fetch = ops.where(Kind.OFFLOAD), ops.where(Kind.FETCH)
    for copies in (offload, fetch):
        needs.add(Why.LISTED, ops.previous[copies], copies)
        _in_order(needs, Why.COPY_ORDER, ops.device[copies], copies)
    needs.add(Why.STASH, ops.at(ops.table(Kind.F), offload), offload)
    latency = machine.host_latency_s[ops.device[fetch]]
    needs.add(Why.STASH, ops.at(ops.table(Kind.OFFLOAD), fetch), fetch, latency)
    needs.add(Why.STASH, fetch, homes.takers(ops, fetch), latency)
    # on another device nothing else makes a backward wait for its forward, while there is no FETCH yet
    user = homes.takers(ops, offload)
    far = (user >= 0) & (ops.device[user] != ops.device[offload])
    if far.any():
        needs.add(Why.STASH, offload[far], user[far], machine.host_latency_s[ops.device[offload[far]]])
    # a fetch uses the memory of every stash that leaves before it in the list; fetches follow one another
    leaving = ops.where(Kind.OFFLOAD, Kind.SEND_S)
    after = np.searchsorted(fetch, leaving)
    some = after < len(fetch)
    leaving, following = leaving[some], fetch[after[some]]
    same = ops.device[leaving] == ops.device[following]
    needs.add(Why.MEMORY, leaving[same], following[same])


def _free_needs(needs: Needs, ops: Ops, free: Ints) -> None:
    """A FREE waits until its stash has left the device."""
    needs.add(Why.STASH, ops.at(ops.table(Kind.OFFLOAD), free), free)
    shipped = ops.where(Kind.SEND_S)
    if len(shipped):
        needs.add(Why.STASH, _same_stash(ops, shipped[~ops.abroad(shipped)], free), free)


def _version_needs(needs: Needs, homes: Homes, ops: Ops) -> None:
    """A STEP waits until the versions of its stage that go to the host have left."""
    offload = ops.where(Kind.OFFLOAD)
    offload = offload[homes.versioned(ops, offload)]
    needs.add(Why.WEIGHTS, offload, ops.next_of_stage(offload, Kind.STEP))
