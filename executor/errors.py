"""What running a plan raises: every message fits one line."""

from __future__ import annotations

from ..planner.errors import InputError
from ..planner.plan import Op


class RunError(InputError):
    """A plan, model, data set or option that cannot be executed: bad input, found before training starts."""


class ExecutionError(RuntimeError):
    """Training failed on a rank; the message names rank, stage, operation and micro-batch."""


class Aborted(RuntimeError):
    """Another rank failed first: this one stops quietly."""


def failed_op(rank: int, step: int, op: Op, error: Exception, updates: bool = False) -> ExecutionError:
    """What went wrong in an operation, in one line. `updates`: the plan is asynchronous."""
    of = f", micro-batch {op.micro_batch}" if op.micro_batch >= 0 else ""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    when = f"{'update' if updates else 'step'} {step}"
    return ExecutionError(f"rank {rank}, stage {op.stage}, op {op}{of}, {when}: {type(error).__name__}: {reason}")
