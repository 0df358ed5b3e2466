"""A plan's orders as actions of torch's own pipeline runtime, for training loops that are built on it."""

from __future__ import annotations

from typing import Any

from ...planner.interchange import torch_orders
from ...planner.plan import Plan


def torch_schedule(plan: Plan) -> dict[int, list[Any]]:
    """By rank, the plan's F, B, I and W as `torch.distributed.pipelining.schedules._Action`.

        schedule = _PipelineScheduleRuntime(stages, n_microbatches=..., loss_fn=...)
        schedule._prepare_schedule_with_comms(torch_schedule(plan))

    Its stages have the layers of `plan.stages`; torch places sends, receives and the scaling of gradients. Raises
    InterchangeError naming the first op that torch cannot express, and why.
    """
    from torch.distributed.pipelining.schedules import _Action

    orders = torch_orders(plan)
    return {rank: [_Action.from_str(str(op)) for op in order] for rank, order in enumerate(orders)}
