"""Plans whose stages have whole blocks only: half as many layers, where profiles have blocks in parts.

Finer layers have all plans of coarser ones, and more; but a search that has fewer cuts to choose from is sooner at a
good one. So the same problem is searched with the parts of each block as one layer, too, and what is found there is a
plan of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from ..basics import InputError, PlanError
from ..plan import Plan, Problem
from ..problem import ModelGraph, Stages, merged, stages_of
from ..simulate import simulate
from .common import HOPE, Clock, OnProgress, Session


def blocks_of(model: ModelGraph) -> Stages | None:
    """The layers of the model, those of one block together: neighbours whose names are the same before the last dot.

    As `contraflow profile` names them: `block3.attention` and `block3.mlp`. None where no two are of one block, or some
    cannot be one layer.
    """
    names = [model.layers[position].name for position in model.topological]
    found = tuple(tuple(group) for _, group in groupby(names, lambda name: name.rpartition(".")[0] or name))
    if len(found) == len(names):
        return None
    with suppress(InputError):
        return stages_of(model, found)
    return None


def coarser(problem: Problem, blocks: Stages) -> Problem:
    """The problem with each of these as one layer. Raises InputError."""
    return replace(problem, model=merged(problem.model, blocks))


def finer(plan: Plan, problem: Problem, blocks: Stages) -> Plan | None:
    """A plan of the coarser problem as one of the problem itself, simulated; None where it cannot be run so."""
    parts = {block[0]: block for block in blocks}
    stages = tuple(tuple(name for block in stage for name in parts[block]) for stage in plan.stages)
    own = replace(problem, workload=plan.problem.workload, cluster=plan.problem.cluster)
    with suppress(PlanError):
        found = replace(plan, problem=own, stages=stages)
        return found.with_forecast(simulate(found).forecast())
    return None


class Searching(Protocol):
    """A search that can go on: `driver.Search`."""

    @property
    def session(self) -> Session:
        """What it knows."""

    def run(self, hint: Plan | None) -> object:
        """Searches until its clock's end."""

    def go_on(self, clock: Clock, listener: OnProgress | None) -> object:
        """Searches on until the end of another clock."""


Begin = Callable[..., Searching]
"""A search of a problem, given as `driver.Search` is but for the space."""


class OfBlocks:
    """The search of a problem's plans with whole blocks as layers, beside that of its parts.

    parts: the search that has begun; None: not to be searched so. A problem without blocks is not, either.
    """

    def __init__(self, parts: Searching | None, begin: Begin) -> None:
        self.parts, self.begin = parts, begin
        self.blocks = None if parts is None else blocks_of(parts.session.problem.model)
        self.search: Searching | None = None
        self._told: tuple[Plan, Plan | None] | None = None

    @property
    def near(self) -> bool:
        """Whether the best plan of these is the best of all, or nearly as short: it may soon be."""
        if self.parts is None or self.search is None:
            return False
        return self.search.session.best_s <= self.parts.session.best_s * (1 + HOPE.blocks)

    def run(self, clock: Clock, listener: OnProgress | None) -> None:
        """Searches on until the clock's end; what is found is offered to the search of the parts."""
        if self.parts is None or self.blocks is None:
            return
        session = self.parts.session
        heard = None if listener is None else self._finer(listener)
        if self.search is None:
            small = coarser(session.problem, self.blocks)
            given = {"clock": clock, "seed": session.seed, "workers": session.workers, "listener": heard}
            self.search = self.begin(small, **given)
            self.search.run(None)
        else:
            self.search.go_on(clock, heard)
        plan = self._of_parts(self.search.session.best)
        if plan is not None:
            session.offer(plan, plan.provenance.source)

    def _of_parts(self, plan: Plan | None) -> Plan | None:
        """The plan as one of the parts; the last one is remembered."""
        if plan is None or self.parts is None or self.blocks is None:
            return None
        if self._told is None or self._told[0] is not plan:
            self._told = plan, finer(plan, self.parts.session.problem, self.blocks)
        return self._told[1]

    def _finer(self, listener: OnProgress) -> OnProgress:
        """A listener who hears of plans of the parts; what is proven of blocks says nothing of parts."""
        return lambda progress: listener(replace(progress, plan=self._of_parts(progress.plan), bound_s=0.0))
