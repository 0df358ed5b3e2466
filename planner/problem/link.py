"""A way for bytes between two devices, or between a device and its host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..basics import MOST_DEVICES, MOST_SECONDS, ClusterError


@dataclass(frozen=True)
class Link:
    """A way for bytes: a message occupies it for bytes/bandwidth and arrives `latency_s` later.

    `bandwidth` is bytes/s; infinite where the file says nothing. `reduce_bandwidth` is what a ring all-reduce reaches,
    where that differs (it adds as it goes; some switches add on the way); None: `bandwidth`. `cores`: of its node, that
    a message keeps busy on its way, in threads beside those that compute. Raises ClusterError.
    """

    bandwidth: float = math.inf
    latency_s: float = 0.0
    reduce_bandwidth: float | None = None
    cores: float = 0.0

    def __post_init__(self) -> None:
        for name, rate in (("bandwidth", self.bandwidth), ("reduce_bandwidth", self.reduce_bandwidth)):
            if rate is not None and not rate > 0:
                raise ClusterError(f"{name} of a link must be above 0 bytes/s, got {rate}")
        if not 0 <= self.latency_s <= MOST_SECONDS:
            raise ClusterError(f"latency_s of a link must be from 0 to {MOST_SECONDS:g} s, got {self.latency_s}")
        if not 0 <= self.cores <= MOST_DEVICES:
            raise ClusterError(f"cores of a link must be from 0 to {MOST_DEVICES}, got {self.cores}")

    def occupation_s(self, count: int) -> float:
        """Seconds that a message of `count` bytes occupies the link."""
        return count / self.bandwidth

    def reduce_occupation_s(self, count: int) -> float:
        """The same for `count` bytes that an all-reduce moves over the link."""
        return count / (self.bandwidth if self.reduce_bandwidth is None else self.reduce_bandwidth)


FREE = Link()
"""Costs nothing."""
