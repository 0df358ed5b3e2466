"""Runs CP-SAT so that it can be interrupted, reports progress, and repeats itself for a seed.

The solves run in threads while the caller waits: Ctrl-C then reaches the caller, who stops them. Every solve has one
CP-SAT worker and so is deterministic: on schedules one worker without linear relaxation that pushes the bound up from
below proves in a second what CP-SAT's own workers in turns do not in ten. A second solve runs beside it with another
strategy; it counts only where the first is undecided at the end of its effort. Effort is CP-SAT's deterministic time,
so that the same seed and limits give the same answer wherever the wall-clock limit is not reached.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from ...basics import end_asked
from ..common import SECONDS, TOLERANCE

Report = Callable[[float], None]


@dataclass(frozen=True)
class Effort:
    """Limits of one solve: wall-clock seconds, deterministic time, workers (threads), and the seed.

    `stop` ends it from another thread.
    """

    seconds: float
    deterministic: float
    workers: int = 1
    seed: int = 0
    stop: threading.Event = field(default_factory=threading.Event, compare=False)


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
        self.latest = max(self.latest, bound)


class _Solve:
    """One CP-SAT solve in a thread of its own."""

    def __init__(self, model: cp_model.CpModel, effort: Effort, number: int, bounds: _Bounds, upward: bool) -> None:
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.max_time_in_seconds = max(SECONDS.solve, effort.seconds)
        parameters.max_deterministic_time = effort.deterministic
        parameters.random_seed = effort.seed + number
        parameters.num_workers = 1
        parameters.catch_sigint_signal = False
        parameters.linearization_level = 0
        parameters.cp_model_probing_level = 0
        parameters.presolve_inclusion_work_limit = 0  # it can call feasible models infeasible: or-tools issue 5293
        parameters.use_objective_lb_search = upward == (number == 0)
        self.solver.best_bound_callback = bounds
        self.status: list[object] = []
        self.thread = threading.Thread(target=self._work, args=(model,), daemon=True)

    def _work(self, model: cp_model.CpModel) -> None:
        try:
            self.status.append(self.solver.solve(model))
        except IndexError:  # OR-Tools 9.15 breaks off so in the presolve of some models: no answer
            return

    @property
    def code(self) -> object:
        return self.status[0] if self.status else cp_model.UNKNOWN

    @property
    def decided(self) -> bool:
        return self.code in (cp_model.OPTIMAL, cp_model.INFEASIBLE, cp_model.MODEL_INVALID)

    def outcome(self, effort: Effort, lower: int, interrupted: bool) -> Outcome:
        code, infeasible = self.code, self.code == cp_model.INFEASIBLE
        bound = lower
        if not infeasible and code != cp_model.MODEL_INVALID and self.status:
            bound = max(lower, _whole(self.solver.best_objective_bound))
        used = float(self.solver.response_proto.deterministic_time) if self.status else effort.deterministic
        found = code in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return Outcome(found, infeasible, code == cp_model.OPTIMAL, bound, used, interrupted)


def run(
    model: cp_model.CpModel, effort: Effort, lower: int, report: Report | None = None, upward: bool = True
) -> tuple[cp_model.CpSolver, Outcome]:
    """Solves a model; `report` gets the bound in ticks about twice a second, in the caller's thread.

    `upward`: the first solve raises the bound until a solution meets it, and a second looks for solutions; otherwise
    the other way round. Two threads at most, whatever the effort's workers.
    """
    bounds = _Bounds(report)
    solves = [_Solve(model, effort, number, bounds, upward) for number in range(min(2, max(1, effort.workers)))]
    interrupted = _wait(solves, bounds, effort)
    first, *others = solves
    outcome = first.outcome(effort, lower, interrupted)
    if first.decided:
        return first.solver, outcome
    for other in others:
        found = other.outcome(effort, lower, interrupted)
        worse = not found.found or (outcome.found and first.solver.objective_value <= other.solver.objective_value)
        bound, used = max(outcome.bound, found.bound), max(outcome.effort, found.effort)
        if found.infeasible or not worse:
            first, outcome = other, found
        outcome = replace(outcome, bound=bound, effort=used)
    return first.solver, outcome


def _whole(bound: float) -> int:
    """The smallest whole number of ticks that is not below a bound, up to round-off; 0 for no bound."""
    return max(0, -int((TOLERANCE.whole - bound) // 1)) if bound > 0 else 0


def _wait(solves: list[_Solve], bounds: _Bounds, effort: Effort) -> bool:
    """Waits until the first solve is decided, all have ended, or time is up, and stops them; True if Ctrl-C comes.

    The others start a little later: most models are decided by then.
    """
    first, *others = solves
    until = time.monotonic() + effort.seconds
    first.thread.start()
    interrupted = _join(
        first, bounds, effort.stop, min(until, time.monotonic() + SECONDS.head_start) if others else until
    )
    if others and not interrupted and not first.decided and time.monotonic() < until:
        for other in others:
            other.thread.start()
        interrupted = _join(first, bounds, effort.stop, until)
    for other in others if not (first.decided or interrupted) else ():
        interrupted |= _join(other, bounds, effort.stop, until)
    for solve in solves:
        _stop(solve)
    return interrupted


def _join(solve: _Solve, bounds: _Bounds, stop: threading.Event, until: float) -> bool:
    """Waits for the end of a solve that has begun, until that time.monotonic() at most; True if it is to stop."""
    while solve.thread.is_alive() and (left := until - time.monotonic()) > 0:
        try:
            if stop.is_set() or end_asked():
                return True
            solve.thread.join(min(SECONDS.progress, left))
            if bounds.report is not None and solve.thread.is_alive():
                bounds.report(bounds.latest)
        except KeyboardInterrupt:
            return True
    return False


def _stop(solve: _Solve) -> None:
    """Ends a solve; leaves it to itself where it does not notice: parts of the presolve do not."""
    if not _ended(solve, time.monotonic() + SECONDS.patience):
        _left.add(solve)


def _ended(solve: _Solve, end: float) -> bool:
    """Stops a solve that may not have begun to listen; whether it has ended by `end`."""
    while solve.thread.is_alive():
        solve.solver.stop_search()
        solve.thread.join(SECONDS.stopping)
        if time.monotonic() >= end:
            return not solve.thread.is_alive()
    return True


_left: weakref.WeakSet[_Solve] = weakref.WeakSet()


@atexit.register
def _end_left() -> None:
    """A thread that calls back from the solver once the interpreter is gone aborts the process."""
    end = time.monotonic() + SECONDS.leaving
    for solve in list(_left):
        _ended(solve, end)
