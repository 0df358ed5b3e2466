"""torch as a contender, on the stages, parameters and data of one of our plans: its schedules, its DDP, one process.

All draw their data within the step, from the same data set, as ours do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from executor_contender import Outcome
from torch import Tensor, nn
from torch.distributed import pipelining

from contraflow.executor import torch_schedule
from contraflow.executor.run.job import Job
from contraflow.executor.state.passing import stage_ids
from contraflow.executor.state.validate import find_data, find_model, planned_pieces
from contraflow.executor.state.weights import make_optimizer
from contraflow.models import build_layer
from contraflow.planner.plan import Plan

SCHEDULES = {
    "GPipe": pipelining.ScheduleGPipe,
    "InterleavedZeroBubble": pipelining.ScheduleInterleavedZeroBubble,
    "1F1B": pipelining.Schedule1F1B,
    "Interleaved1F1B": pipelining.ScheduleInterleaved1F1B,
    "ZBVZeroBubble": pipelining.ScheduleZBVZeroBubble,
    "DualPipeV": pipelining.ScheduleDualPipeV,
}
OWN = "the plan's own"
DDP = "torch DDP"
ALONE = "torch, one process"


def _named(name: str, stages: list[pipelining.PipelineStage], options: dict[str, Any]) -> Any:
    single = issubclass(SCHEDULES[name], pipelining.schedules.PipelineScheduleSingle)
    return SCHEDULES[name](stages[0] if single else stages, **options)


def _own(plan: Plan, stages: list[pipelining.PipelineStage], options: dict[str, Any]) -> Any:
    made = pipelining.schedules._PipelineScheduleRuntime(stages, **options)
    made._prepare_schedule_with_comms(torch_schedule(plan))
    return made


class TorchSchedule:
    """One rank of a schedule of torch's. Collective: every rank makes it at the same time.

    Args:
        name: in `SCHEDULES`, or `OWN`: the plan's orders in torch's runtime.
        job: whose plan has one pipeline; its stages lie on the devices that this gives them.
    """

    def __init__(self, name: str, job: Job, rank: int) -> None:
        plan = job.plan
        (pipeline,) = plan.pipelines
        self._job, self._model = job, find_model(plan, job.model)
        self._data = find_data(self._model, job.options.data)
        mine = [stage for stage, device in enumerate(pipeline.forward) if device == rank]
        self._first, self._last = 0 in mine, len(plan.stages) - 1 in mine
        stages = [self._stage(plan, stage) for stage in mine]
        options = {"n_microbatches": plan.problem.workload.micro_batches, "loss_fn": self._model.loss}
        self._schedule = _own(plan, stages, options) if name == OWN else _named(name, stages, options)
        parameters = [p for stage in stages for p in stage.submod.parameters()]
        self._optimizer = make_optimizer(plan.problem.workload.optimizer, parameters, job.training, fused=True)

    def _stage(self, plan: Plan, stage: int) -> pipelining.PipelineStage:
        ids = stage_ids(plan, planned_pieces(plan, self._model))[stage]
        layers = [build_layer(self._model.layers[i], self._job.options.seed, i, self._job.dtype) for i in ids]
        return pipelining.PipelineStage(nn.Sequential(*layers), stage, len(plan.stages), torch.device("cpu"))

    def step(self, step: int) -> Outcome:
        """One optimizer step. The ends of the pipeline draw its micro-batches, as one batch: so torch takes them."""
        losses: list[Tensor] = []
        self._optimizer.zero_grad()
        x, y = self._drawn(step) if self._first or self._last else (None, None)
        inputs = (x,) if self._first else ()
        target = y if self._last else None
        self._schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
        self._optimizer.step()
        return Outcome(losses={m: loss.item() for m, loss in enumerate(losses)})

    def _drawn(self, step: int) -> tuple[Tensor, Tensor]:
        problem = self._job.plan.problem
        size, count = problem.model.micro_batch_size, problem.workload.micro_batches
        drawn = [self._data.batch(self._job.options.seed, step, m, size) for m in range(count)]
        x, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return x, y

    def prepare(self, step: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing to release."""


class DataParallel:
    """One rank of torch's DistributedDataParallel, on the micro-batches that a plan of whole replicas gives it.

    Gradients are summed in buckets while the last micro-batch's backward runs.
    """

    def __init__(self, job: Job, rank: int) -> None:
        plan, model = job.plan, find_model(job.plan, job.model)
        self._job, self._model, self._data = job, model, find_data(model, job.options.data)
        self._mine = self._own(plan, rank)
        layers = [build_layer(spec, job.options.seed, k, job.dtype) for k, spec in enumerate(model.layers)]
        self._module = self._wrapped(nn.Sequential(*layers))
        parameters = list(self._module.parameters())
        self._optimizer = make_optimizer(plan.problem.workload.optimizer, parameters, job.training, fused=True)

    def _own(self, plan: Plan, rank: int) -> list[int]:
        return [m for p in plan.pipelines if p.forward[0] == rank for m in p.micro_batches]

    def _wrapped(self, module: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)

    def _unsummed(self) -> AbstractContextManager[object]:
        """What passes but the last run in."""
        found: AbstractContextManager[object] = self._module.no_sync()  # type: ignore[operator]
        return found

    def prepare(self, step: int) -> None:
        """Nothing."""

    def step(self, step: int) -> Outcome:
        """One optimizer step; only the last micro-batch's backward sums."""
        self._optimizer.zero_grad()
        losses: dict[int, float] = {}
        size = self._job.plan.problem.model.micro_batch_size
        for m in self._mine:
            x, target = self._data.batch(self._job.options.seed, step, m, size)
            with nullcontext() if m == self._mine[-1] else self._unsummed():
                loss = self._model.loss(self._module(x), target)
                (loss / len(self._mine)).backward()
            losses[m] = loss.item()
        self._optimizer.step()
        return Outcome(losses=losses)

    def close(self) -> None:
        """Nothing to release."""


class OneProcess(DataParallel):
    """The first rank trains on all micro-batches with as many threads as there are ranks, the others wait."""

    def __init__(self, job: Job, rank: int) -> None:
        self._threads = len(job.plan.orders)
        super().__init__(job, rank)

    def _own(self, plan: Plan, rank: int) -> list[int]:
        return [] if rank else list(range(plan.problem.workload.micro_batches))

    def _wrapped(self, module: nn.Module) -> nn.Module:
        return module

    def _unsummed(self) -> AbstractContextManager[object]:
        return nullcontext()

    def step(self, step: int) -> Outcome:
        """One optimizer step of the first rank."""
        if not self._mine:
            return Outcome()
        torch.set_num_threads(self._threads)
        try:
            return super().step(step)
        finally:
            torch.set_num_threads(1)
