"""A rank's samples, those of several micro-batches drawn together.

Between layers' kernels, what draws samples finds its code and data in no cache: measured, 70 to 90 us a micro-batch of
digits, where those drawn right behind it take 17 to 25. So whoever draws goes on with those that its list reads next,
as long as that takes no time to speak of: a data set that is slow, or large, is asked for one micro-batch at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ...models.wiring import Inputs, named
from ..basics import RunError
from ..state import Blueprint

AHEAD_S = 4e-4
"""Nothing more is drawn ahead once all that was drawn together has taken so long."""
AHEAD_BYTES = 1 << 18
"""Nothing more is drawn ahead once there is so much that has not been taken."""


class Wanted(NamedTuple):
    """Of which step (or update) and micro-batch of it, how many samples; `alone`: their targets alone."""

    step: int
    micro_batch: int
    samples: int
    alone: bool


class Drawn(NamedTuple):
    """No inputs: where targets alone were wanted."""

    inputs: Inputs | None
    targets: Tensor

    @property
    def bytes(self) -> int:
        """Of all."""
        return self.targets.nbytes + (0 if self.inputs is None else sum(x.nbytes for x in named(self.inputs).values()))


class Drawing:
    """The samples of a blueprint's data set for one rank; what is drawn ahead lies with the data until it is taken.

    Args:
        track: told about tensors that were drawn ahead, once they are taken.
    """

    def __init__(self, blueprint: Blueprint, track: Callable[[Tensor], None]) -> None:
        self._blueprint, self._track = blueprint, track
        self._ahead: dict[Wanted, Drawn] = {}

    def take(self, wanted: Wanted, following: Iterable[Wanted]) -> Drawn:
        """The samples, and maybe ahead of their time some of those that follow.

        Raises DataError: the data set gives something else than it was asked for, or nothing.
        """
        drawn = self._ahead.pop(wanted, None)
        if drawn is not None:
            for tensor in (drawn.targets, *([] if drawn.inputs is None else named(drawn.inputs).values())):
                self._track(tensor)
            return drawn
        began = time.perf_counter()
        drawn = self._draw(wanted)
        size = sum(drawn.bytes for drawn in self._ahead.values())
        for other in following:
            if time.perf_counter() - began >= AHEAD_S or size >= AHEAD_BYTES:
                break
            if other not in self._ahead:
                size += self._draw_ahead(other)
        return drawn

    def clear(self) -> None:
        """Nothing is drawn ahead any more."""
        self._ahead.clear()

    def _draw_ahead(self, wanted: Wanted) -> int:
        """How many bytes; whoever wants it is told what is wrong with it."""
        with suppress(RunError), _disable_current_modes():  # nobody's memory but the data's
            self._ahead[wanted] = self._draw(wanted)
            return self._ahead[wanted].bytes
        return AHEAD_BYTES

    def _draw(self, wanted: Wanted) -> Drawn:
        batch = wanted.step, wanted.micro_batch, wanted.samples
        if wanted.alone:
            return Drawn(None, self._blueprint.targets(*batch))
        return Drawn(*self._blueprint.batch(*batch))
