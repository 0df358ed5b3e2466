"""Version arithmetic: which weights every forward and backward of an asynchronous plan uses, read off its op lists.

A stage's update number g (from 0) takes the gradients of micro-batches g*m .. (g+1)*m-1 and makes version g+1 of
version g. A list's STEP of update g stands before every backward of update g+1 of its stage, so a backward always
finds the newest version equal to its own update's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ..plan import Kind, Op
from ..problem import BATCH, CURRENT, FLUSH, WEIGHT_POLICIES, WeightPolicy
from .replicas import holders
from .structured import Structured, update_size

_BACKWARD = frozenset({Kind.B, Kind.I, Kind.W, Kind.R})


def asynchronous(plan: Structured) -> bool:
    """Whether weights are updated without a flush."""
    return plan.weights != FLUSH


class Scheduled(Structured, Protocol):
    """A plan as far as versions need it."""

    @property
    def orders(self) -> tuple[tuple[Op, ...], ...]: ...


@dataclass(frozen=True)
class Versions:
    """Of every (stage, micro-batch): the versions its passes use, and how far ahead their weights are predicted.

    Attributes:
        update: micro-batches an update.
        newest: newest version on the forward device at F's place in its list.
        forward, backward: version that the pass reads. R reads what its backward reads.
        forward_ahead, backward_ahead: updates of the PREDICT before the pass; 0: none. A forward on a device that only
            runs forwards has none: it gets weights that are predicted where they are stepped.
        sent_ahead: by stage, receiving device and update: updates of the PREDICT before its SEND_P; those of the first
            forward that uses the version. Left out: 0, and versions that no forward uses.
    """

    update: int
    newest: dict[tuple[int, int], int]
    forward: dict[tuple[int, int], int]
    backward: dict[tuple[int, int], int]
    forward_ahead: dict[tuple[int, int], int]
    backward_ahead: dict[tuple[int, int], int]
    sent_ahead: dict[tuple[int, int, int], int]

    @classmethod
    def of(cls, plan: Scheduled) -> Versions:
        """Of a plan whose lists hold every F once. In a synchronous plan everything is version 0."""
        policy, update = WEIGHT_POLICIES[plan.weights], update_size(plan)
        newest, remote = _newest(plan)
        forward = _taken(newest, policy, update)
        backward, ahead, back_ahead = {}, {}, {}
        for (stage, m), found in newest.items():
            own = m // update
            backward[stage, m] = forward[stage, m] if policy.stashed or plan.weights == FLUSH else own
            ahead[stage, m] = 0 if (stage, m) in remote else policy.forward_ahead(stage, own - found)
            back_ahead[stage, m] = policy.backward_ahead(stage)
        sent: dict[tuple[int, int, int], int] = {}
        for (stage, m), device in remote.items():
            version = newest[stage, m]
            if version:
                sent.setdefault((stage, device, version - 1), policy.forward_ahead(stage, m // update - version))
        sent = {key: count for key, count in sent.items() if count}
        return cls(update, newest, forward, backward, ahead, back_ahead, sent)

    def staleness(self, stage: int, micro_batch: int) -> int:
        """Updates between the version of the forward and the one that the micro-batch's update starts from."""
        return micro_batch // self.update - self.forward[stage, micro_batch]

    @cached_property
    def most_stale(self) -> dict[int, int]:
        """The largest staleness of every stage."""
        found: dict[int, int] = {}
        for stage, m in self.forward:
            found[stage] = max(found.get(stage, 0), self.staleness(stage, m))
        return found


Newest = dict[tuple[int, int], int]


def _newest(plan: Scheduled) -> tuple[Newest, Newest]:
    """The newest version at the place of every F: STEPs of its stage before it, or new parameters that arrived.

    And the devices of the forwards, in list order, that run where their stage is not stepped.
    """
    owners, found, remote = holders(plan), Newest(), Newest()
    for device, order in enumerate(plan.orders):
        made: dict[int, int] = {}
        for op in order:
            if op.kind is (Kind.STEP if device in owners[op.stage] else Kind.RECV_P):
                made[op.stage] = made.get(op.stage, 0) + 1
            elif op.kind is Kind.F:
                found[op.stage, op.micro_batch] = made.get(op.stage, 0)
                if device not in owners[op.stage]:
                    remote[op.stage, op.micro_batch] = device
    return found, remote


def _taken(newest: dict[tuple[int, int], int], policy: WeightPolicy, update: int) -> dict[tuple[int, int], int]:
    if policy.takes == CURRENT:
        return newest
    entry = {m: version for (stage, m), version in newest.items() if stage == 0}
    if policy.takes == BATCH:
        first: dict[int, int] = {}
        for m, version in entry.items():
            first[m // update] = min(first.get(m // update, version), version)
        entry = {m: first[m // update] for m in entry}
    return {(stage, m): entry[m] for stage, m in newest}
