"""What every rank is doing: each writes it into its slot of shared memory, and whoever watches reads all slots."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

_SLOT = struct.Struct("=5q")
_BEAT = struct.Struct("=q")
_STRIDE = _SLOT.size + _BEAT.size
NOWHERE = -1
MATES = -2


class Doing(IntEnum):
    """What a rank does; a slot of zeros is a rank that has not started. AWAY: in a user's loop, for however long."""

    STARTING = 0
    COMPUTING = 1
    WAITING = 2
    ENDING = 3
    DONE = 4
    EVALUATING = 5
    AWAY = 6


LONG = (Doing.STARTING, Doing.ENDING, Doing.EVALUATING)
"""May take much longer than an op."""


class Slot(NamedTuple):
    """One rank's state.

    `position`: in its list, of the op that runs, or that cannot start; `awaited`: of the op it waits for (NOWHERE: for
    all ranks, at the start of the step; MATES: for the other lanes of its team, whatever it does). `since_ns`: of the
    system's monotonic clock.
    """

    doing: Doing
    step: int = NOWHERE
    position: int = NOWHERE
    awaited: int = NOWHERE
    since_ns: int = 0


class Board:
    """A slot for each rank in a buffer of `Board.size(ranks)` bytes, and when its process was last known to run.

    Written without locks: one writer a slot, and one a beat. Behind the slots, for how many seconds ranks have seen
    their parent stopped before they called it back.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    @staticmethod
    def size(ranks: int) -> int:
        """Bytes for so many ranks."""
        return ranks * _STRIDE + _BEAT.size

    def write(self, rank: int, doing: int, step: int, position: int, awaited: int, since_ns: int) -> None:
        """Publishes a rank's state; well under a microsecond."""
        _SLOT.pack_into(self._memory, rank * _STRIDE, doing, step, position, awaited, since_ns)

    def read(self, rank: int) -> Slot:
        """A rank's state."""
        doing, *rest = _SLOT.unpack_from(self._memory, rank * _STRIDE)
        return Slot(Doing(doing), *rest)

    def beat(self, rank: int, now_ns: int) -> None:
        """Says that the rank's process runs."""
        _BEAT.pack_into(self._memory, rank * _STRIDE + _SLOT.size, now_ns)

    def beats(self) -> list[int]:
        """When every rank's process was last known to run, 0: never."""
        found = range(_SLOT.size, len(self._memory) - _BEAT.size, _STRIDE)
        return [_BEAT.unpack_from(self._memory, offset)[0] for offset in found]

    def call_parent(self, seconds: float) -> None:
        """Says that the parent has been stopped for so long while a rank ran."""
        _BEAT.pack_into(self._memory, len(self._memory) - _BEAT.size, int(1e9 * seconds))

    @property
    def parent_stopped_s(self) -> float:
        """For how long ranks have seen their parent stopped; 0: they have not called it back."""
        return float(_BEAT.unpack_from(self._memory, len(self._memory) - _BEAT.size)[0]) / 1e9

    def read_all(self) -> list[Slot]:
        """The states of all ranks."""
        return [self.read(rank) for rank in range(len(self._memory) // _STRIDE)]
