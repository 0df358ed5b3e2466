"""What a search answers: bound, gap, status, space and provenance are made here, for all searches.

The bound of an answer holds for every plan that the caller's SearchSpace allows, whether the search can find it or not.
More may be proven of the part of the space that is searched: that is said beside it, in words, and never in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .... import __version__
from ...graph import ship_target, stash_policy
from ...plan import Kind, Plan, Provenance, gap_of
from ...problem import FLUSH, SearchSpace
from .considered import Considered, MethodFound, PointFound
from .effort import TOLERANCE
from .fit import Lack
from .session import Session

_LOG = logging.getLogger(__name__)
ONE_ORDER = "stages contiguous in one order of the layers, which is the plan's"
"""Of a model that is no chain: what is proven of cuts is proven of those along one order of its layers."""


@dataclass(frozen=True)
class Proven:
    """No plan of `space`, which is in words, takes less than `bound_s` a step, or without a flush a micro-batch."""

    space: str
    bound_s: float


@dataclass(frozen=True)
class Claim:
    """What an answer says of a plan.

    Attributes:
        status: "optimal" where the bound of the whole space leaves no gap, else "feasible".
        bound_s, gap: of the whole space asked for. whole: that space in words.
        among: the part of the space of which most is proven, where that is more; the plan belongs to it.
    """

    status: str
    bound_s: float
    gap: float
    whole: str
    among: Proven | None = None

    @classmethod
    def of(cls, seconds: float, whole: Proven, parts: Iterable[Proven] = ()) -> Claim:
        """The claim about a plan of so many seconds; `parts`: what is proven of parts that it belongs to."""
        bound_s = min(whole.bound_s, seconds)
        gap = gap_of(seconds, bound_s)
        proven = gap <= TOLERANCE.proven
        # a plan may be better than the models of its part allow, which know fewer orders: nothing is said then
        more = [
            p
            for p in parts
            if not proven and bound_s * (1 + TOLERANCE.proven) < p.bound_s <= seconds * (1 + TOLERANCE.proven)
        ]
        best = max(more, key=lambda part: part.bound_s, default=None)
        among = None if best is None else replace(best, bound_s=min(best.bound_s, seconds))
        return cls("optimal" if proven else "feasible", bound_s, gap, whole.space, among)

    def on(self, plan: Plan, made: Provenance) -> Plan:
        """The plan with this claim in its forecast and its provenance."""
        assert plan.forecast is not None
        among, least_s = (self.among.space, self.among.bound_s) if self.among else ("", None)
        return replace(
            plan,
            forecast=replace(plan.forecast, bound_s=self.bound_s, gap=self.gap, status=self.status),
            provenance=replace(made, space=self.whole, among=among, among_bound_s=least_s),
        )


@dataclass(frozen=True)
class Result:
    """The answer of plan().

    Attributes:
        status: "optimal", "feasible", "infeasible" or "unknown" (no plan in time, none ruled out); of the space asked
            for, not of what was searched.
        plan: the best plan that fits; None without one.
        bound_s: no plan of provenance.space takes less (seconds); never above the plan's step, or its period where
            weights are updated without a flush.
        gap: step or period over bound_s, less 1; None without a plan.
        violations: without a plan, what the least bad one lacks on every device, or which staleness it has.
        among: the part of that space of which more is proven, and what; None where there is no more to say.
        considered: what was looked at, left out, and why.
        methods: where several weight policies were allowed, what came of each.
        points: of a family, what came of each way of forming teams with each micro-batch size.
    """

    status: str
    plan: Plan | None = None
    bound_s: float = 0.0
    gap: float | None = None
    violations: tuple[Lack, ...] = ()
    considered: tuple[Considered, ...] = ()
    among: Proven | None = None
    methods: tuple[MethodFound, ...] = ()
    points: tuple[PointFound, ...] = ()

    @property
    def seconds(self) -> float | None:
        """What the search made as small as it could: the step, or the period without a flush; None without a plan."""
        return None if self.plan is None or self.plan.forecast is None else self.plan.forecast.objective_s


def answered(
    session: Session,
    plan: Plan,
    whole: Proven,
    parts: Iterable[Proven],
    considered: tuple[Considered, ...],
    solver: str = "",
) -> Result:
    """The answer of a search with this plan; `parts`: what is proven of parts of the space that it belongs to."""
    made = Provenance(
        version=__version__,
        seed=session.seed,
        source=plan.provenance.source,
        solver=solver,
        seconds=session.clock.elapsed_s,
    )
    return told(plan, whole, parts, made, considered)


def told(
    plan: Plan, whole: Proven, parts: Iterable[Proven], made: Provenance, considered: tuple[Considered, ...] = ()
) -> Result:
    """The answer with a plan, which carries what is told of it."""
    assert plan.forecast is not None
    claim = Claim.of(plan.forecast.objective_s, whole, parts)
    what = plan.problem.model.name, made.source, claim.status, plan.forecast.objective_s, claim.bound_s
    _LOG.info("%s: %s, %s, %.6g s, bound %.6g s", *what)
    return Result(claim.status, claim.on(plan, made), claim.bound_s, claim.gap, (), considered, claim.among)


def unanswered(bound_s: float, lacks: tuple[Lack, ...], impossible: bool, considered: tuple[Considered, ...]) -> Result:
    """The answer without a plan: infeasible where it is proven that there is none, and what lacks is known."""
    status = "infeasible" if impossible and lacks else "unknown"
    _LOG.info("%s, bound %.6g s", "; ".join([status, *(lack.missing for lack in lacks)]), bound_s)
    return Result(status, None, bound_s, None, lacks, considered)


# ------------------------------------------------------------------ spaces


def told_of(space: SearchSpace, plan: Plan, asked: Proven, bound: Callable[[SearchSpace], float]) -> Proven:
    """What may be told of a plan: what is proven of the space asked for, or of the least one that has the plan too."""
    wider = including(space, plan)
    if wider == space or space.schedule != "search":
        return asked
    return Proven(f"{in_words(wider)}; this is more than was asked for, as the plan to start from is", bound(wider))


def including(space: SearchSpace, plan: Plan) -> SearchSpace:
    """The least space that has all plans of this one and the given one, which may do what this one does not allow.

    A plan to start from may be such a one: what is told of it must hold for this space.
    """
    policies = {policy for row in plan.stash for policy in row}
    routes = {(p.forward, p.backward) for p in plan.pipelines if p.micro_batches}
    shipped = any(ship_target(policy) is not None for policy in policies)
    separate = shipped or any(forward != backward for forward, backward in routes)
    split = space.split_backward or any(op.kind in (Kind.I, Kind.W) for order in plan.orders for op in order)
    weights = () if plan.weights == FLUSH or plan.weights in space.asynchronous else (plan.weights,)
    return replace(
        space,
        pipelines=None if space.pipelines is None else max(space.pipelines, len(routes)),
        recompute=space.recompute or any(stash_policy(policy).remade for policy in policies),
        offload=space.offload or any(stash_policy(policy).hosted for policy in policies),
        split_backward=split,
        separate_backward=space.separate_backward or separate,
        asynchronous=(*space.asynchronous, *weights) if space.asynchronous else (),
    )


def in_words(space: SearchSpace) -> str:
    """The plans of a space."""
    groups = f", alike on {space.replicas} groups of devices" if (space.replicas or 1) > 1 else ""
    groups += "" if space.cut is None else ", of the cut asked for"
    if space.schedule != "search":
        return f"{space.schedule} on any cut into contiguous stages, on the devices in order or sorted{groups}"
    stashes = ["kept"]
    stashes += ["recomputed"] if space.recompute else []
    stashes += ["copied to the host"] if space.offload else []
    stashes += ["shipped to other devices"] if space.separate_backward else []
    most = space.pipelines
    parts = [
        f"every plan of contiguous stages, any number of them on any devices{groups}",
        f"{'any number of' if most is None else f'at most {most}'} pipeline{'' if most == 1 else 's'}",
        f"forward and backward of a stage on {'two devices or one' if space.separate_backward else 'one device'}",
        f"stashes {_listed(stashes)}",
        f"backwards {'whole or split' if space.split_backward else 'whole'}, in any order",
    ]
    if not space.shard_optimizer:
        parts.append("optimizers whole on every replica")
    if space.asynchronous:
        parts.append(f"weights by {_listed(list(space.asynchronous))}")
    return "; ".join(parts)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
