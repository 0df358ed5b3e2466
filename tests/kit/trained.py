"""Runs random cases and holds them against everything that a plan promises."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import plain_torch
import torch
from random_runs import RandomRun
from runs import run_jobs_together
from torch import Tensor

from contraflow.executor.basics.errors import RunError
from contraflow.executor.run import rank
from contraflow.executor.run.collector import Collector
from contraflow.executor.run.job import Job
from contraflow.executor.run.launch import prepare
from contraflow.executor.run.result import RunResult
from contraflow.executor.run.threaded import run_threads
from contraflow.executor.step.course import Course
from contraflow.executor.step.interpreter import Interpreter
from contraflow.executor.step.step_state import StepRecord, StepState, Transfer
from contraflow.planner.check import check
from contraflow.planner.lower.period import period_seconds
from contraflow.planner.plan import Forecast, Plan
from contraflow.planner.plan_file import plan_from_dict, plan_to_dict
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.simulate import simulate

TIMEOUT_S = 60.0
TOLERANCES = {"fp64": 1e-7, "fp32": 2e-4, "mixed": 2e-2}
"""Of losses and of every tensor's relative norm, by precision."""
ADAPTIVE = frozenset({"adam", "adamw", "rmsprop"})
"""Optimizers that divide a gradient by its own size: where it is zero, by that of its round-off."""

Execute = Callable[[Job], RunResult]


@dataclass(frozen=True)
class Fault:
    """A promise that was broken: which, by the names of `record.FAULTS`, and how."""

    kind: str
    text: str


@dataclass
class Outcome:
    """What a case came to. refused: why it was not run, in the refusal's words, if it was not."""

    faults: list[Fault] = field(default_factory=list)
    refused: str = ""
    result: RunResult | None = None

    def add(self, kind: str, text: str) -> None:
        """One more fault."""
        self.faults.append(Fault(kind, text))


def on_threads(job: Job) -> RunResult:
    """On threads of this process."""
    collected = Collector(job, None)
    return collected.result(job.plan, run_threads(job, collected))


def on_processes(job: Job) -> RunResult:
    """On gloo processes that are kept for the next run."""
    with tempfile.TemporaryDirectory() as folder:
        return run_jobs_together([job], Path(folder), timeout_s=TIMEOUT_S)[0]


def job_of(case: RandomRun, plan: Plan, by_name: bool = False) -> Job:
    """The run of a case under a plan; `by_name`: other processes resolve the model."""
    model = f"tiny_models:{case.model}" if by_name else case.layered
    return prepare(
        plan, case.steps, model, case.data, dtype=case.dtype, self_check=False, return_state=True,
        training=case.training, engine=case.engine, timeout_s=TIMEOUT_S,
    )  # type: ignore[arg-type]  # fmt: skip


def outcome(
    case: RandomRun, plan: Plan, execute: Execute = on_threads, by_name: bool = False, again: bool = True
) -> Outcome:
    """Runs a plan of the case and looks at everything; `again`: a second time, which must give the same bits."""
    found = Outcome()
    violations = check(plan)
    if violations:
        found.add("different", f"check rejects it: {violations[0]}")
        return found
    if forecast(reread := plan_from_dict(json.loads(json.dumps(plan_to_dict(plan))))) != forecast(plan):
        found.add("different", "the plan that was written and read has another forecast")
    if reread != plan:
        found.add("different", "the plan that was written and read is another one")
    leaks: list[str] = []
    try:
        job = job_of(case, plan, by_name)
    except RunError as error:
        found.refused = str(error)
        return found
    try:
        with watched(leaks):
            result = execute(job)
            second = execute(job) if again else result
    except RunError as error:
        found.refused = str(error)
        return found
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        hangs = isinstance(error, TimeoutError) or "no progress" in text
        found.add("hang" if hangs else "traceback", text)
        return found
    found.result = result
    for text in leaks:
        found.add("above its peak", text)
    if not same_floats(result, second):
        found.add("different", "the second run gives other floats")
    _compare(case, plan, result, found)
    for device, (measured, planned) in enumerate(zip(result.peak_bytes, result.forecast_peak_bytes, strict=True)):
        if measured > planned:
            found.add("above its peak", f"device {device}: {measured} bytes, planned {planned}")
    return found


def forecast(plan: Plan) -> Forecast:
    """What the simulator says of a plan."""
    found = simulate(plan).forecast()
    return found if plan.weights == FLUSH else replace(found, period_s=period_seconds(plan))


def same_floats(one: RunResult, other: RunResult) -> bool:
    """Whether losses and tensors are the same bit for bit."""
    first, second = one.state or {}, other.state or {}
    alike = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    return alike and one.losses == other.losses and one.evaluations == other.evaluations


def _compare(case: RandomRun, plan: Plan, result: RunResult, found: Outcome) -> None:
    wanted = plain_torch.train(plan, case.layered, case.data, case.steps, case.dtype, case.training)
    allowed = TOLERANCES[case.precision]
    pairs = {
        "losses": (result.losses, wanted.losses),
        "norms": (result.grad_norms, wanted.grad_norms),
        "evaluations": (list(result.evaluations.values()), list(wanted.evaluations.values())),
    }
    for name, (mine, theirs) in pairs.items():
        if not _close(torch.tensor(mine).double(), torch.tensor(theirs).double(), allowed):
            found.add("different", f"{name}: {list(mine)}, plain torch {list(theirs)}")
    state = result.state or {}
    missing = wanted.state.keys() - state.keys()
    if missing:
        found.add("different", f"no {sorted(missing)} at the end")
    for name in sorted(wanted.state.keys() & state.keys()):
        mine, theirs = state[name].double(), wanted.state[name].double()
        if case.optimizer in ADAPTIVE and name in wanted.undetermined and mine.shape == theirs.shape:
            mine, theirs = (_without(tensor, wanted.undetermined[name]) for tensor in (mine, theirs))
        if not _close(mine, theirs, allowed):
            off = (mine - theirs).norm().item() if mine.shape == theirs.shape else math.nan
            found.add("different", f"{name}: differs by {off:g} of {theirs.norm().item():g}")


def _without(tensor: Tensor, entries: slice) -> Tensor:
    """A vector without some of its entries, which must be numbers."""
    assert tensor[entries].isfinite().all()
    return torch.cat([tensor[: entries.start], tensor[entries.stop :]])


def _close(mine: Tensor, wanted: Tensor, allowed: float) -> bool:
    if mine.shape != wanted.shape:
        return False
    return not mine.numel() or bool((mine - wanted).norm() <= allowed * max(wanted.norm().item(), 1e-3))


# ------------------------------------------------------------------ what a step leaves behind


_LASTING = frozenset({"step", "times", "mini_batches", "records", "position", "versions", "ended", "told", "marks"})
"""What a step's state may still hold at its end."""


@contextmanager
def watched(leaks: list[str]) -> Iterator[None]:
    """Every rank of this process tells what a step leaves alive: in its state, and bytes beside the static ones."""
    made = partial(_Watched, leaks)
    with mock.patch.object(rank, "Interpreter", made):
        yield


class _Watched(Interpreter):
    def __init__(self, leaks: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leaks, self._levels = leaks, list[int]()

    def _finished(self, course: Course, state: StepState) -> StepRecord:
        found = super()._finished(course, state)
        rank_ = f"rank {self._worker.transport.rank}, step {state.step}"
        for part in fields(StepState):
            left = getattr(state, part.name)
            if part.name not in _LASTING and _holds(left):
                self._leaks.append(f"{rank_}: {part.name} has {list(left)}")
        for stage, versions in state.versions.items():
            if versions._older:
                self._leaks.append(f"{rank_}: stage {stage} keeps versions {list(versions._older)}")
        tracker = self._observer._tracker
        if tracker is not None:
            self._levels.append(tracker.current_bytes)
            if len(set(self._levels)) > 1:
                self._leaks.append(f"{rank_}: {self._levels} bytes after its steps")
        return found


def _holds(left: Mapping[Any, Any] | Sequence[Any]) -> bool:
    """Whether something is left but transfers that have let go of their tensors."""
    values = left.values() if isinstance(left, Mapping) else left
    return any(not isinstance(value, Transfer) or value.tensors for value in values)


def threads_left(before: Sequence[threading.Thread]) -> list[str]:
    """Names of threads that were not there before."""
    return [thread.name for thread in threading.enumerate() if thread not in before]
