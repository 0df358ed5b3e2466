"""What a run gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ...planner.runs import RunTrace
from .excess import Excess


@dataclass(frozen=True)
class RunResult:
    """What training gave.

    Attributes:
        losses: mean over the samples, one a step (of an asynchronous plan: an update, here and below).
        step_s: median step time in seconds, the first step left out and the memory-tracked ones where there are
            others. step_times: all of them. Asynchronous: from an update's end to the next, while the pipeline is full.
        peak_bytes: measured per device, in the tracked steps. allocated_bytes: the most that CUDA's allocator gave
            every rank's process, with its rounding and the libraries' workspaces; reserved_bytes: the most that it took
            from the device for that, with the gaps between blocks. Both None on the CPU.
        forecast_step_s, forecast_peak_bytes: what the plan said.
        first_step: 0, or where the run resumed.
        grad_norms: of the whole model before clipping, one a step where gradients are clipped or losses scaled
            dynamically; then a step whose norm is not finite was left out. loss_scales: what each step ran with.
        left_out: steps that no rank took, since a gradient (or, with `on_nan` "skip", a loss) was not finite.
        evaluations: mean held-out losses by the number of steps taken before.
        state: final tensors by checkpoint key, if asked for.
        trace: the steps op by op: median times, memory.
        excesses: the devices that held more than was planned.
    """

    losses: tuple[float, ...]
    step_s: float
    step_times: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    forecast_step_s: float
    forecast_peak_bytes: tuple[int, ...]
    first_step: int
    trace: RunTrace
    grad_norms: tuple[float, ...] = ()
    loss_scales: tuple[float, ...] = ()
    evaluations: dict[int, float] = field(default_factory=dict)
    state: dict[str, Tensor] | None = field(default=None, repr=False)
    allocated_bytes: tuple[int, ...] | None = None
    reserved_bytes: tuple[int, ...] | None = None
    excesses: tuple[Excess, ...] = ()
    left_out: tuple[int, ...] = ()
