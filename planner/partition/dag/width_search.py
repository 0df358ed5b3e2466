"""The best stages with replicas, ways and modes: a bisection of the largest load over all order ideals, with a proof.

1. Where there are not too many ideals, whether a load can be kept is decided exactly (`width_kernel`): the bisection
   ends when nothing is better by a part in 10^8. Where they are many, it begins with what 2 finds.
2. Otherwise chains through some topological orders give stages to beat. Groups that no better stages separate become
   one; where few ideals are left then, 1 holds. Where not, it is asked for stages within some load over the ideals that
   such stages may end at (`narrow`): of a load that has any, they are all that 1 needs; of one that has none, that is
   the bound. In what time is left, orders that keep to the best stages are tried.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ...basics import InputError, OutOfTime, check_time, end_asked, heeding_ctrl_c
from . import ideals as graph_ideals
from .mode_choice import YES, choose
from .narrow import narrow_ideals
from .problem import SLACK, merge
from .search import Effort, OnBetter, Status
from .width_kernel import ROUNDING, Arrays, Goal, Ints, arrays_of, decide, stage_costs
from .widths import Stage, WidthProblem

_EXACT = 1e-8
"""Two answers whose largest loads differ by less, relatively, count as equal."""
_MOST_IDEALS = 40_000
"""As many as Piper's own programme takes; a decision over them takes seconds."""
_FEW_IDEALS = 1000
"""Over more a decision is slow where nothing better than the target is known."""
_CLOSE = 1e-4
"""Bounds this close: from here on it is asked for anything better, which is soonest the proof."""
_LEAST = 1e-6
"""Where nothing is known of the bound, the bisection begins this far below the best."""
_ORDERS = 12
_COARSE = 1e-3
_FINE = 1e-6
"""Parts by which chains through some orders must be better to be looked for: one order, several."""
_TOGETHER = 4
_MISSES = 50
"""Orders tried at once, and how many times without an improvement."""
_REACH = 0.25
"""How far from the bound to the best a load is that is asked for over ideals of small borders."""
_NARROW_SHARE = 0.6
"""Of the time left, for them; half of what is left of it for one list."""
_MOST_NARROW = 100_000
_NEAREST = 1e-3
"""Loads nearer to the bound than this part are not asked for."""
_ROWS = 256
"""Ideals between two looks at the clock."""
_STEPS = 1 << 16


@dataclass(frozen=True)
class WidthCut:
    """The answer: the largest load and a proven lower bound of it, in the problem's unit; None: no stages."""

    status: Status
    objective: float | None
    bound: float | None
    stages: tuple[Stage, ...]


@heeding_ctrl_c()
def cut_widths(problem: WidthProblem, effort: Effort, seed: int = 0, on_better: OnBetter | None = None) -> WidthCut:
    """The stages with the smallest largest load; optimal up to a part in 10^8, the best so far when interrupted.

    Raises InputError for devices that there cannot be.
    """
    if problem.graph.accelerators < 1:
        raise InputError("a partition needs at least one device")
    search = _Search(problem, effort, seed, on_better)
    with suppress(KeyboardInterrupt, OutOfTime):
        search.run()
    return search.answer()


class _Search:
    """The best known stages, the best bound, and the way to close the gap."""

    def __init__(self, problem: WidthProblem, effort: Effort, seed: int, on_better: OnBetter | None) -> None:
        self.problem, self.seed, self.on_better = problem, seed, on_better
        self.deadline = time.monotonic() + effort.seconds
        self.upper = math.inf
        self.best: tuple[Stage, ...] = ()
        self.lower = problem.least
        self.impossible = math.isinf(self.lower)

    def run(self) -> None:
        """Improves until it is proven that nothing is better, or the time is up."""
        if self.impossible:
            return
        graph = self.problem.graph
        family = graph_ideals.ideals(graph, _MOST_IDEALS)
        if family is None or len(family) > _FEW_IDEALS:
            self._through_orders()
        if family is None:
            family = self._merged_ideals()
        if family is not None:
            self._every_ideal(family)
        elif not self._narrowed():
            self._polish()

    def answer(self) -> WidthCut:
        """What is known by now."""
        if not self.best:
            return WidthCut("infeasible" if self.impossible else "unknown", None, None, ())
        closed = self.lower >= self.upper * (1 - 2 * _EXACT)
        return WidthCut("optimal" if closed else "feasible", self.upper, min(self.lower, self.upper), self.best)

    def check(self) -> None:
        """Raises KeyboardInterrupt or OutOfTime when it is time to end."""
        if end_asked():
            raise KeyboardInterrupt
        check_time()
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def _take(self, stages: tuple[Stage, ...]) -> bool:
        """Keeps stages that are better than the best."""
        value = self.problem.objective(stages)
        if value >= self.upper:
            return False
        self.upper, self.best = value, stages
        if self.on_better is not None:
            self.on_better(value, min(self.lower, value))
        return True

    # ---------------------------------------------------------------- all ideals

    def _every_ideal(self, masks: Sequence[int]) -> None:
        """Bisects between the bound and the best known until they meet."""
        family = _Family(self.problem, masks, self.check)
        if not self.best and not self._better(family, math.inf):
            self.impossible = not family.unknown
            return
        self._bisect(family, _EXACT, whole=True)
        self._prove(family)

    def _better(self, family: _Family, target: float) -> bool:
        stages = family.decide(target)
        return stages is not None and self._take(stages)

    def _bisect(self, family: _Family, part: float, *, whole: bool) -> None:
        """Improves until nothing better by so large a part is found; of the `whole` graph that is a bound."""
        floor, sure = self.lower, True
        while floor < self.upper * (1 - part):
            known = self.upper * (1 - part)
            near = floor > known * (1 - _CLOSE)
            target = known if near and sure else min(known, math.sqrt(max(floor, _LEAST * known) * known))
            sure = not self._better(family, target)
            if sure:
                floor = target
                if whole and not family.unknown:
                    self.lower = target

    def _prove(self, family: _Family) -> None:
        """Raises the bound to where better stages may hide in choices of modes that were too many to look through."""
        above = self.upper * (1 - _EXACT)
        while self.lower < above:
            target = above if self.lower > above * (1 - _CLOSE) else math.sqrt(max(self.lower, _LEAST * above) * above)
            if family.possible(target):
                if target == above or above < self.lower * (1 + _CLOSE):
                    return
                above = target
            else:
                self.lower = target

    # ---------------------------------------------------------------- too many ideals

    def _through_orders(self) -> None:
        """Chains through each of some topological orders, then through all of them together."""
        seen = []
        for order in graph_ideals.orders(self.problem.graph, _ORDERS, self.seed):
            seen.append(order)
            self._among([order], _COARSE)
        self._among(seen, _FINE)

    def _among(self, orders: Sequence[Sequence[int]], part: float) -> None:
        family = _Family(self.problem, graph_ideals.prefixes(orders), self.check)
        if self.best or self._better(family, math.inf):
            self._bisect(family, part, whole=False)

    def _polish(self) -> None:
        """Chains through orders that keep to the best stages, as long as they improve them."""
        generator, misses = random.Random(self.seed), 0
        graph = self.problem.graph
        while misses < _MISSES:
            self.check()
            parts = [stage.groups for stage in self.best] or [tuple(range(len(graph)))]
            orders = [
                [g for part in parts for g in graph_ideals.order_within(graph, part, generator)]
                for _ in range(_TOGETHER)
            ]
            before = self.upper
            self._among(orders, _FINE)
            misses = 0 if self.upper < before else misses + 1

    def _narrowed(self) -> bool:
        """Asks over the ideals of small borders: whether that proves the best, at the end or before."""
        now = time.monotonic()
        ends = now + _NARROW_SHARE * (self.deadline - now)
        reach, target = self.upper, self.lower + _REACH * (self.upper - self.lower)
        while target > self.lower * (1 + _NEAREST) or reach >= self.upper:
            if target <= self.lower * (1 + _NEAREST):
                target = self.upper
            masks = self._narrow(target, ends)
            if masks is not None:
                family = _Family(self.problem, masks, self.check)
                if target >= self.upper or self._better(family, target):
                    self._every_ideal(masks)
                    return True
                if family.unknown:
                    return False
                self.lower = target
            elif target >= self.upper:
                return False
            else:
                reach = target
            target = self.lower + _REACH * (reach - self.lower)
        return False

    def _narrow(self, load: float, deadline: float) -> list[int] | None:
        """All ideals that stages within a load may end at; None where they are too many, or take too long."""
        ends = (time.monotonic() + deadline) / 2

        def check() -> None:
            self.check()
            if time.monotonic() > ends:
                raise TimeoutError

        with suppress(TimeoutError):
            return narrow_ideals(self.problem, load, _MOST_NARROW, check)
        return None

    def _merged_ideals(self) -> list[int] | None:
        """All ideals that better stages may have, None when there are too many.

        An edge whose two ends are in two stages costs both of them a d-th of it: with d devices or more each.
        """
        graph = self.problem.graph
        most = self.upper * min(graph.accelerators / 2, self.problem.most_replicas / 2, max(self.problem.sync))
        together = [(t.source, target) for t in graph.tensors if t.cost > most for target in t.targets]
        merged = merge(graph, together)
        found = graph_ideals.ideals(merged.problem, _MOST_IDEALS)
        if found is None:
            return None
        bits = [sum(1 << g for g in members) for members in merged.members]
        return [sum(mask for m, mask in enumerate(bits) if ideal >> m & 1) for ideal in found]


class _Family:
    """Order ideals, the smaller first, and what can be decided over them; `unknown`: how often the last one guessed."""

    def __init__(self, problem: WidthProblem, masks: Sequence[int], check: Callable[[], None]) -> None:
        self.problem, self.check = problem, check
        self.arrays = arrays_of(problem, masks)
        self.unknown = 0

    def possible(self, load: float) -> bool:
        """Are there stages within a load, or may there be some?"""
        start, _ = self._steps(self._goal(load, hopeful=True))
        return bool(start[0, 0] < start[0, 1])

    def decide(self, load: float) -> tuple[Stage, ...] | None:
        """Stages within a load; None where none are found, which says that there are none if nothing was `unknown`."""
        goal = self._goal(load, hopeful=False)
        start, steps = self._steps(goal)
        if start[0, 0] == start[0, 1]:
            return None
        stages, i, step = [], 0, int(start[0, 0])
        while i < len(self.arrays.rows) - 1:
            _, total, j, w, x, rest = (int(value) for value in steps[step])
            stages.append(_stage(self.arrays, goal, (i, j, w), x, total))
            i, step = j, rest
        return tuple(stages)

    def _goal(self, load: float, *, hopeful: bool) -> Goal:
        graph = self.problem.graph
        return Goal(load, graph.accelerators, self.problem.most_replicas, graph.limit_bytes * SLACK, hopeful)

    def _steps(self, goal: Goal) -> tuple[Ints, Ints]:
        """The steps of every ideal (`width_kernel.decide`)."""
        last = len(self.arrays.rows) - 1
        start, steps = np.zeros((last + 1, 2), dtype=np.int64), np.zeros((_STEPS, 6), dtype=np.int64)
        start[last, 1] = 1
        row, self.unknown = last - 1, 0
        while row >= 0:
            self.check()
            end = max(0, row - _ROWS + 1)
            row, unknown = decide(self.arrays, goal, row, end, start, steps)
            self.unknown += unknown
            if row >= end:  # there was no room
                steps = np.concatenate([steps, np.zeros((len(steps) + goal.devices + 1, 6), dtype=np.int64)])
        return start, steps


def _stage(arrays: Arrays, goal: Goal, place: tuple[int, int, int], x: int, total: int) -> Stage:
    """A stage whose modes are known to exist: of every group in turn the fastest that leaves the others a choice."""
    width = int(arrays.replicas[x])
    members, cost, memory, free = stage_costs(arrays, place, x, -(-total // width))
    count = arrays.choices[place[2], members]
    budget = goal.load * (1 + ROUNDING) - free
    modes = []
    for v in range(len(members)):
        ways = sorted(range(count[v]), key=lambda k: float(cost[v, k]))
        own, count[v] = (cost[v].copy(), memory[v].copy()), 1
        for k in ways:
            cost[v, 0], memory[v, 0] = own[0][k], own[1][k]
            if choose(cost, memory, count, len(members), budget, goal.limit) == YES:
                break
        modes.append(k)
    return Stage(tuple(int(g) for g in members), tuple(modes), width, int(arrays.ways[place[2]]))
