"""Whole numbers for a solver, and the stages that every group can be in: what is before and after it decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .problem import GraphProblem

Ints = NDArray[np.int64]
_TICKS = 2**40
"""Ticks of all work and all tensors together: floors of a thousand terms stay within a part in 10^9."""
_PLENTY = 2**44
_BYTE_TICKS = 2**50
_DECIMALS = 6


@dataclass(frozen=True)
class Ticks:
    """A problem's times as whole ticks, rounded down, so that what is proven of the ticks holds for the times.

    Attributes:
        per_unit: ticks in one unit of time.
        grain: work is counted in so many ticks at once; above 1 where all work has few decimals, so that a bound
            on work is rounded up to what work can be.
        work, cpu_work, lean_work: grains of every group; -1 for never.
        costs: ticks of every tensor.
    """

    per_unit: Fraction
    grain: int
    work: tuple[int, ...]
    cpu_work: tuple[int, ...]
    lean_work: tuple[int, ...]
    costs: tuple[int, ...]

    @classmethod
    def of(cls, problem: GraphProblem) -> Ticks:
        """The ticks of a problem's times."""
        work = [g.work for g in problem.groups]
        cpu = [g.cpu_work if problem.cpus else math.inf for g in problem.groups]
        lean = [g.lean.work if g.lean is not None else math.inf for g in problem.groups]
        costs = [t.cost for t in problem.tensors]
        finite = [v for v in (*work, *cpu, *lean, *costs) if math.isfinite(v)]
        total = Fraction(math.fsum(finite)) or Fraction(1)
        decimals = _decimals([*work, *lean]) if problem.overlap else None
        if decimals is None:
            grain, per_unit = 1, Fraction(_TICKS) / total
        else:
            grain = max(1, int(_TICKS / (total * 10**decimals)))
            per_unit = Fraction(10**decimals * grain)
        grains = per_unit / grain

        def grained(values: Sequence[float], exact: bool) -> tuple[int, ...]:
            turn = round if exact else math.floor
            return tuple(turn(Fraction(v) * grains) if math.isfinite(v) else -1 for v in values)

        exact = decimals is not None
        ticks = tuple(math.floor(Fraction(v) * per_unit) for v in costs)
        return cls(per_unit, grain, grained(work, exact), grained(cpu, False), grained(lean, exact), ticks)

    def count(self, time: float) -> int:
        """A time in ticks, rounded down; what is more than everything takes is cut off."""
        return min(_PLENTY, math.floor(Fraction(time) * self.per_unit))

    def time(self, ticks: float) -> float:
        """Ticks as a time in the problem's unit."""
        return float(Fraction(ticks) / self.per_unit)

    @cached_property
    def least(self) -> Ints:
        """Ticks that every group takes at least, wherever it is."""
        ways = zip(self.work, self.cpu_work, self.lean_work, strict=True)
        return np.array([min((v for v in way if v >= 0), default=0) for way in ways], dtype=np.int64) * self.grain


def _decimals(values: Sequence[float]) -> int | None:
    """The fewest decimals, six at most, that write all finite values exactly; None when there is no such number."""
    finite = [v for v in values if math.isfinite(v)]
    for decimals in range(_DECIMALS + 1):
        scaled = [v * 10**decimals for v in finite]
        if all(abs(v - round(v)) <= 1e-9 * abs(v) for v in scaled):
            return decimals
    return None


def byte_ticks(values: Sequence[float], limit: float) -> tuple[list[int], int]:
    """Memory in whole numbers that are exact for whole bytes, otherwise rounded so that nothing that fits is lost."""
    whole = all(v == int(v) for v in values)
    scale = Fraction(1) if whole else Fraction(_BYTE_TICKS) / Fraction(max(math.fsum(values), limit, 1.0))
    return [math.floor(Fraction(v) * scale) for v in values], math.floor(Fraction(limit) * scale)


@dataclass(frozen=True)
class Windows:
    """First and last stage of every group, for partitions whose every stage has at most `cap` ticks."""

    first: Ints
    last: Ints

    @property
    def free(self) -> int:
        """How many decisions they leave."""
        return int(np.maximum(self.last - self.first, 0).sum())

    @property
    def empty(self) -> bool:
        """Is there a group without a stage?"""
        return bool((self.first > self.last).any())


class WindowRule:
    """What is before and after every group, in ticks and bytes, and the windows that follow."""

    def __init__(self, problem: GraphProblem, ticks: Ticks) -> None:
        before = problem.before
        least = ticks.least
        self.stages = problem.stages
        self.ahead: Ints = before @ least
        self.behind: Ints = before.T @ least
        self.rank: Ints = before.sum(axis=1) - 1
        self.rest: Ints = before.sum(axis=0) - 1
        self.every = problem.every
        self.fixed = np.zeros((2, len(problem)), dtype=np.int64)
        if not problem.cpus and math.isfinite(problem.limit_bytes):
            self.fixed = np.stack([self._by_bytes(problem, before), self._by_bytes(problem, before.T)])

    def _by_bytes(self, problem: GraphProblem, near: NDArray[np.bool_]) -> Ints:
        """Stages that what is before (or after) every group fills by its memory alone, less the group's own."""
        light = [min(g.static_bytes, g.lean.static_bytes if g.lean else math.inf) for g in problem.groups]
        if problem.limit_bytes <= 0:
            return np.zeros(len(problem), dtype=np.int64)
        filled = (near @ np.array(light)) / problem.limit_bytes
        return np.asarray(np.maximum(np.ceil(filled - 1e-9) - 1, 0), dtype=np.int64)

    def at(self, cap: int) -> Windows:
        """The windows where every stage takes at most `cap` ticks."""
        if cap <= 0:
            full = np.where(self.ahead > 0, self.stages, 0), np.where(self.behind > 0, self.stages, 0)
        else:
            full = np.maximum(-(-self.ahead // cap) - 1, 0), np.maximum(-(-self.behind // cap) - 1, 0)
        first = np.maximum(full[0], self.fixed[0])
        last = self.stages - 1 - np.maximum(full[1], self.fixed[1])
        return Windows(first, last)
