"""One rank's whole run, whatever carries its messages: build, check, load, train, save, report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import Dataset, LayeredModel
from ..planner.plan import Plan
from .evaluation import Evaluator
from .interpreter import Interpreter
from .memory import StorageTracker
from .replica import Blueprint, StageReplica, reduce_groups
from .step_state import OpRecord
from .training import LossScaler, Training
from .transport import Transport
from .update import GROUP
from .validate import find_data, find_model, match_model
from .waits import waits


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
    tracked_steps: int
    checkpoint: str | None
    resume: bool
    self_check: bool
    return_state: bool

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The process groups it needs, in the order in which every rank creates them."""
        everyone = {GROUP: tuple(range(len(self.plan.orders)))} if self.training.agrees else {}
        return everyone | reduce_groups(self.plan)


@dataclass(frozen=True)
class StepReport:
    """One step of one rank: seconds, and losses of the micro-batches whose last stage it holds.

    `grad_norm`: of the whole model, where the run needs it. `loss_scale`: what the step ran with. `held_out`: losses
    of the evaluation after it by (step, micro-batch), None without.
    """

    rank: int
    step: int
    seconds: float
    losses: dict[int, float]
    grad_norm: float | None = None
    loss_scale: float = 1.0
    held_out: dict[tuple[int, int], float] | None = None


@dataclass(frozen=True)
class RankReport:
    """What a rank leaves at its end. `ops`: its last step."""

    rank: int
    first_step: int
    peak_bytes: int
    ops: list[OpRecord]
    state: dict[str, Tensor] | None


def run_rank(job: Job, transport: Transport, report: Callable[[StepReport], None]) -> RankReport:
    """Runs all steps of one rank and reports each; raises what went wrong."""
    model = find_model(job.plan, job.model)
    data = find_data(model, job.data)
    shapes = match_model(job.plan, model, data, job.dtype)
    blueprint = Blueprint(job.plan, model, data, shapes, job.seed, job.training, job.dtype)
    rank, tracker = transport.rank, StorageTracker()
    with ExitStack() as closing, ExitStack() as tracking:
        tracking.enter_context(tracker)
        replicas = _build(job, blueprint, rank)
        interpreter = Interpreter(blueprint, transport, replicas, waits(job.plan)[rank], track=tracker.track)
        closing.callback(interpreter.close)
        update = interpreter.update
        evaluator = Evaluator(blueprint, transport, replicas) if job.training.evaluate_every else None
        if evaluator is not None:
            closing.callback(evaluator.close)
        first = _resume(job, blueprint, replicas, update.scaler)
        tracker.reset_peak()
        peak, ops = 0, []
        for step in range(first, first + job.steps):
            scale = update.scaler.scale
            record = interpreter.run_step(step)
            ops = record.ops
            held_out = evaluator.run() if evaluator and (step + 1) % job.training.evaluate_every == 0 else None
            report(StepReport(rank, step, record.seconds, record.losses, update.grad_norm, scale, held_out))
            if step - first + 1 == job.tracked_steps:
                peak = tracker.peak_bytes
                tracking.close()
        peak = peak or tracker.peak_bytes
    state = named_state(blueprint, replicas)
    if job.checkpoint is not None:
        from .checkpoint import save

        save(job.checkpoint, state, first + job.steps, job.plan, transport, update.scaler.to_dict())
    returned = {name: tensor.clone() for name, tensor in state.items()} if job.return_state else None
    return RankReport(rank, first, peak, ops, returned)


def _build(job: Job, blueprint: Blueprint, rank: int) -> dict[int, StageReplica]:
    stages = sorted({s for p in job.plan.pipelines for s, device in enumerate(p.forward) if device == rank})
    return {stage: blueprint.build(rank, stage, job.self_check) for stage in stages}


def _resume(job: Job, blueprint: Blueprint, replicas: dict[int, StageReplica], scaler: LossScaler) -> int:
    """Loads the newest checkpoint if the run resumes; returns the first step to run."""
    if not job.resume or job.checkpoint is None:
        return 0
    from .checkpoint import kept_scaler, load

    step = load(job.checkpoint, named_state(blueprint, replicas), job.plan)
    scaler.resume(kept_scaler(job.checkpoint))
    for replica in replicas.values():
        replica.weights.set_step(step - scaler.skipped)
    return step


def named_state(blueprint: Blueprint, replicas: dict[int, StageReplica]) -> dict[str, Tensor]:
    """Every tensor of the rank by checkpoint key."""
    state: dict[str, Tensor] = {}
    for replica in replicas.values():
        state |= replica.weights.named_state(blueprint.layer_names)
    return state
