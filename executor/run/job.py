"""What every rank of a run is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from ...models import Dataset, LayeredModel
from ...planner.graph import asynchronous, update_size
from ...planner.plan import Op, Plan
from ..basics import Checkpointing, Training
from ..stage import Engine
from ..state import TensorShape
from ..step import GROUP, Run, lengthened, run_at, runs
from ..watch import TIMEOUT_S
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


@dataclass(frozen=True)
class Job:
    """A run, the same for all ranks; picklable if its model and data are. See `launch.execute`."""

    plan: Plan
    model: LayeredModel | str
    data: Dataset | str | None
    steps: int
    seed: int
    training: Training
    dtype: torch.dtype
    checkpoint: Checkpointing | None
    self_check: bool
    return_state: bool
    identity: RunIdentity
    timeout_s: float = TIMEOUT_S
    engine: Engine = "auto"
    device: str = "cpu"
    compiled: bool = False
    shapes: Mapping[int, tuple[TensorShape, ...]] = field(default_factory=dict)
    """Every stage's input by the samples of a micro-batch (see `MiniBatches.sizes`)."""
    enforced: bool = False
    """Whether it ends where a device or host holds more than was planned; memory is then followed in all steps."""
    first: int = 0
    """The step it goes on from."""

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
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The process groups it needs, in the order in which every rank creates them."""
        everyone = {GROUP: tuple(range(len(self.plan.orders)))} if self.training.agrees or self.checkpoint else {}
        return everyone | reduce_groups(self.plan)
