"""A stage as one rank holds it: its program, its weights, and the exchange of statistics if it needs one."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..models import Dataset, LayeredModel, build_layer
from ..planner.operations import holders
from ..planner.plan import Kind, Plan
from .errors import RunError
from .program import StageProgram
from .statistics import StatisticsExchange
from .validate import TensorShape, as_dtype
from .weights import StageWeights

_SETUP_LOCK = threading.Lock()  # ranks that are threads trace one after another


@dataclass(frozen=True)
class StageReplica:
    """One rank's copy of a stage. `group` names the ranks it is reduced with (None: it is the only copy)."""

    stage: int
    program: StageProgram
    weights: StageWeights
    statistics: StatisticsExchange | None
    group: str | None

    @property
    def reduced(self) -> list[Tensor]:
        """What replicas sum: gradients and, row by row, BatchNorm statistics."""
        rows = [] if self.statistics is None or not self.statistics.rows.numel() else [self.statistics.rows]
        return [*self.weights.gradients, *rows]


def reduce_groups(plan: Plan) -> dict[str, tuple[int, ...]]:
    """For every stage with replicas the ranks that reduce it, by group name."""
    return {f"stage{stage}": ranks for stage, ranks in holders(plan).items() if len(ranks) > 1}


@dataclass(frozen=True)
class Blueprint:
    """What every rank builds its stages from. `shapes`: every stage's input. `device`: where this rank computes."""

    plan: Plan
    model: LayeredModel
    data: Dataset
    shapes: tuple[TensorShape, ...]
    seed: int
    rate: float
    dtype: torch.dtype
    device: torch.device
    compiled: bool = False

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names by layer id."""
        return tuple(layer.name for layer in self.model.layers)

    def layer_ids(self, stage: int) -> range:
        """The layers of a stage."""
        first = sum(len(names) for names in self.plan.stages[:stage])
        return range(first, first + len(self.plan.stages[stage]))

    def batch(self, step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a micro-batch on the host, floating-point ones in the run's dtype."""
        size = self.plan.problem.model.micro_batch_size
        inputs, targets = self.data.batch(self.seed, step, micro_batch, size)
        return as_dtype(inputs, self.dtype), as_dtype(targets, self.dtype)

    def build(self, rank: int, stage: int, self_check: bool) -> StageReplica:
        """This rank's replica of a stage; its parameters depend on seed and layer alone.

        Raises TraceError, ProgramMismatch (if `self_check`) or RunError (it cannot be recomputed as planned), all
        naming the stage.
        """
        ids = self.layer_ids(stage)
        modules = {i: build_layer(self.model.layers[i], self.seed, i, self.dtype).to(self.device) for i in ids}
        last = stage == len(self.plan.stages) - 1
        with _SETUP_LOCK, _disable_current_modes():  # training's memory is measured, not the setup's
            example, target = self._example(stage)
            program = StageProgram.trace(
                list(modules.values()),
                list(ids),
                example,
                self.model.loss if last else None,
                target if last else None,
                needs_input_grad=stage > 0,
                label=f"stage {stage}",
            )
            if self.compiled:
                from .compiled import compile_program

                compile_program(program)
            if not program.can_remake and _remade(self.plan, rank, stage):
                raise RunError(
                    f"stage {stage}: its forward changes a buffer that it reads, so it cannot be recomputed (R): "
                    "plan with --no-recompute"
                )
            if self_check:
                program.self_check(list(modules.values()), example, target if last else None, self.seed)
        weights = StageWeights(modules, self.plan.problem.workload.optimizer, self.rate)
        group = f"stage{stage}" if len(holders(self.plan)[stage]) > 1 else None
        statistics = None
        if weights.buffers and (group is not None or not _in_order(self.plan, rank, stage)):
            total = self.plan.problem.workload.micro_batches
            statistics = StatisticsExchange(modules, weights.buffers, total, self.layer_names)
        return StageReplica(stage, program, weights, statistics, group)

    def _example(self, stage: int) -> tuple[Tensor, Tensor]:
        """An input of the stage (noise unless it is the first) and targets, to trace and check with."""
        inputs, targets = (tensor.to(self.device) for tensor in self.batch(0, 0))
        shape = self.shapes[stage]
        if stage > 0 and shape.dtype.is_floating_point:
            generator = torch.Generator().manual_seed(self.seed)
            inputs = torch.randn(shape.shape, dtype=shape.dtype, generator=generator).to(self.device)
        elif stage > 0:
            inputs = shape.empty(self.device).zero_()
        return inputs, targets


def _remade(plan: Plan, rank: int, stage: int) -> bool:
    """Whether the rank recomputes the stage for some micro-batch."""
    return any(op.kind is Kind.R and op.stage == stage for op in plan.orders[rank])


def _in_order(plan: Plan, rank: int, stage: int) -> bool:
    """Whether the rank runs the stage's forwards in micro-batch order."""
    order = [op.micro_batch for op in plan.orders[rank] if op.kind is Kind.F and op.stage == stage]
    return order == sorted(order)
