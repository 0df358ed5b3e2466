"""Which ranks add up what among themselves."""

from __future__ import annotations

from ...planner.graph import StageCosts, forward_devices, holders
from ...planner.plan import Plan


def reduce_groups(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Ranks by group name: those that reduce a stage, sum tied parameters, and exchange a stage's statistics."""
    groups = {f"stage{stage}": ranks for stage, ranks in holders(plan).items() if len(ranks) > 1} | tie_groups(plan)
    for stage in range(len(plan.stages)):
        name = statistics_group(plan, stage)
        if name is not None:
            groups[name] = forward_devices(plan, stage)
    return groups


def statistics_group(plan: Plan, stage: int) -> str | None:
    """The group in which a stage's statistics are exchanged by themselves.

    Where a stage has one device for both, all its F there precede its REDUCE, which takes the statistics along.
    """
    return f"statistics{stage}" if stage_on_two_devices(plan, stage) and len(forward_devices(plan, stage)) > 1 else None


def stage_on_two_devices(plan: Plan, stage: int) -> bool:
    """Whether some micro-batches run the stage's forward and backward on different devices."""
    return any(p.forward[stage] != p.backward[stage] for p in plan.pipelines)


def tie_groups(plan: Plan) -> dict[str, tuple[int, ...]]:
    """For every group of tied parameters that several ranks hold, these ranks, by process group name."""
    owners = holders(plan)
    ties = StageCosts.of(plan.problem.model, plan.stages).ties
    copies = {tie.number: tuple(tie.copies(owners)) for tie in ties}
    return {tie_group(number): ranks for number, ranks in copies.items() if len(ranks) > 1}


def tie_group(number: int) -> str:
    """Name of the process group that sums a group of tied parameters."""
    return f"tie{number}"
