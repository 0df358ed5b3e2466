"""What may happen to the stashes of one stage of a pipeline: a record, read by the table of policies.

Nothing here knows a policy but `keep`: what a device holds under a choice, and what it costs, follows from its row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..basics import PlanError
from ..graph import KEEP, StashPolicy, stash_policy

Floats = NDArray[np.float64]

QUARTERS = 4
"""Parts of a stage's micro-batches that are decided on together."""
DEPTHS = (3, 2, 1)
"""Stashes that leave, come back or are in use, of those that a device may hold at once of one stage: one each, so that
copies and computing overlap; with fewer, one waits for the other."""


@dataclass(frozen=True)
class StashChoice:
    """`quarters` of every four micro-batches of a stage have a policy, the others keep their stashes.

    Attributes:
        policy: as in a plan, with the device where it names one ("ship>3").
        quarters: 0 to QUARTERS.
        depth: of a policy by which stashes leave: how many of those the device holds at once. Else 0.

    Raises PlanError for what is no choice.
    """

    policy: str = KEEP
    quarters: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.quarters <= QUARTERS or (self.depth > 0) != (self.row.leaves and self.quarters > 0):
            raise PlanError(f"no stash choice: {self.quarters} quarters {self.policy!r}, {self.depth} on the device")

    @cached_property
    def row(self) -> StashPolicy:
        """What the policy does."""
        return stash_policy(self.policy)

    @property
    def share(self) -> float:
        """The part of the micro-batches that have the policy."""
        return self.quarters / QUARTERS

    def of(self, turn: int) -> str:
        """The policy of the micro-batch that is the turn-th of four to get it."""
        return self.policy if turn < self.quarters else KEEP

    def kept(self, in_flight: int) -> int:
        """Most stashes that are kept, of so many micro-batches in flight one after the other."""
        left = QUARTERS - self.quarters
        return in_flight // QUARTERS * left + min(in_flight % QUARTERS, left)

    def moving(self, in_flight: int) -> int:
        """Most stashes on the device that are on their way, or have come back."""
        return min(self.depth, in_flight - self.kept(in_flight))

    def waiting_s(self, copy_s: Floats, forward_s: Floats, backward_s: Floats) -> Floats:
        """Seconds of a micro-batch in which nothing is computed since the device may hold no more stashes.

        With two, one is copied while the other is in use: out during a backward, back during a forward. With one, every
        copy is waited for. Otherwise copies and computing overlap.
        """
        if self.depth == 2:
            late = np.maximum(copy_s - forward_s, 0) + np.maximum(copy_s - backward_s, 0)
            return np.asarray(self.share * late, dtype=np.float64)
        return np.asarray(self.share * 2 * copy_s if self.depth == 1 else 0.0 * copy_s, dtype=np.float64)


KEPT = StashChoice()


def choices(policies: Collection[str]) -> list[StashChoice]:
    """The choices that these policies allow, keeping first. Raises PlanError for what is no policy."""
    found = [KEPT]
    for policy in policies:
        if policy == KEEP:
            continue
        depths = DEPTHS if stash_policy(policy).leaves else (0,)
        found += [StashChoice(policy, n, depth) for depth in depths for n in range(1, QUARTERS + 1)]
    return list(dict.fromkeys(found))
