"""Runs CP-SAT so that it can be interrupted, reports progress, and repeats itself for a seed.

The solve runs in a thread while the caller waits: Ctrl-C then reaches the caller, who stops the search. With one
worker CP-SAT is deterministic; with more, `interleave_search` makes the workers take turns in a fixed order.
Effort is measured in CP-SAT's deterministic time, so that the same seed and limits give the same answer wherever
the wall-clock limit is not reached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

Report = Callable[[float], None]


@dataclass(frozen=True)
class Effort:
    """Limits of one solve: wall-clock seconds, deterministic time, workers, and the seed."""

    seconds: float
    deterministic: float
    workers: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What one solve proved: `bound` in ticks (the objective is no less); `found`: there is a solution."""

    found: bool
    infeasible: bool
    optimal: bool
    bound: int
    effort: float
    interrupted: bool = False


class _Bounds:
    """Keeps the best bound the solver reports, so that a progress callback can read it."""

    def __init__(self, report: Report | None) -> None:
        self.report, self.latest = report, 0.0

    def __call__(self, bound: float) -> None:
        self.latest = bound


def run(
    model: cp_model.CpModel, effort: Effort, lower: int, report: Report | None = None
) -> tuple[cp_model.CpSolver, Outcome]:
    """Solves a model; `report` gets the bound in ticks about twice a second, in the caller's thread."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(0.01, effort.seconds)
    parameters.max_deterministic_time = effort.deterministic
    parameters.random_seed = effort.seed
    parameters.num_workers = effort.workers
    parameters.interleave_search = effort.workers > 1
    parameters.catch_sigint_signal = False
    bounds = _Bounds(report)
    solver.best_bound_callback = bounds
    status: list[object] = []
    thread = threading.Thread(target=lambda: status.append(solver.solve(model)), daemon=True)
    interrupted = _wait(thread, solver, bounds)
    code = status[0] if status else cp_model.UNKNOWN
    found = code in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    infeasible = code == cp_model.INFEASIBLE
    bound = lower
    if not infeasible and code != cp_model.MODEL_INVALID and status:
        bound = max(lower, _whole(solver.best_objective_bound))
    used = float(solver.response_proto.deterministic_time) if status else effort.deterministic
    return solver, Outcome(found, infeasible, code == cp_model.OPTIMAL, bound, used, interrupted)


def _whole(bound: float) -> int:
    """The smallest whole number of ticks that is not below a bound, up to round-off; 0 for no bound."""
    return max(0, -int((1e-6 - bound) // 1)) if bound > 0 else 0


def _wait(thread: threading.Thread, solver: cp_model.CpSolver, bounds: _Bounds) -> bool:
    """Joins the thread; on Ctrl-C stops the solver and says so."""
    interrupted = False
    thread.start()
    pause = 0.5
    while thread.is_alive():
        try:
            thread.join(pause)
            if bounds.report is not None and thread.is_alive() and not interrupted:
                bounds.report(bounds.latest)
        except KeyboardInterrupt:
            interrupted = True
            solver.stop_search()
            pause = 0.05
    return interrupted
