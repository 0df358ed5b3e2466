"""What every rank of a run is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ...models import LayeredModel
from ...planner.graph import asynchronous, update_size
from ...planner.plan import Op, Plan
from ..basics import Checkpointing, RunOptions, Training
from ..state import TensorShape, find_model
from ..step import GROUP, Run, lengthened, run_at, runs
from ..wires import reduce_groups
from .identity import RunIdentity

TRACKED_STEPS = 2
"""Memory is followed in so many first steps, and not afterwards, so that it costs no time."""


def filling_updates(plan: Plan) -> int:
    """Updates while a pipeline fills or empties."""
    return -(-len(plan.stages) // update_size(plan))


def tracked_steps(plan: Plan) -> int:
    """First steps in which memory is followed: of an asynchronous plan, until its pipeline has been full for long."""
    return TRACKED_STEPS + (2 * filling_updates(plan) if asynchronous(plan) else 0)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, the same for all ranks; picklable if its model and data are. See `launch.job_of`.

    Attributes:
        options: as they were given, but for what stays in the process that was given them. What depends on the plan, on
            the model or on a checkpoint as well is beside them, filled in.
        steps, first: how many it takes, and the one it goes on from.
        shapes: of what every stage takes, by the samples of a micro-batch (see `MiniBatches.sizes`).
    """

    plan: Plan
    options: RunOptions
    steps: int
    first: int
    training: Training
    dtype: torch.dtype
    checkpoint: Checkpointing | None
    shapes: Mapping[int, tuple[tuple[TensorShape, ...], ...]]
    identity: RunIdentity

    @property
    def model(self) -> LayeredModel:
        """Found by its name, where it is given by name. Raises RunError."""
        return find_model(self.plan, self.options.model, self.options.seed)

    def orders_at(self, step: int) -> tuple[tuple[Op, ...], ...]:
        """The op lists that the ranks follow in a step (or update)."""
        if not asynchronous(self.plan):
            return self.plan.orders
        run = run_at(self.plan, self.training, self.first, self.steps, step, self.saves)
        return lengthened(self.plan, run.updates).orders

    @property
    def tracked_steps(self) -> int:
        """First steps in which memory is followed."""
        return tracked_steps(self.plan)

    @property
    def runs(self) -> Iterator[Run]:
        """What goes through the pipeline in one go."""
        return runs(self.plan, self.training, self.first, self.steps, self.saves)

    @property
    def can_stop(self) -> bool:
        """Whether there are places before the end at which it can: an asynchronous plan needs an empty pipeline."""
        return not asynchronous(self.plan) or self.steps > next(self.runs).updates

    @property
    def saves(self) -> int:
        """Steps between saves, 0: none but the last."""
        return 0 if self.checkpoint is None else self.checkpoint.every

    @property
    def team(self) -> int:
        """Ranks a device of the plan."""
        return self.plan.problem.cluster.team

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.plan.orders) * self.team

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The process groups it needs, in the order in which every rank creates them."""
        everyone = {GROUP: tuple(range(len(self.plan.orders)))} if self.training.agrees or self.checkpoint else {}
        return everyone | reduce_groups(self.plan)
