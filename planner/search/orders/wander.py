"""A cut that wanders: annealing over where stages end, each new cut with a short annealing of the order for it.

An order is made for one cut, and where devices have several stages many cuts are as even, of which some have much
better orders; ends that move only where that shortens an order at once reach the next valley and no further. So they
move at random, a layer at a time: one of them, two, or a run of neighbours, which hand layers on to a device far away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy

import numpy as np

from ..common import WANDERING, same_devices
from ..jit import draw
from .arm import Arm
from .kernels import NEVER, Ints
from .shifted import Shifted

Done = Callable[[int], float]
"""By runs of one op so far, which part of the walk is over; from 1 on it ends."""


def wander(arm: Arm, hot: float, done: Done, target_s: float, stop: Ints) -> int:
    """The arm moves to the best cut found, with its order there.

    hot: first temperature, in makespans; it falls to nothing. Ends when its time is over, where its order is not nearly
    as good on any cut nearby, at `target_s` seconds, and when `stop`, an array of one number, is no longer 0. Returns
    the runs of one op that it took.
    """
    walk, here, best, spent, looks = _Walk(arm), arm, arm, 0, 0
    while (over := done(spent)) < 1 and best.seconds > target_s and stop[0] == 0 and looks < WANDERING.looks:
        level_s = here.seconds - hot * best.seconds * (1 - over) * math.log(1 - walk.draw())
        spent, looks = spent + WANDERING.look, looks + 1
        cut = walk.moved()
        if cut is None or walk.busiest_s(cut) >= level_s:
            continue
        spent += WANDERING.build + arm.ops
        other = walk.on(cut)
        assert here.order is not None
        other.accept(here.order, WANDERING.worse * level_s)
        if other.order is None:
            continue
        spent, looks = spent + WANDERING.polish * arm.ops, 0
        other.anneal(WANDERING.polish * arm.ops, WANDERING.polish_hot, target_s, stop)
        if other.seconds < level_s:
            here, walk.cut = other, cut
            if here.seconds < best.seconds:
                best, walk.best = here, cut
    if best is not arm and best.order is not None:
        arm.move(walk.arrays.candidate(walk.best), best.order)
    return spent


class _Walk:
    """Cuts around an arm's.

    Attributes:
        cut: the current one, as in `Shifted`. best: of the best order.
        ends: places of those in `cut` that may move: between stages on different devices.
    """

    def __init__(self, arm: Arm) -> None:
        self.arm, stages, problem = arm, arm.candidate.stages, arm.candidate.problem
        self.arrays, self.cut = Shifted(arm), np.cumsum([0, *map(len, stages)])
        self.best = self.cut
        self.ends = [s + 1 for s in range(len(stages) - 1) if not same_devices(arm.candidate, s)]
        layers = {layer.name: layer for layer in problem.model.layers}
        work = [layers[name].forward_s + layers[name].backward_s for name in self.arrays.names]
        self.work_s = np.concatenate([[0.0], np.cumsum(work)])
        speeds = np.array([device.kind.speed for device in problem.cluster.devices])
        batches = [len(pipeline.micro_batches) for pipeline in arm.candidate.pipelines]
        self.home = self.arrays.home
        self.pace = np.repeat(batches, len(stages)) / speeds[self.home]

    def draw(self) -> float:
        return float(draw(self.arm.state))

    def moved(self) -> Ints | None:
        """The current cut after a move; None where it is none or would leave a stage empty."""
        if not self.ends:
            return None
        cut, kind, many = self.cut.copy(), self.draw(), len(self.ends)
        one, other = int(self.draw() * many), int(self.draw() * many)
        by = 1 if self.draw() < 0.5 else -1
        if kind < WANDERING.together:
            cut[self.ends[min(one, other) : max(one, other) + 1]] += by
        else:
            cut[self.ends[one]] += by
            if kind < WANDERING.together + WANDERING.two:
                cut[self.ends[other]] += 1 if self.draw() < 0.5 else -1
        return cut if (np.diff(cut) > 0).all() and (cut != self.cut).any() else None

    def busiest_s(self, cut: Ints) -> float:
        """Seconds that the busiest device computes."""
        stages = np.diff(self.work_s[cut])
        return float(np.bincount(self.home, np.tile(stages, len(self.home) // len(stages)) * self.pace).max())

    def on(self, cut: Ints) -> Arm:
        """The arm on a cut, without an order; its random numbers go on, and it does not know of what it is."""
        other = copy(self.arm)
        other.arrays, other.order, other.seconds = self.arrays.at(cut), None, NEVER
        return other
