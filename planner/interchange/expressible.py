"""What other runtimes have in common: stages on one rank, messages to the next stage, updates at the end of a step."""

from __future__ import annotations

from ..basics import InputError, one_line
from ..graph import Candidate
from ..plan import Plan
from ..problem import FLUSH


class InterchangeError(InputError):
    """A plan that another runtime cannot express, or a file of another runtime that is none: the message says where."""


def require_flush(plan: Plan, runtime: str) -> None:
    """Raises InterchangeError for weights that are updated without a flush."""
    if plan.weights != FLUSH:
        raise InterchangeError(f"{runtime} updates weights at the end of a step, not by {one_line(plan.weights, 40)!r}")


def require_next(plan: Plan, runtime: str) -> None:
    """Raises InterchangeError for a tensor that goes past the next stage."""
    candidate = Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash, plan.weights)
    for producer, consumer, _ in candidate.costs.edges:
        if consumer != producer + 1:
            raise InterchangeError(
                f"{runtime} passes tensors from a stage to the next, not from stage {producer} to stage {consumer}"
            )
