"""The best partition of a layer graph into stages, with a proof: dynamic programme or CP-SAT.

1. The best chains through a few topological orders give a partition to beat.
2. Groups that no better partition separates become one. Where few order ideals are left, the dynamic programme over
   all of them is exact.
3. Otherwise CP-SAT looks for a better partition within windows that the best known one leaves; every improvement
   narrows them. When it finds no better one, that is the proof.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ...basics import InputError, OutOfTime, check_time, end_asked, heeding_ctrl_c
from . import ideals as graph_ideals
from .problem import GraphProblem, Merged, Partition, inseparable, merge, objective
from .windows import Ticks, WindowRule

if TYPE_CHECKING:
    from .model import Found

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
OnBetter = Callable[[float, float], None]
"""Called with the largest load of a better partition and the bound that is proven by then."""

_EXACT = 1e-8
"""Two partitions whose objectives differ by less, relatively, count as equal."""
_NOTHING = 1e-10
"""So much of all there is counts as nothing: a group that takes less than a tick."""
_ORDERS = 12
_ORDER_SHARE = 0.25
"""Of the time, for looking through topological orders."""
_DECIDE_SHARE = 0.7
"""Of the time left, for a decision; the rest for a bound where there is none."""
_MISSES = 8
"""Orders without an improvement, after which no more are tried."""
_MOST_IDEALS = 20_000
_MOST_PAIRS = 2e9
"""Pairs of ideals, times words of groups, and tensors where a load needs them: some seconds."""


@dataclass(frozen=True)
class Effort:
    """How long a graph is cut.

    Attributes:
        seconds: of the clock.
        workers: threads of CP-SAT; more than two are not used.
        deterministic: CP-SAT's deterministic seconds, in one thread: what is found then depends on the clock only where
            `seconds` are too few. None: without a limit.
        decisions: groups times stages up to which a model is built. None: always.
    """

    seconds: float = 60.0
    workers: int = 2
    deterministic: float | None = None
    decisions: int | None = None

    def allows(self, problem: GraphProblem) -> bool:
        """Whether a model of this problem is worth building."""
        return self.decisions is None or len(problem) * problem.stages <= self.decisions


@dataclass(frozen=True)
class GraphCut:
    """The answer: the largest load and a proven lower bound of it, in the problem's unit; None: no partition."""

    status: Status
    objective: float | None
    bound: float | None
    partition: Partition | None


@heeding_ctrl_c()
def cut_graph(
    problem: GraphProblem,
    effort: Effort = Effort(),
    seed: int = 0,
    on_better: OnBetter | None = None,
) -> GraphCut:
    """The partition with the smallest largest load; optimal up to a part in 10^8, the best so far when interrupted.

    Raises InputError for devices that there cannot be.
    """
    _check(problem)
    nowhere = not problem.cpus and any(math.isinf(g.work) for g in problem.groups)
    if nowhere or (problem.every and problem.accelerators > len(problem)):
        return GraphCut("infeasible", None, None, None)
    devices = (min(problem.accelerators, len(problem)), min(problem.cpus, len(problem)))
    problem = replace(problem, accelerators=devices[0], cpus=devices[1])
    search = _Search(problem, effort, seed, on_better)
    with suppress(KeyboardInterrupt, OutOfTime):
        search.run()
    return search.answer()


def _check(problem: GraphProblem) -> None:
    if problem.accelerators < 0 or problem.cpus < 0 or problem.stages < 1:
        raise InputError("a partition needs at least one device")
    if problem.cpus and any(g.in_flight_bytes for g in problem.groups):
        raise InputError("where memory depends on the stages that follow, CPUs cannot take stages")
    if problem.cpus and problem.overlap:
        raise InputError("CPUs cannot take stages where communication overlaps work")


class _Search:
    """The best known partition of a problem, the best bound, and the way to close the gap."""

    def __init__(self, problem: GraphProblem, effort: Effort, seed: int, on_better: OnBetter | None) -> None:
        self.problem, self.effort, self.seed = problem, effort, seed
        self.deadline, self.deterministic = time.monotonic() + effort.seconds, effort.deterministic
        self.on_better = on_better
        self.upper, self.best = math.inf, None  # type: tuple[float, Partition | None]
        self.lower, self.nothing = 0.0, _NOTHING * _most(problem)
        self.proven = False
        self.improved = False
        """Has the solver just found something better?"""

    @property
    def closed(self) -> bool:
        """Does the bound meet the best known, as far as that can be told?"""
        return self.lower >= self.upper * (1 - _EXACT) - self.nothing

    @property
    def left(self) -> float:
        """Seconds; none once Ctrl-C has asked for the end."""
        return 0.0 if end_asked() else self.deadline - time.monotonic()

    def run(self) -> None:
        """Improves until it is proven that nothing is better, or the time is up."""
        whole = merge(self.problem, ()) if not self._lean else _unmerged(self.problem)
        modelled = self.effort.allows(whole.problem)
        self._through_orders(whole, (_ORDER_SHARE if modelled else 1.0) * self.effort.seconds)
        while not self.proven and self.left > 0:
            merged = whole if self._lean else merge(self.problem, inseparable(self.problem, self.upper))
            if not self._every_ideal(merged) and not (self._open(merged) and self._solver(merged)):
                break

    def _open(self, merged: Merged) -> bool:
        """Whether the effort allows a model, and is not used up."""
        return self.effort.allows(merged.problem) and (self.deterministic is None or self.deterministic > 0)

    @property
    def _lean(self) -> bool:
        return any(group.lean is not None for group in self.problem.groups)

    def _take(self, partition: Partition) -> bool:
        """Keeps a partition that is better than the best."""
        value = objective(self.problem, partition)
        if value >= self.upper:
            return False
        self.upper, self.best = value, partition
        if self.on_better is not None:
            self.on_better(value, self.lower)
        return True

    # ---------------------------------------------------------------- the three ways

    def _through_orders(self, merged: Merged, seconds: float) -> None:
        """The best chain through each of some topological orders, then through all of them together."""
        end = time.monotonic() + seconds
        seen: list[list[int]] = []
        for order in graph_ideals.orders(merged.problem, _ORDERS, self.seed):
            seen.append(order)
            self._chain(merged, graph_ideals.prefixes([order]))
            check_time()
            if end_asked() or (self.deterministic is None and time.monotonic() > end):
                return
        if self.best is not None:
            self._polish(merged)
        family = graph_ideals.prefixes(seen)
        if self._effort(merged.problem, len(family)) <= _MOST_PAIRS:
            self._chain(merged, family)

    def _chain(self, merged: Merged, family: list[int]) -> bool:
        _, partition = graph_ideals.best_chain(merged.problem, family, self.upper)
        return partition is not None and self._take(merged.expand(partition))

    def _effort(self, problem: GraphProblem, count: int) -> float:
        words = 1 + len(problem) // 64
        return float(count**2 * (words if problem.overlap else words + len(problem.tensors)))

    def _every_ideal(self, merged: Merged) -> bool:
        """The exact dynamic programme where there are few ideals; False where it proves nothing."""
        most = int(min(_MOST_IDEALS, (_MOST_PAIRS / max(1.0, self._effort(merged.problem, 1))) ** 0.5))
        family = graph_ideals.ideals(merged.problem, most)
        if family is None:
            return False
        self._chain(merged, family)
        lower = self.upper
        if self._lean:
            relaxed, _ = graph_ideals.best_chain(merged.problem, family, self.upper, relaxed=True)
            lower = min(relaxed, self.upper)
        self.lower = max(self.lower, lower)
        self.proven = self.closed
        return self.proven

    def _solver(self, merged: Merged) -> bool:
        """Asks CP-SAT for something better; False when it does not know.

        First for anything better, which soonest proves that there is nothing; where there is something, or no answer
        in good time, for the best, which also gives a bound.
        """
        known = self.best is not None
        target = self.upper * (1 - _EXACT) if known else _most(merged.problem)
        decide = not self.improved
        found = self._ask(merged, target, decide=decide, share=_DECIDE_SHARE if decide else 1.0)
        if decide and found.partition is None and not found.done and self.left > 0 and self._open(merged):
            found = self._ask(merged, target, decide=False, share=1.0)
        if found.partition is None and found.done:
            self.lower, self.proven = (target if known else math.inf), True
            return True
        better = found.partition is not None and self._take(merged.expand(found.partition))
        if better:
            self._polish(merged)
        self.improved = better and known and not found.done
        self.proven = self.closed
        return better or self.proven

    def _ask(self, merged: Merged, target: float, *, decide: bool, share: float) -> Found:
        """One run of CP-SAT for a partition of at most the target: any, or the best; `share` of what is left for it."""
        from .model import StageModel

        ticks = Ticks.of(merged.problem)
        cap, lower = ticks.count(target), _average(merged.problem, ticks)
        self.lower = max(self.lower, min(ticks.time(lower), self.upper))
        model = StageModel(merged.problem, ticks, WindowRule(merged.problem, ticks), cap, lower, decide=decide)
        if self.best is not None:
            model.hint(_into(merged, self.best))
        if self.deterministic is None:
            found = model.solve(share * self.left, self.effort.workers, self.seed)
        else:
            found = model.solve(self.left, 1, self.seed, share * self.deterministic)
            self.deterministic -= found.effort
        if found.bound is not None:
            self.lower = max(self.lower, min(ticks.time(found.bound), target))
        return found

    def _polish(self, merged: Merged) -> None:
        """The best chains through orders that keep to the best partition, as long as they improve it."""
        generator, misses = random.Random(self.seed), 0
        while misses < _MISSES and self.left > 0 and self.best is not None:
            small = _into(merged, self.best)
            order = [g for block in small for g in graph_ideals.order_within(merged.problem, block.groups, generator)]
            misses = 0 if self._chain(merged, graph_ideals.prefixes([order])) else misses + 1

    def answer(self) -> GraphCut:
        """What is known by now."""
        if self.best is None:
            return GraphCut("infeasible" if self.proven else "unknown", None, None, None)
        bound = min(self.lower, self.upper)
        return GraphCut("optimal" if self.proven else "feasible", self.upper, bound, self.best)


def _unmerged(problem: GraphProblem) -> Merged:
    return Merged(problem, tuple((g,) for g in range(len(problem))))


def _into(merged: Merged, partition: Partition) -> Partition:
    """A partition in the merged groups, as far as it respects them: every group by its first member."""
    first = {members[0]: g for g, members in enumerate(merged.members)}
    return tuple(replace(block, groups=tuple(first[g] for g in block.groups if g in first)) for block in partition)


def _most(problem: GraphProblem) -> float:
    """No load is above this."""
    cpus = problem.cpus > 0
    ways = ((g.work, g.cpu_work if cpus else 0.0, g.lean.work if g.lean else 0.0, 0.0) for g in problem.groups)
    slow = (max(v for v in way if math.isfinite(v)) for way in ways)
    return (math.fsum(slow) + math.fsum(t.cost for t in problem.tensors)) * (1 + 1e-6)


def _average(problem: GraphProblem, ticks: Ticks) -> int:
    """Ticks of the largest stage at least: an equal share of the work, the longest group."""
    least: Iterable[int] = [int(t) for t in ticks.least]
    return max(-(-sum(least) // problem.stages), *least)
