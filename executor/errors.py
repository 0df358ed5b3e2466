"""What running a plan raises: every message fits one line."""

from __future__ import annotations

from ..planner.errors import InputError


class RunError(InputError):
    """A plan, model, data set or option that cannot be executed: bad input, found before training starts."""


class ExecutionError(RuntimeError):
    """Training failed on a rank; the message names rank, stage, operation and micro-batch."""


class Aborted(RuntimeError):
    """Another rank failed first: this one stops quietly."""
