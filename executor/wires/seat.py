"""Where a process stands among the ranks of a run: a lane of the team that is a device of the plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..basics import rank_name


@dataclass(frozen=True)
class Seat:
    """Lane `lane` of the `size` ranks that are device `device` together.

    All of a plan's messages and sums go between equal lanes.
    """

    device: int
    lane: int = 0
    size: int = 1

    @classmethod
    def of(cls, number: int, size: int) -> Seat:
        """That of a rank, by its number among all."""
        return cls(number // size, number % size, size)

    @property
    def number(self) -> int:
        """Among all ranks."""
        return self.like(self.device)

    @property
    def name(self) -> str:
        """What messages call this rank."""
        return rank_name(self.number, self.size)

    def like(self, device: int) -> int:
        """The rank of another device in the same lane."""
        return device * self.size + self.lane

    @property
    def mates(self) -> range:
        """The ranks of the team."""
        return range(self.device * self.size, (self.device + 1) * self.size)

    def in_lanes(self, devices: Iterable[int]) -> list[list[int]]:
        """The ranks of these devices, lane by lane."""
        known = list(devices)
        return [[device * self.size + lane for device in known] for lane in range(self.size)]
