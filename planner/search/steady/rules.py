"""What a weight policy asks of a stage with w micro-batches in flight: staleness, copies of weights, predictions.

A stage runs F(i + w - 1), B(i) in turn. With a STEP right after the last backward of its update, the forward of
micro-batch j finds floor((j - w + 1) / m) updates; where gradients are summed over devices first, the STEP stands
behind one more forward, which finds floor((j - w) / m). `lag` is that distance in micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...problem import CURRENT, WeightPolicy

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rules:
    """A weight policy on one of several equal groups of devices.

    Attributes:
        update: micro-batches of the group an update.
        reduced: whether gradients are summed between groups before every STEP.
        limit: most updates of staleness allowed; None: any.
        entry: where a forward takes the first stage's version: the staleness there, which all stages keep copies for.
    """

    policy: WeightPolicy
    update: int
    reduced: bool
    limit: int | None = None
    entry: int = 0

    @property
    def from_entry(self) -> bool:
        """Whether every stage takes the version that the first one says."""
        return self.policy.takes != CURRENT

    def at_entry(self, staleness: int) -> Rules:
        """The rules when the first stage's staleness is this."""
        return replace(self, entry=staleness)

    def lag(self, in_flight: Floats, late: Flags) -> Floats:
        """Micro-batches between a forward and the last one whose update it may have found.

        late: whether the stage's gradients are summed over devices, here and below.
        """
        return np.where(late, in_flight, in_flight - 1)

    def staleness(self, in_flight: Floats, late: Flags) -> Floats:
        """Most updates between the newest version at a forward and the one its update starts from."""
        return np.ceil(self.lag(in_flight, late) / self.update)

    def allowed(self, in_flight: Floats, late: Flags, first: bool) -> Flags:
        """Whether a stage may have so many in flight; `first`: the first stage."""
        if self.limit is None or (self.from_entry and not first):
            return np.ones(in_flight.shape, dtype=np.bool_)
        return np.asarray(self.staleness(in_flight, late) <= self.limit)

    def copies(self, in_flight: Floats, late: Flags) -> Floats:
        """Versions besides the newest that are needed at once, at the first backward of an update."""
        if not self.policy.stashed:
            return np.zeros_like(in_flight)
        if self.from_entry:
            return np.full_like(in_flight, self.entry)
        return self.staleness(in_flight, late)

    def predicted_share(self, stage: int, in_flight: Floats, late: Flags) -> Floats:
        """Which share of the forwards has a PREDICT before it."""
        policy = self.policy
        if not policy.predicts:
            return np.zeros_like(in_flight)
        if policy.extra or self.predicts_backward(stage):
            return np.ones_like(in_flight)
        return np.minimum(1.0, self.lag(in_flight, late) / self.update)

    def predicts_backward(self, stage: int) -> bool:
        """Whether backwards have a PREDICT before them."""
        return self.policy.backward_ahead(stage) > 0
