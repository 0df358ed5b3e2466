"""Plans whose stages have whole blocks only: half as many layers, where profiles have blocks in parts.

Finer layers have all plans of coarser ones, and more; but a search that has fewer cuts to choose from is sooner at a
good one. So the same problem is searched with the parts of each block as one layer, too, and what is found there is a
plan of the parts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import groupby

from ..basics import InputError, PlanError
from ..plan import Plan, Problem
from ..problem import ModelGraph, Stages, merged, stages_of
from ..simulate import simulate


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
