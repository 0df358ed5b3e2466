"""One rank's whole run, whatever carries its messages: build, check, load, train, save, report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import Dataset, LayeredModel
from ..planner.plan import Plan
from .carry import carried
from .interpreter import Interpreter
from .memory import StorageTracker
from .place import Place, place_of
from .replica import Blueprint, StageReplica, reduce_groups
from .step_state import OpRecord
from .transport import Transport
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
    rate: float
    dtype: torch.dtype
    tracked_steps: int
    checkpoint: str | None
    resume: bool
    self_check: bool
    return_state: bool
    device: str = "cpu"
    compiled: bool = False

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The process groups it needs, in the order in which every rank creates them."""
        return reduce_groups(self.plan)


@dataclass(frozen=True)
class StepReport:
    """One step of one rank: seconds, and losses of the micro-batches whose last stage it holds."""

    rank: int
    step: int
    seconds: float
    losses: dict[int, float]


@dataclass(frozen=True)
class RankReport:
    """What a rank leaves at its end. `ops`: its last step.

    `allocated_bytes`: the most that CUDA's allocator gave the rank's process, over all steps; None on the CPU.
    """

    rank: int
    first_step: int
    peak_bytes: int
    ops: list[OpRecord]
    state: dict[str, Tensor] | None
    allocated_bytes: int | None = None


def run_rank(
    job: Job, wires: Transport, report: Callable[[StepReport], None], local_rank: int | None = None
) -> RankReport:
    """Runs all steps of one rank and reports each; raises what went wrong.

    Args:
        wires: between the hosts' memories.
        local_rank: among the ranks of this machine (default: the machine has them all).
    """
    place = place_of(job.device, wires.rank if local_rank is None else local_rank)
    with place.activate(), carried(job.plan, wires, place) as transport:
        return _run(job, transport, place, report)


def _run(job: Job, transport: Transport, place: Place, report: Callable[[StepReport], None]) -> RankReport:
    model = find_model(job.plan, job.model)
    data = find_data(model, job.data)
    shapes = match_model(job.plan, model, data, job.dtype)
    blueprint = Blueprint(job.plan, model, data, shapes, job.seed, job.rate, job.dtype, place.device, job.compiled)
    rank, tracker = transport.rank, StorageTracker(device=place.device)
    place.start_measuring()
    with ExitStack() as closing, ExitStack() as tracking:
        tracking.enter_context(tracker)
        replicas = _build(job, blueprint, rank)
        first = _resume(job, blueprint, replicas)
        interpreter = Interpreter(
            blueprint, transport, replicas, waits(job.plan)[rank], track=tracker.track, place=place
        )
        closing.callback(interpreter.close)
        tracker.reset_peak()
        peak, ops = 0, []
        for step in range(first, first + job.steps):
            record = interpreter.run_step(step)
            ops = record.ops
            report(StepReport(rank, step, record.seconds, record.losses))
            if step - first + 1 == job.tracked_steps:
                peak = tracker.peak_bytes
                tracking.close()
        peak, allocated = peak or tracker.peak_bytes, place.allocated_bytes()
    state = named_state(blueprint, replicas)
    if job.checkpoint is not None:
        from .checkpoint import save

        save(job.checkpoint, state, first + job.steps, job.plan, transport)
    returned = {name: tensor.to("cpu", copy=True) for name, tensor in state.items()} if job.return_state else None
    return RankReport(rank, first, peak, ops, returned, allocated)


def _build(job: Job, blueprint: Blueprint, rank: int) -> dict[int, StageReplica]:
    stages = sorted({s for p in job.plan.pipelines for s, device in enumerate(p.forward) if device == rank})
    return {stage: blueprint.build(rank, stage, job.self_check) for stage in stages}


def _resume(job: Job, blueprint: Blueprint, replicas: dict[int, StageReplica]) -> int:
    """Loads the newest checkpoint if the run resumes; returns the first step to run."""
    if not job.resume or job.checkpoint is None:
        return 0
    from .checkpoint import load

    step = load(job.checkpoint, named_state(blueprint, replicas), job.plan)
    for replica in replicas.values():
        replica.weights.set_step(step)
    return step


def named_state(blueprint: Blueprint, replicas: dict[int, StageReplica]) -> dict[str, Tensor]:
    """Every tensor of the rank by checkpoint key."""
    state: dict[str, Tensor] = {}
    for replica in replicas.values():
        state |= replica.weights.named_state(blueprint.layer_names)
    return state
