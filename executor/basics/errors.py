"""What running a plan raises: every message fits one line."""

from __future__ import annotations

import traceback
from pathlib import Path

from ...planner.basics import InputError
from ...planner.plan import Op


class RunError(InputError):
    """A plan, model, data set or option that cannot be executed: bad input, found before training starts.

    `told`: another rank's command has told the user.
    """

    told = False


class ExecutionError(RuntimeError):
    """Training failed on a rank; the message names rank, stage, operation and micro-batch. `told`: as of RunError."""

    told = False


class SilentExit(SystemExit):
    """A signal has ended this rank after another one has told the user why the run ends."""


class Aborted(RuntimeError):
    """Another rank failed first: this one stops quietly."""


def one_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0]


def ours(error: BaseException) -> bool:
    """Whether the message was written for the user: an exception class of this package."""
    return type(error).__module__.startswith(__package__.partition(".")[0] + ".")


def foreign(error: Exception) -> str:
    """An error that was not written for the user, as of a model's own code, in one line: kind, message and place."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"


def rank_name(rank: int, team: int = 1) -> str:
    """What a message calls a rank: "rank 3", or "rank 3 (lane 1 of device 1)" where devices are teams of ranks."""
    return f"rank {rank}" + (f" (lane {rank % team} of device {rank // team})" if team > 1 else "")


def failed_op(rank: str, step: int, op: Op, error: Exception, updates: bool = False) -> ExecutionError:
    """What went wrong in an operation of a rank, by its name, in one line. `updates`: the plan is asynchronous."""
    of = f", micro-batch {op.micro_batch}" if op.micro_batch >= 0 else ""
    reason = one_line(error) or type(error).__name__
    when = f"{'update' if updates else 'step'} {step}"
    return ExecutionError(f"{rank}, stage {op.stage}, op {op}{of}, {when}: {type(error).__name__}: {reason}")
