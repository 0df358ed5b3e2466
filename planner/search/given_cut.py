"""Plans of a cut that is decided: the search of a model whose layers are its stages.

The search may still run several of these in a row on a device, as one of its own stages. Such a plan is told with the
stages asked for, each op in its parts, and simulated again: that takes no longer, but for what an op costs beside its
layers, and where stashes are made again it keeps the tensors between them too. So a plan counts once it fits as told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..basics import PlanError
from ..check import check
from ..graph import Candidate
from ..lower import assemble
from ..plan import COLLECTIVES, RECEIVES, SENDS, Kind, Op, Pipeline, Plan
from ..problem import FLUSH, ModelFamily, ModelGraph, Point, SearchSpace, Stages, merged, stages_of
from ..simulate import simulate
from .common import OnProgress, Progress, Proven, Result, fits, objective_s, shortages, told

_T = TypeVar("_T")
PLACED = (SENDS | RECEIVES | COLLECTIVES | {Kind.PREDICT}) - {Kind.SEND_S, Kind.RECV_S}
"""What lowering places itself."""
FIRST_STAGE_FIRST = frozenset({Kind.F, Kind.R, Kind.OFFLOAD, Kind.SEND_S, Kind.RECV_S, Kind.FREE})


def plan_of_cut(
    search: Callable[..., Result], model: ModelGraph, space: SearchSpace, time_limit: float, rest: dict[str, Any]
) -> Result:
    """The answer of `plan` where `space` has a cut; `rest`: its other arguments by name. Raises InputError."""
    assert space.cut is not None
    ends = time.monotonic() + time_limit
    stages = stages_of(model, space.cut)
    free = replace(space, cut=None)
    told_plans = _Told(lambda _: model, stages, rest["on_progress"])
    asked = rest | {"on_progress": told_plans.hear, "hint": _start(rest["hint"], model, stages)}
    found = told_plans.answer(search(merged(model, stages), space=free, time_limit=time_limit, **asked))
    if found.plan is not None or not found.violations or found.status == "infeasible":
        return found
    # what was found does not fit as told: with more room, and without what takes it
    left = max(0.0, ends - time.monotonic())
    other = search(merged(model, stages, True), space=replace(free, recompute=False), time_limit=left, **asked)
    again = told_plans.answer(replace(other, bound_s=found.bound_s, status=other.status))
    return again if again.plan is not None else found


def family_of_cut(
    search: Callable[..., Result], family: ModelFamily, space: SearchSpace, on_progress: OnProgress | None
) -> Result:
    """The answer of `plan_family` where `space` has a cut; `search` takes family, space and who hears of it."""
    assert space.cut is not None
    stages = stages_of(family.members[0], space.cut)

    def model(small: ModelGraph) -> ModelGraph:
        ways = tuple(sorted((name, count) for name, count in small.ways if count > 1))
        return family.point(Point(ways, small.micro_batch_size))

    told_plans = _Told(model, stages, on_progress)
    members = ModelFamily(tuple(merged(member, stages) for member in family.members))
    return told_plans.answer(search(members, replace(space, cut=None), told_plans.hear))


@dataclass
class _Told:
    """Who hears of the search's plans and tells them with the stages asked for.

    model: of a plan's model the one asked for. best: the shortest that fits as told. short: the last that did not.
    """

    model: Callable[[ModelGraph], ModelGraph]
    stages: Stages
    listener: OnProgress | None
    best: Plan | None = None
    short: Plan | None = None
    heard: Plan | None = field(default=None, repr=False)

    def hear(self, event: Progress) -> bool | None:
        """Tells the caller, with the best plan as told."""
        if event.plan is not None and event.plan is not self.heard:
            self.heard = event.plan
            self.take(event.plan)
        if self.listener is None:
            return None
        step_s = None if self.best is None else objective_s(self.best)
        return self.listener(replace(event, best_step_s=step_s, plan=self.best))

    def take(self, plan: Plan) -> None:
        """Takes a plan of the search into account."""
        with suppress(PlanError):
            one = _as_told(plan, self.model(plan.problem.model), self.stages)
            if check(one):  # without a flush, updates depend on the number of stages
                return
            if not fits(one):
                self.short = one
            elif self.best is None or objective_s(one) <= objective_s(self.best):
                self.best = one

    def answer(self, found: Result) -> Result:
        """The search's answer as told: its plan, or a better one that was heard of."""
        if found.plan is None:
            return found
        self.take(found.plan)
        if self.best is None:
            lacks = () if self.short is None else shortages(self.short)
            return replace(found, status="unknown", plan=None, gap=None, violations=lacks, among=None)
        made, parts = found.plan.provenance, () if found.among is None else (found.among,)
        whole = Proven(f"the cut asked for, of: {made.space}", found.bound_s)
        answer = told(self.best, whole, parts, replace(made, source=self.best.provenance.source), found.considered)
        assert answer.plan is not None
        told_plan = replace(answer.plan, provenance=replace(answer.plan.provenance, points=made.points))
        return replace(answer, plan=told_plan, methods=found.methods, points=found.points)


def _start(hint: Plan | None, model: ModelGraph, stages: Stages) -> Plan | None:
    """A plan of these stages as one of the search; None of any other."""
    if hint is None or {frozenset(stage) for stage in hint.stages} != {frozenset(stage) for stage in stages}:
        return None
    small = merged(model, stages)
    first = {frozenset(stage): stage[0] for stage in stages}
    names = tuple((first[frozenset(stage)],) for stage in hint.stages)
    with suppress(PlanError):
        return replace(hint, problem=replace(hint.problem, model=small), stages=names)
    return None


def _as_told(plan: Plan, model: ModelGraph, stages: Stages) -> Plan:
    """A plan of the search with the stages asked for. Raises PlanError where they cannot be run so."""
    number = {stage[0]: k for k, stage in enumerate(stages)}
    parts = [sorted(number[name] for name in stage) for stage in plan.stages]
    problem = replace(plan.problem, model=model)
    same_ties = len(plan.problem.model.shared) == len(model.shared)
    if same_ties and parts == [[k] for k in range(len(stages))]:
        whole = replace(plan, problem=problem, stages=stages)
        return whole.with_forecast(simulate(whole).forecast())
    at = {part: stage for stage, found in enumerate(parts) for part in found}

    def spread(row: tuple[_T, ...]) -> tuple[_T, ...]:
        return tuple(row[at[part]] for part in range(len(stages)))

    pipelines = tuple(Pipeline(spread(p.forward), spread(p.backward), p.micro_batches) for p in plan.pipelines)
    candidate = Candidate(problem, stages, pipelines, tuple(map(spread, plan.stash)), plan.weights)
    kept = PLACED | ({Kind.STEP} if plan.weights == FLUSH else set())
    orders = [[one for op in order if op.kind not in kept for one in _parts_of(op, parts)] for order in plan.orders]
    return replace(assemble(candidate, orders, plan.provenance.source), provenance=plan.provenance)


def _parts_of(op: Op, parts: list[list[int]]) -> Iterator[Op]:
    """An op of a stage as one op for each of the stages it is made of."""
    found = parts[op.stage]
    for part in found if op.kind in FIRST_STAGE_FIRST else reversed(found):
        yield op._replace(stage=part)
