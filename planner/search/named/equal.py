"""Equal groups of devices that run the same stages: what all their uniform grids have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...graph import Machine, around_step_s, stash_policy
from ..common import Groups, Session

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Equal:
    """Groups that share the micro-batches of a session's problem."""

    session: Session
    groups: Groups

    def __len__(self) -> int:
        return len(self.groups[0])

    @property
    def batches(self) -> int:
        """Micro-batches of the group that has most."""
        return -(-self.session.problem.workload.micro_batches // len(self.groups))

    @cached_property
    def forward_s(self) -> Floats:
        """Seconds of the forwards of the layers up to each for a micro-batch on a device of speed 1."""
        return np.concatenate([[0.0], np.cumsum(self.session.chain.costs.forward_s)])

    @cached_property
    def input_s(self) -> Floats:
        """The same of the halves of their backwards that others wait for."""
        return np.concatenate([[0.0], np.cumsum(self.session.chain.costs.backward_input_s)])

    @cached_property
    def state_bytes(self) -> Floats:
        """Of the layers up to each, what stays."""
        return np.concatenate([[0.0], np.cumsum(self.session.chain.held_bytes(len(self.groups)))])

    def remake_s(self, policy: str) -> Floats:
        """Seconds of the recomputations of the layers up to each for a micro-batch on a device of speed 1."""
        row = stash_policy(policy)
        again = row.remake_s(self.session.chain.costs) if row.remade else 0 * self.session.chain.costs.forward_s
        return np.concatenate([[0.0], np.cumsum(again)])

    def stash_bytes(self, ends: Sequence[int]) -> Floats:
        """Of the stages between these cuts, stashes of a micro-batch."""
        return self.session.chain.stash.of_stages(ends)

    def rest_bytes(self, ends: Sequence[int]) -> Floats:
        """Of these, what selective recomputation keeps."""
        before = np.concatenate([[0.0], np.cumsum(self.session.chain.costs.selective_bytes)])
        return np.asarray(self.stash_bytes(ends) - np.diff(before[list(ends)]))

    @cached_property
    def limits(self) -> Floats:
        """Bytes of the devices of a group."""
        return np.array([self.session.chain.limit(d) for d in self.groups[0]], dtype=np.float64)

    @cached_property
    def seconds_a_byte(self) -> Floats:
        """What a byte of a micro-batch at each hop costs the links, there and its gradient back: [links, hops].

        A hop leads from a group's device to the next one, the last from the last to the first.
        """
        cluster = self.session.problem.cluster
        here = np.array(self.groups, dtype=np.int64)
        after = np.roll(here, -1, axis=1)
        source, target = np.stack([here, after]).ravel(), np.stack([after, here]).ravel()
        hop = np.tile(np.arange(len(self)), 2 * len(self.groups))
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        seconds = np.array([cluster.link(a, b).occupation_s(1) for a, b in pairs])
        ways = np.stack(Machine.of(cluster).occupied(source, target))
        taken = (ways >= 0) & (source != target)
        links, row = np.unique(ways[taken], return_inverse=True)
        table = np.zeros((len(links), len(self)))
        np.add.at(table, (row, np.broadcast_to(hop, ways.shape)[taken]), np.broadcast_to(seconds, ways.shape)[taken])
        return np.unique(table, axis=0)

    def sum_s(self, stages: int) -> float:
        """Seconds of adding up the gradients of one of so many equal stages, and gathering its parameters."""
        problem = self.session.problem
        members = tuple(group[-1] for group in self.groups)
        trained = sum(layer.trained_bytes for layer in problem.model.layers) // stages
        return around_step_s(problem, members, trained)
