"""Orders squeezed by costs: a device that would wait runs what is ready and stands a little later in its list.

An event-driven list scheduler (see `squeezing`). The given orders are priorities, free of deadlock; an op may overtake
as long as all that it overtakes still fits the room, so what comes out runs too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..basics import Loops
from ..plan import Kind, Op
from .squeezing import squeeze
from .timing import ROUNDING, Timing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORTH = 100_000
"""Ops that plain Python reorders until what is compiled is worth loading: a second. Not measured."""
_loops = Loops(squeeze, small=0, worth=WORTH)


class Squeeze:
    """F and I of one pipeline, to be reordered.

    Args:
        codes: F and I of every device, an op being its unit times `batches`, plus its micro-batch, and units the F of
            all stages and then their I; must be free of deadlock.
        route: device of every stage.
        timing: costs and room.
    """

    def __init__(self, codes: Iterable[NDArray[np.int64]], batches: int, route: Sequence[int], timing: Timing) -> None:
        self.stages, self.batches, self._parts = len(route), batches, list(codes)
        left = [later - size for size, later in zip(timing.stash_bytes, timing.pending_bytes, strict=True)]
        self.costs: tuple[list[Any], ...] = (
            [*timing.forward_s, *timing.input_s],
            list(timing.arrival_s),
            list(route) * 2,
            [*timing.stash_bytes, *(-size for size in timing.stash_bytes)],
            [*timing.stash_bytes, *left],
            list(timing.weight_s),
            list(timing.pending_bytes),
            [room * (1 + ROUNDING) for room in timing.room_bytes],
        )

    @classmethod
    def of_orders(cls, orders: Sequence[Sequence[Op]], route: Sequence[int], timing: Timing) -> Squeeze:
        """Of lists of F and I."""
        import numpy as np

        stages, batches = len(route), 1 + max((op.micro_batch for order in orders for op in order), default=-1)
        codes = (
            [(op.stage + (op.kind is not Kind.F) * stages) * batches + op.micro_batch for op in order]
            for order in orders
        )
        return cls([np.array(listed, dtype=np.int64) for listed in codes], batches, route, timing)

    def first(self, micro_batches: int) -> Squeeze:
        """The same with the first micro-batches only."""
        fewer = copy(self)
        fewer._parts = [codes[codes % self.batches < micro_batches] for codes in self._parts]
        return fewer

    @property
    def codes(self) -> NDArray[np.int64]:
        """Of all devices, one after the other."""
        import numpy as np

        return np.concatenate(self._parts)

    @property
    def begin(self) -> NDArray[np.int64]:
        """Where those of every device begin, and the end."""
        import numpy as np

        return np.cumsum([0, *map(len, self._parts)])

    def run(self, weight_gap: float, other_gap: float) -> Run:
        """Reorders, with W in the gaps.

        A W, or an F or I out of turn, goes into a wait of at least `weight_gap` or `other_gap` of its time.
        """
        return Run(self, weight_gap, other_gap)

    @cached_property
    def compiled_costs(self) -> tuple[Any, ...]:
        """The same for the compiled loop."""
        import numpy as np

        kinds = (float, float, int, float, float, float, float, float)
        return tuple(np.array(each, dtype=kind) for each, kind in zip(self.costs, kinds, strict=True))


class Run:
    """One event-driven simulation, which makes the lists.

    Attributes:
        fits: whether it came to its end; else not even the given orders fit.
        step_s: seconds until the last op has ended.
    """

    def __init__(self, given: Squeeze, weight_gap: float, other_gap: float) -> None:
        import numpy as np

        codes, self._begin = given.codes, given.begin
        ops, devices, units = len(codes), len(self._begin) - 1, 2 * given.stages
        ready = np.full(units * given.batches, math.inf)
        ready[: given.batches] = 0.0
        work: list[Any] = [np.arange(1, ops + 1), np.zeros(ops, dtype=np.int64), ready]
        work += [np.zeros(devices), np.zeros(2 * ops, dtype=np.int64), np.zeros(devices, dtype=np.int64)]
        if _loops.compiled(ops):
            (loop,), costs, orders = _loops.functions, given.compiled_costs, (codes, self._begin)
        else:
            loop, costs, orders = squeeze, given.costs, (codes.tolist(), self._begin.tolist())
            work = [each.tolist() for each in work]
        left = loop(*orders, given.batches, *costs, weight_gap, other_gap, *work)
        *_, clock, self._lists, self._count = work
        self.given = given
        self.fits = left == 0
        self.step_s = float(max(clock, default=0.0))

    @property
    def orders(self) -> tuple[tuple[Op, ...], ...]:
        """The lists, of F, I and W."""
        stages, batches = self.given.stages, self.given.batches
        kinds = [Kind.F] * stages + [Kind.I] * stages + [Kind.W] * stages
        found = []
        for begin, many in zip(self._begin.tolist(), self._count, strict=False):
            codes = (int(code) for code in self._lists[2 * begin : 2 * begin + many])
            found.append(tuple(Op(kinds[code // batches], code // batches % stages, code % batches) for code in codes))
        return tuple(found)
