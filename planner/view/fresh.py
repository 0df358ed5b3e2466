"""The forecast of a plan that is drawn: simulated afresh from its operations."""

from __future__ import annotations

from ..basics import InputError, one_line
from ..check import check
from ..plan import Forecast, Plan
from ..simulate import evaluate


def fresh_forecast(plan: Plan) -> Forecast:
    """The forecast of the plan's operations, with the stored bound. Raises InputError naming a violation."""
    fatal = [v for v in check(plan) if v.code not in ("memory", "forecast")]
    if fatal:
        first = fatal[0]
        raise InputError(
            f"the plan cannot be drawn, {first.where}: {one_line(first.message, 240)} (see contraflow check)"
        )
    return evaluate(plan)
