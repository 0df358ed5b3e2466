"""Where a race goes on when its arms have reached the bounds of their cuts: other cuts, which may be better."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from ..common import RACE, TOLERANCE, Session, nearby_cuts, random_cut
from .arm import Arm, bound

Stages = tuple[tuple[str, ...], ...]


class Elsewhere:
    """The best orders whose bounds are reached, and the cuts next to theirs and farther away.

    over: whether the race is. Each cut is looked at once in a session.
    """

    def __init__(self, session: Session, seed: int, over: Callable[[], bool]) -> None:
        self.session, self.over, self.random = session, over, random.Random(seed)
        self.ended: list[Arm] = []

    def end(self, arms: Iterable[Arm]) -> None:
        """Remembers the best orders of arms that cannot become better on their cuts."""
        known = [*self.ended, *(arm for arm in arms if arm.order is not None)]
        best = {arm.candidate.stages: arm for arm in sorted(known, key=lambda arm: -arm.seconds)}
        self.ended = sorted(best.values(), key=lambda arm: arm.seconds)[: RACE.mutated]

    def arms(self) -> list[Arm]:
        """Their orders on cuts with better bounds, next to theirs or, where there are none, farther away."""
        for cuts in (*map(self._next_to, self.ended), *map(self._walked, self.ended)):
            found = list(islice(cuts, RACE.neighbours))
            if found:
                return found
        return []

    def _next_to(self, arm: Arm) -> Iterator[Arm]:
        """An arm's order on the cuts next to its own, those first whose busiest device computes least."""
        for stages in nearby_cuts(arm.candidate, self.session.incumbent.aim_s)[: RACE.looked]:
            yield from self._on_cut(arm, stages)

    def _walked(self, arm: Arm) -> Iterator[Arm]:
        """The same on cuts at random whose bounds are hardly worse than the one before; a few times from each."""
        here, least_s, tried = arm.candidate, arm.bound_s, self.session.rounds.tried_before
        if all(tried("walk", number, here.pipelines, here.stash, here.stages) for number in range(RACE.walks)):
            return
        for _ in range(RACE.walked):
            if self.over():
                return
            other = replace(here, stages=random_cut(here, self.random))
            if other.stages == here.stages:
                continue
            bound_s = bound(other, arm.split)
            if bound_s < least_s * (1 + RACE.uphill * self.random.random()):
                here, least_s = other, bound_s
                yield from self._on_cut(arm, other.stages)

    def _on_cut(self, arm: Arm, stages: Stages) -> Iterator[Arm]:
        """The arm's order on a cut that has not been looked at, where it may become the best."""
        known = ("next to", arm.candidate.pipelines, arm.candidate.stash, stages)
        if self.over() or self.session.rounds.tried_before(*known):
            return
        best_s = self.session.incumbent.aim_s
        other = arm.cut_as(stages, best_s * (1 - TOLERANCE.same))
        if other is not None and other.seconds < RACE.mutant * best_s:
            yield other
