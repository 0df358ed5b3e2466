"""Cuts next to a plan's: ends between stages of different devices a layer from where they are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from ...graph import Structured
from .effort import COUNT

Stages = tuple[tuple[str, ...], ...]
Move = tuple[int, int]
"""The stage whose end moves, and where to: a layer earlier (-1) or later (1)."""


def nearby_cuts(plan: Structured, worth_s: float) -> list[Stages]:
    """Cuts in which no device computes for `worth_s` or longer, those whose busiest device computes least first.

    Ends of neighbours move in one direction, layers being handed on from stage to stage, or any two ends do.
    """
    works = _Works(plan)
    found: dict[Stages, float] = {}
    for moves in islice(_moves(plan), COUNT.moved_ends):
        stages, busiest_s = works.after(moves)
        if stages is not None and busiest_s < worth_s:
            found.setdefault(stages, busiest_s)
    return sorted(found, key=found.__getitem__)


def random_cut(plan: Structured, rng: random.Random) -> Stages:
    """The cut after up to three moves of ends at random; the plan's own where it has no ends that may move."""
    ends, stages = [s for s in range(len(plan.stages) - 1) if not same_devices(plan, s)], plan.stages
    for _ in range(rng.randint(1, COUNT.random_moves) if ends else 0):
        stages = moved_end(stages, (rng.choice(ends), rng.choice((-1, 1)))) or stages
    return stages


def moved_end(stages: Stages, move: Move) -> Stages | None:
    """The cut after a move; None where nothing would be left on one side."""
    s, by = move
    one, other = stages[s], stages[s + 1]
    left, right = (one[:-1], one[-1:] + other) if by < 0 else (one + other[:1], other[1:])
    return (*stages[:s], left, right, *stages[s + 2 :]) if left and right else None


def same_devices(plan: Structured, s: int) -> bool:
    """Whether a stage and the next one have the same devices and policies."""
    routes = all(row[s] == row[s + 1] for pipeline in plan.pipelines for row in (pipeline.forward, pipeline.backward))
    return routes and all(row[s] == row[s + 1] for row in plan.stash)


def _moves(plan: Structured) -> Iterator[Sequence[Move]]:
    """Ends that move together, few first; of neighbours in such an order that no stage is empty in between."""
    ends = [s for s in range(len(plan.stages) - 1) if not same_devices(plan, s)]
    for count in range(1, len(ends) + 1):
        for first in range(len(ends) - count + 1):
            run = ends[first : first + count]
            yield [(s, -1) for s in run]
            yield [(s, 1) for s in reversed(run)]
        if count == 1:
            yield from combinations([(s, by) for s in ends for by in (-1, 1)], 2)


class _Works:
    """Seconds that devices compute, forwards and backwards of their layers alone."""

    def __init__(self, plan: Structured) -> None:
        self.plan = plan
        self.layers = {layer.name: layer for layer in plan.problem.model.layers}
        self.busy_s = [0.0] * len(plan.problem.cluster)
        for s, stage in enumerate(plan.stages):
            for name in stage:
                self._add(self.busy_s, name, s, 1)

    def _add(self, busy_s: list[float], name: str, s: int, times: int) -> None:
        layer, devices = self.layers[name], self.plan.problem.cluster.devices
        for pipeline in self.plan.pipelines:
            many = times * len(pipeline.micro_batches)
            busy_s[pipeline.forward[s]] += many * layer.forward_s / devices[pipeline.forward[s]].kind.speed
            back_s = layer.backward_input_s + layer.backward_weight_s
            busy_s[pipeline.backward[s]] += many * back_s / devices[pipeline.backward[s]].kind.speed

    def after(self, moves: Sequence[Move]) -> tuple[Stages | None, float]:
        """The cut, None where a stage would be empty, and the seconds of the busiest device."""
        stages: Stages | None = self.plan.stages
        busy_s = self.busy_s.copy()
        for s, by in moves:
            assert stages is not None
            name, source, target = (stages[s][-1], s, s + 1) if by < 0 else (stages[s + 1][0], s + 1, s)
            self._add(busy_s, name, source, -1)
            self._add(busy_s, name, target, 1)
            stages = moved_end(stages, (s, by))
            if stages is None:
                break
        return stages if stages != self.plan.stages else None, max(busy_s)


__all__ = ["moved_end", "nearby_cuts", "random_cut", "same_devices"]
