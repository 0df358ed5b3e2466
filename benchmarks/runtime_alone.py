"""Plans by themselves, as people run them: what each takes and holds at its peak, beside what was forecast.

Among many contenders in one process a plan finds little of its own in the caches, and one without a flush has no steps
to take turns with. So every plan runs alone for some steps, then the next one does, several times over. Runs of the
plans that layers were calibrated with are among them, and say the machine's pace.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, median

import torch.distributed as dist

from contraflow.executor.basics.options import RunOptions
from contraflow.executor.measure.ranks import among
from contraflow.executor.run.launch import run_plan
from contraflow.executor.run.result import RunResult
from contraflow.planner import Plan

RUN_S, FEWEST, MOST = 2.5, 4, 100
"""Of a run: seconds, steps at least and at most."""


@dataclass(frozen=True)
class Alone:
    """A plan's runs.

    Attributes:
        forecast_s, measured_s: of a step, or of an update without a flush; the median of all runs.
        pace: by how much more than forecast the plans took that layers were calibrated with.
        planned_bytes: on the device that is to hold most. least, most: of what is planned the share that a device held
            at its peak, of all devices.
    """

    stages: int
    forecast_s: float
    measured_s: float
    pace: float
    planned_bytes: int
    least: float
    most: float

    @property
    def error(self) -> float:
        """Measured over forecast, less 1."""
        return self.measured_s / self.forecast_s - 1

    @property
    def paced(self) -> float:
        """The same at the machine's pace."""
        return self.measured_s / self.forecast_s / self.pace - 1


def runs(plans: Mapping[str, Plan], known: Collection[str], rounds: int) -> dict[str, Alone]:
    """Of every plan, in the same processes; `known`: those that layers were calibrated with."""
    (processes,) = {len(plan.problem.cluster) for plan in plans.values()}
    results = among(processes, 1, partial(_in_turn, dict(plans), rounds))
    ratios = {name: median(r.step_s / r.forecast_step_s for r in found) for name, found in results.items()}
    pace = geometric_mean(ratios[name] for name in known)
    return {name: _of(plans[name], found, ratios[name], pace) for name, found in results.items()}


def _in_turn(plans: Mapping[str, Plan], rounds: int) -> dict[str, list[RunResult]]:
    """As one of the ranks."""
    results: dict[str, list[RunResult]] = {name: [] for name in plans}
    for number in range(rounds):
        for name, made in plans.items():
            if dist.get_rank() == 0:
                print(f"run {number + 1} of {rounds} of {name}", file=sys.stderr, flush=True)
            options = RunOptions(steps=_steps(made), transport="processes", self_check=False)
            results[name].append(run_plan(made, options))
    return results


def _of(plan: Plan, found: list[RunResult], ratio: float, pace: float) -> Alone:
    first, forecast_s = found[0], found[0].forecast_step_s
    pairs = zip(first.peak_bytes, first.forecast_peak_bytes, strict=True)
    shares = [held / planned for held, planned in pairs if planned]
    planned_bytes = max(first.forecast_peak_bytes)
    return Alone(len(plan.stages), forecast_s, ratio * forecast_s, pace, planned_bytes, min(shares), max(shares))


def _steps(plan: Plan) -> int:
    """As many as fill `RUN_S` by the forecast."""
    assert plan.forecast is not None
    return max(FEWEST, min(MOST, int(RUN_S / plan.forecast.step_s)))
