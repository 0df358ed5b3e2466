"""A candidate: everything about a plan but the order of its ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..plan import Pipeline, Problem
from ..problem import FLUSH, StageCosts, policy_of
from .policies import KEEP, StashPolicy, stash_policy
from .structured import Structured, costs_of


@dataclass(frozen=True)
class Candidate:
    """Stages, pipelines, stash and weight policy: everything but the order of ops.

    Raises PlanError for policies that are none.
    """

    problem: Problem
    stages: tuple[tuple[str, ...], ...]
    pipelines: tuple[Pipeline, ...]
    stash: tuple[tuple[str, ...], ...] = ()
    weights: str = FLUSH

    def __post_init__(self) -> None:
        if not self.stash:
            rows = tuple((KEEP,) * len(self.stages) for _ in self.pipelines)
            object.__setattr__(self, "stash", rows)
        require_policies(self)

    @cached_property
    def costs(self) -> StageCosts:
        """Costs of the stages."""
        return costs_of(self)


def require_policies(plan: Structured) -> None:
    """Raises PlanError for stash and weight policies that are none."""
    stash_policies(plan)
    policy_of(plan.weights)


def stash_policies(plan: Structured) -> set[StashPolicy]:
    """The rows of the policies that a plan uses. Raises PlanError for what is none."""
    return {stash_policy(text) for text in {text for row in set(plan.stash) for text in row}}


def regroup(
    problem: Problem,
    stages: tuple[tuple[str, ...], ...],
    pipelines: Sequence[Pipeline],
    rows: Mapping[int, tuple[str, ...]],
    weights: str = FLUSH,
) -> Candidate:
    """The candidate in which every micro-batch has its own row of stash policies, one policy a stage.

    Pipelines are split as far as needed: micro-batches of one route with equal rows share one. A micro-batch
    without a row keeps its stashes.
    """
    keep = (KEEP,) * len(stages)
    groups: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]], list[int]] = {}
    for pipeline in pipelines:
        for m in pipeline.micro_batches:
            key = (pipeline.forward, pipeline.backward, tuple(rows.get(m, keep)))
            groups.setdefault(key, []).append(m)
    split = tuple(Pipeline(forward, backward, tuple(sorted(ms))) for (forward, backward, _), ms in groups.items())
    return Candidate(problem, stages, split, tuple(row for _, _, row in groups), weights)


def weights_offloaded(plan: Structured) -> set[tuple[int, int]]:
    """Stage and micro-batch of every stash that takes a version of the weights to the host with it."""
    return {
        (stage, m)
        for pipeline, row in zip(plan.pipelines, plan.stash, strict=False)
        for stage, policy in enumerate(row)
        if stash_policy(policy).versioned
        for m in pipeline.micro_batches
    }
