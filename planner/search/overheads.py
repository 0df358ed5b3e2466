"""What is said of a plan because its ops are small: what nobody measured, and devices that do not pay."""

from __future__ import annotations

from dataclasses import replace

from ..basics import format_seconds, percent
from ..plan import Plan
from ..problem import EXPECTED
from ..simulate import evaluate
from .common import TOLERANCE


def overhead_notes(plan: Plan) -> list[str]:
    """Lines about a plan's overheads; none where they change little. Raises PlanError for a plan that cannot run."""
    return [line for line in (_unmeasured(plan), _one_device(plan), _few_cores(plan)) if line]


def _unmeasured(plan: Plan) -> str:
    """Where the cluster says nothing of overheads and such as are usual would matter."""
    cluster = plan.problem.cluster
    if cluster.overhead is not None:
        return ""
    now = (plan.forecast or evaluate(plan)).objective_s
    usual = evaluate(plan, cluster=replace(cluster, overhead=EXPECTED)).objective_s
    if usual <= now * (1 + TOLERANCE.overhead):
        return ""
    op, message, step = map(format_seconds, (EXPECTED.op_s, EXPECTED.message_s, EXPECTED.step_s))
    each = f"{op} an op, {message} a message and {step} a STEP"
    return (
        f"the cluster says nothing of overheads, so none are counted: with {each} this plan takes "
        f"{percent(usual / now - 1)} more; cluster detect measures them"
        if now > 0
        else ""
    )


def _one_device(plan: Plan) -> str:
    """Where the best plan leaves all devices but one unused."""
    used, count = sum(any(order) for order in plan.orders), len(plan.orders)
    if used > 1 or count == 1:
        return ""
    return f"one device is faster than any plan found on more of the {count}: ops are too small, or links too slow"


def _few_cores(plan: Plan) -> str:
    """Where several devices are used, but not all, of nodes that have fewer cores than devices."""
    used, count = sum(any(order) for order in plan.orders), len(plan.orders)
    if not 1 < used < count or not plan.problem.cluster.crowded:
        return ""
    return f"{used} of the {count} devices are used: no plan found on more is faster, they share their nodes' cores"
