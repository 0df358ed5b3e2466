"""What ranks tell: of every step, before training, and at their ends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...planner.plan import Op
from ...planner.runs import OpTrace
from ..state import MiniBatch


@dataclass(frozen=True)
class StepReport:
    """One step (or update) of one rank: its end, its samples, losses of the micro-batches whose last stage it holds.

    `seconds`: from the start of its run to its end; `run`: the first step of that. `grad_norm`: of the whole model,
    where the run needs it. `loss_scale`: what the step ran with. `held_out`: losses of the evaluation after it by
    (step, micro-batch), None without. `left_out`: nobody stepped, since something was not finite.
    """

    rank: int
    step: int
    seconds: float
    losses: dict[int, float]
    mini_batch: MiniBatch
    grad_norm: float | None = None
    loss_scale: float = 1.0
    run: int = -1
    held_out: dict[tuple[int, int], float] | None = None
    left_out: bool = False


@dataclass(frozen=True)
class Notice:
    """What a rank wants the user to know about one of its stages, before training starts; told once a subject.

    `stage`: -1 for what concerns none.
    """

    stage: int
    text: str
    subject: str = "engine"


@dataclass(frozen=True)
class RankReport:
    """What a rank leaves at its end. `ops`: over the steps `timed_steps` (times) and `tracked_steps` (memory).

    `allocated_bytes`: the most that CUDA's allocator gave the rank's process, over all steps; None on the CPU.
    `reserved_bytes`: the most that it took from the device for that, gaps included.
    `held_out`: losses of an evaluation without training, by (step, micro-batch).
    `updates`: of the runs that the ops are of. `peak_op`: in which `peak_bytes` were live.
    """

    rank: int
    first_step: int
    peak_bytes: int
    ops: tuple[OpTrace, ...]
    timed_steps: tuple[int, ...]
    tracked_steps: tuple[int, ...]
    environment: dict[str, str | int]
    state: dict[str, Tensor] | None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    held_out: dict[tuple[int, int], float] | None = None
    updates: int = 1
    peak_op: Op | None = None
