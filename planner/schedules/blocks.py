"""Building blocks of V-shaped schedules by costs and memory: one micro-batch's F and I, repeated every period.

How long a block is, in periods, is how many micro-batches are alive: pauses at every device make it long and let no
device wait for another, and a longer period holds less (Qi et al., arXiv:2405.15362, adaptive scheduling).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .squeezed import Run, Squeeze
from .timing import ROUNDING, Timing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Block(NamedTuple):
    """Pauses beyond what an op and its message take, in sixths of the shortest period.

    pauses: at every device on the way of F of a device's first stage and of its second, of I of the second and of the
    first. turns: where a pass comes back to the device that it has just left: between the two F, between F and I, and
    between the two I.
    """

    pauses: tuple[float, float, float, float]
    turns: tuple[float, float, float]


BLOCKS = (
    Block((0.5, 1.5, 1.5, 1.5), (0, 2, 0)),
    Block((0, 1.5, 0.5, 3), (1.5, 1.5, 1.5)),
    Block((1.5, 1.5, 3, 1.5), (0, 0, 0)),
    Block((0.5, 0.5, 1.5, 1.5), (0, 2, 0)),
    Block((0.5, 3, 1.5, 3), (1.5, 1.5, 1.5)),
    Block((0, 0.5, 3, 3), (1.5, 1.5, 1.5)),
    Block((3, 0.5, 3, 0.5), (1.5, 1.5, 1.5)),
    Block((0.5, 3, 0.5, 1.5), (0, 2, 0)),
    Block((1.5, 0, 3, 1.5), (1.5, 1.5, 1.5)),
    Block((0.5, 1.5, 0, 3), (0, 2, 0)),
    Block((0.5, 1.5, 0.5, 0.5), (0, 2, 0)),
    Block((1.5, 3, 1.5, 3), (0, 0, 0)),
)
"""Of 768 blocks with pauses 0, 0.5, 1.5 or 3, those that together are at most 1 % behind the best one, on 57 cases: 4
to 16 devices, random costs, 0.4 to 1 times 1F1B's memory."""
SLOWER = 1.12
"""A period is so many times the one before, until the micro-batches alive fit."""
LONGEST = 30
"""Periods that are tried: the last is 27 times the first."""
FEW = 2
"""Micro-batches a device with which blocks are compared."""
GAPS = ((0.6, 0.6), (0.3, 0.3), (1.0, 1.0), (0.6, 0.0), (0.3, 1.0))
"""Least gaps for W and for others that the best blocks are squeezed with."""
BEST = 2
"""Blocks that are squeezed with all micro-batches, before the best of them is with all of these gaps."""


def adapted(route: Sequence[int], micro_batches: int, timing: Timing, worth_s: float = math.inf) -> list[Run]:
    """The best building block for these costs and this room, squeezed in different ways; none where no block fits.

    `route`: a V, its first half down and its second up. Nothing where the first try takes longer than `worth_s`.
    """
    few = min(micro_batches, FEW * len(timing.room_bytes))
    found: list[tuple[float, int, Squeeze]] = []
    for k, block in enumerate(BLOCKS):
        squeeze = repeated(block, route, micro_batches, timing)
        if squeeze is not None:
            run = squeeze.first(few).run(*GAPS[0])
            if run.fits:
                found.append((run.step_s, k, squeeze))
    runs = [squeeze.run(*GAPS[0]) for _, _, squeeze in sorted(found)[:BEST]]
    best = min((run for run in runs if run.fits), key=lambda run: run.step_s, default=None)
    if best is None or best.step_s > worth_s:
        return []
    return [best, *(run for gaps in GAPS[1:] if (run := best.given.run(*gaps)).fits)]


def repeated(block: Block, route: Sequence[int], micro_batches: int, timing: Timing) -> Squeeze | None:
    """F and I of the block repeated with the shortest period that fits; None where none does."""
    import numpy as np

    work = [0.0] * len(timing.room_bytes)
    for d, *seconds in zip(route, timing.forward_s, timing.input_s, timing.weight_s, strict=True):
        work[d] += sum(seconds)
    shortest_s = max(work)
    if shortest_s <= 0:  # nothing takes any time
        return None
    forwards, backwards = _offsets(block, timing, shortest_s / 6)
    stages = np.argsort(route, kind="stable").reshape(-1, 2)  # [devices, 2]
    periods = np.array([shortest_s * SLOWER**k for k in range(LONGEST)])
    (fitting,) = np.nonzero(_fits(stages, timing, periods, forwards, backwards))
    if not len(fitting):
        return None
    offsets, period = np.array([*forwards, *backwards]), periods[fitting[0]]
    return Squeeze(_unrolled(stages, micro_batches, period, offsets), micro_batches, route, timing)


def _unrolled(
    stages: NDArray[np.int64], micro_batches: int, period: float, offsets: NDArray[np.float64]
) -> NDArray[np.int64]:
    """By device, ops in the order in which they begin; those that begin together as their codes say (see `Squeeze`)."""
    import numpy as np

    units, numbers = np.hstack([stages, stages + stages.size]), np.arange(micro_batches)
    codes = (units[:, :, None] * micro_batches + numbers).reshape(len(units), -1)
    begin_s = (numbers * period + offsets[units][:, :, None]).reshape(codes.shape)
    return np.take_along_axis(codes, np.lexsort((codes, begin_s), axis=-1), axis=-1)


def _offsets(block: Block, timing: Timing, slot: float) -> tuple[list[float], list[float]]:
    """When F and I of every stage begin."""
    last = len(timing.forward_s) - 1
    half = last // 2
    down, up, home, out = (pause * slot for pause in block.pauses)
    first, middle, final = (turn * slot for turn in block.turns)
    forwards, backwards = [0.0] * (last + 1), [0.0] * (last + 1)
    for s in range(last):
        pause = first if s == half else timing.arrival_s[s] + (down if s < half else up)
        forwards[s + 1] = forwards[s] + timing.forward_s[s] + pause
    backwards[last] = forwards[last] + timing.forward_s[last] + middle
    for s in reversed(range(last)):
        pause = final if s == half else timing.arrival_s[s] + (home if s > half else out)
        backwards[s] = backwards[s + 1] + timing.input_s[s + 1] + pause
    return forwards, backwards


def _fits(
    stages: NDArray[np.int64],
    timing: Timing,
    periods: NDArray[np.float64],
    forwards: Sequence[float],
    backwards: Sequence[float],
) -> NDArray[np.bool_]:
    """By period, whether devices have room for what is alive when an F begins, between F and I, in the steady state."""
    import numpy as np

    forward, backward, stash = (np.array(each)[stages] for each in (forwards, backwards, timing.stash_bytes))
    since = forward[:, :, None] - np.stack([forward, backward])[:, :, None, :]  # [F or I, device, F begins, stage]
    begun = np.floor(since[0] / periods[:, None, None, None] + ROUNDING)
    ended = np.floor(since[1] / periods[:, None, None, None] - ROUNDING)
    alive = ((begun - ended) * stash[:, None, :]).sum(axis=-1)  # [period, device, F begins]
    room = np.array(timing.room_bytes)[:, None] * (1 + ROUNDING)
    return np.asarray((alive <= room).all(axis=(1, 2)))
