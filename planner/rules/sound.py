"""Has a plan the structure and the ops that it must have? Yes or no, in the columns that the simulator computes with.

The rules are the checker's; here they become one sorted column of numbers, which every order of a candidate must give.
It is worked out once for plans that differ in their orders and costs alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from ..basics import PlanError
from ..graph import Flags, Homes, Ints, Ops, StageCosts, costs_of
from ..plan import Kind, Plan
from .columns import Columns
from .ops import allowed_ops, required_ops
from .sets import require_ops, structure
from .updates import tied_apart

_MOST_KNOWN = 4
_OTHERWISE = np.array([kind in (Kind.FREE, Kind.PREDICT) for kind in Kind])
"""Kinds whose ops may be there or not."""


def sound_columns(plan: Plan) -> tuple[StageCosts, Ops]:
    """A plan's stage costs and op columns. Raises PlanError naming the first fault of its structure or op sets."""
    try:
        costs = costs_of(plan)
        ops = Ops.of(plan.orders, len(plan.stages))
        if len(ops) < len(plan.stages) * plan.problem.workload.micro_batches or not _expected(plan, costs).met_by(ops):
            require_ops(plan)
    except PlanError:
        require_ops(plan)
        raise
    return costs, ops


@dataclass(frozen=True)
class _Expected:
    """What the op lists of a candidate must hold. sound: whether anything can.

    keys: of all ops that must be there, a backward as its two halves, ascending. free: of the FREEs that may be there.
    """

    sound: bool
    homes: Homes | None = None
    keys: Ints | None = None
    free: Ints | None = None
    whole: Flags | None = None  # [stage]: whether its backward cannot be split

    @classmethod
    def of(cls, plan: Plan, costs: StageCosts) -> _Expected:
        if any(True for _ in structure(plan)):
            return cls(False)
        homes = Homes.of(plan)
        if any(True for _ in tied_apart(costs, homes)):
            return cls(False)
        allowed = allowed_ops(homes)
        keys, kind = allowed.keys(homes), allowed.kind
        halves = keys[(kind == Kind.I) | (kind == Kind.W)]
        wanted = np.sort(np.concatenate([required_ops(costs, homes).keys(homes), halves]))
        return cls(True, homes, wanted, np.sort(keys[kind == Kind.FREE]), ~np.array(costs.separable, dtype=np.bool_))

    def met_by(self, ops: Ops) -> bool:
        """Whether these are the ops that must be there, each once, and none beside them that may not be."""
        if self.homes is None or self.keys is None or self.free is None or self.whole is None:
            return False
        inputs, whole = ops.where(Kind.I), ops.where(Kind.B)
        if len(inputs) and self.whole[ops.stage[inputs]].any():
            return False
        kind = ops.kind
        if len(whole):
            kind = kind.copy()
            kind[whole] = Kind.I.value
        key = Columns(kind, ops.stage, ops.micro_batch, ops.peer, ops.device).keys(self.homes)
        free = ops.where(Kind.FREE)
        if len(free) and not _each_once_among(key[free], self.free):
            return False
        if len(free) or len(ops.where(Kind.PREDICT)):
            key = key[~_OTHERWISE[ops.kind]]
        if len(whole):
            rows = (column[whole] for column in (ops.stage, ops.micro_batch, ops.peer, ops.device))
            key = np.concatenate([key, Columns(np.full(len(whole), Kind.W.value), *rows).keys(self.homes)])
        return np.array_equal(np.sort(key), self.keys)


def _each_once_among(keys: Ints, known: Ints) -> bool:
    """Whether these numbers are different and all among the known ones, which are sorted."""
    found = np.sort(keys)
    return not (np.diff(found) == 0).any() and bool(np.isin(found, known).all())


_known: dict[Hashable, _Expected] = {}


def _expected(plan: Plan, costs: StageCosts) -> _Expected:
    """What this plan's op lists must hold; remembered for the plans that were asked for last."""
    problem = plan.problem
    key = (
        plan.stages, len(plan.orders), plan.pipelines, plan.stash, plan.weights, problem.workload.micro_batches,
        problem.workload.update_every, problem.cluster.home_nodes, len(problem.model.shared), costs.shape,
    )  # fmt: skip
    try:
        found = _known.get(key)
    except TypeError:  # lists where a plan has tuples: they may change
        return _Expected.of(plan, costs)
    if found is None:
        found = _Expected.of(plan, costs)
        while len(_known) >= _MOST_KNOWN:
            _known.pop(next(iter(_known), None), None)
        _known[key] = found
    return found
