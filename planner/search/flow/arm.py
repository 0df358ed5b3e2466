"""One line of cuts and devices under annealing, and the orders of what it has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...basics import drop_stale
from ...graph import KEEP, RECOMPUTE
from ...partition import Cuts
from ...plan import Kind, Op
from ..common import FLOW
from ..jit import NEVER, SOURCES
from . import anneal, kernel, tables
from .anneal import improve
from .kernel import value_of
from .tables import Case, Floats, Ints, Work, scratch

_GOLDEN = 0x9E3779B97F4A7C15

drop_stale((improve, value_of), (tables, kernel, anneal, *SOURCES))


@dataclass(eq=False)
class Arm:
    """Where stages end [stages + 1], from 0 to the number of layers; devices, and whether stashes are remade [stages].

    seconds: of all micro-batches, one a period; NEVER where they do not fit, or nobody has looked.
    """

    case: Case
    ends: Ints
    devices: Ints
    remade: Ints
    seed: int
    seconds: float = NEVER
    work: Work = field(init=False)
    state: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.work = scratch(self.case, len(self.devices))
        self.state = np.array([(self.seed + 1) * _GOLDEN % 2**64 | 1], dtype=np.uint64)

    @classmethod
    def of(cls, case: Case, route: Sequence[int], cuts: Cuts, seed: int, remade: bool = False) -> Arm:
        """With stages on these devices that end at these cuts, and all of them make their stashes again, or none."""
        ends = np.array([0, *cuts, len(case.forward) - 1], dtype=np.int64)
        return cls(case, ends, np.array(route, dtype=np.int64), np.full(len(route), int(remade)), seed)

    @property
    def cuts(self) -> Cuts:
        """Where stages end inside the chain."""
        return tuple(self.ends[1:-1].tolist())

    @property
    def route(self) -> tuple[int, ...]:
        """Devices of the stages."""
        return tuple(self.devices.tolist())

    @property
    def stash(self) -> tuple[str, ...]:
        """What becomes of the stages' stashes."""
        return tuple(RECOMPUTE if made else KEEP for made in self.remade.tolist())

    def again(self, number: int) -> Arm:
        """The same with other random numbers."""
        decided = self.ends.copy(), self.devices.copy(), self.remade.copy()
        return Arm(self.case, *decided, self.seed + 104729 * number, self.seconds)

    def tighter(self, over: Sequence[int]) -> Arm:
        """The same with so many bytes less on each device."""
        case = self.case._replace(room=self.case.room - np.array(over, dtype=np.float64))
        return Arm(case, self.ends.copy(), self.devices.copy(), self.remade.copy(), self.seed)

    def improve(self, moves: int, hot: float, stop: Ints) -> None:
        """Anneals, from a temperature that is a share of the seconds."""
        given = self.case, self.work, self.ends, self.devices, self.remade
        self.seconds = float(improve(*given, moves, hot, FLOW.finer, self.state, stop))

    def orders(self) -> list[list[Op]] | None:
        """The compute orders of every device; None where they do not fit."""
        seconds, period_s = value_of(self.case, self.work, self.ends, self.devices, self.remade, FLOW.finest)
        if seconds >= NEVER:
            return None
        timed: list[list[tuple[float, Op]]] = [[] for _ in self.case.room]
        for s, device in enumerate(self.route):
            for begin_s, kind in self._times(s):
                timed[device] += [(begin_s + m * period_s, Op(kind, s, m)) for m in range(self.case.micro_batches)]
        return [[op for _, op in sorted(ops, key=lambda one: (one[0], one[1].kind.value))] for ops in timed]

    def _times(self, s: int) -> list[tuple[float, Kind]]:
        """When F, and I and W or B of the first micro-batch begin."""
        work, stages = self.work, len(self.devices)
        first: Floats = work.begins
        forward, back = float(first[s]), float(first[2 * stages - 1 - s] + work.remake[s])
        if self.case.single[self.ends[s + 1]] > self.case.single[self.ends[s]]:
            return [(forward, Kind.F), (back, Kind.B)]
        return [(forward, Kind.F), (back, Kind.I), (float(work.done[s] - work.weights[s]), Kind.W)]
