"""Orders changed by hand, judged by the checker and the simulator: there is no second truth in the browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..basics import PlanError
from ..check import check
from ..graph import Candidate
from ..lower import assemble
from ..plan import COPIES, Kind, Op, Plan, Provenance
from ..plan_file import op_from_text
from ..problem import FLUSH

_SHOWN = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R})
_KEPT = _SHOWN | COPIES | {Kind.FREE, Kind.SEND_S, Kind.RECV_S}
"""What orders are made of, and what may have a place of its own in them; lowering adds the rest."""
_NAMED = 5
"""Operations that a line names."""


@dataclass(frozen=True)
class Verdict:
    """What became of an edit: the complete plan with its forecast, or why there is none.

    `violations`: every line of the checker; empty where the plan can be executed and fits.
    """

    plan: Plan | None
    violations: tuple[str, ...] = ()


def compute_orders(plan: Plan) -> tuple[tuple[Op, ...], ...]:
    """What is to be edited: what every device computes, in order, and what becomes of its stashes.

    Without a flush its updates, too.
    """
    kept = _KEPT if plan.weights == FLUSH else _KEPT | {Kind.STEP}
    return tuple(tuple(op for op in order if op.kind in kept) for order in plan.orders)


def judged(plan: Plan, edits: Mapping[int, str]) -> Verdict:
    """The plan with other orders on some devices, by their numbers: ops with blanks between them, as `0F0 0F1 0B0`.

    Lowering adds messages, copies, sums and updates, as for any order. Raises PlanError for text that is no order and
    for devices that there are not; orders that cannot run are a verdict.
    """
    orders = list(compute_orders(plan))
    for device, text in edits.items():
        if not 0 <= device < len(orders):
            raise PlanError(f"there is no device {device}: the plan has {len(orders)}")
        orders[device] = tuple(map(op_from_text, text.split()))
    lacking = _lacking(plan, orders)
    if lacking:
        return Verdict(None, lacking)
    candidate = Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash, plan.weights)
    try:
        made = assemble(candidate, orders, "by hand")
    except PlanError as error:  # a circle among them
        return Verdict(None, (str(error),))
    made = replace(made, provenance=Provenance(source="by hand"))
    return Verdict(made, tuple(map(str, check(made))))


def _lacking(plan: Plan, orders: list[tuple[Op, ...]]) -> tuple[str, ...]:
    """What is missing, there twice, or on another device than the plan's routes say."""
    found = []
    for device, (had, has) in enumerate(zip(compute_orders(plan), orders, strict=True)):
        before, after = _passes(had), _passes(has)
        for what, ops in (
            ("lacks", before.keys() - after.keys()),
            ("does not run", after.keys() - before.keys()),
            ("repeats", {op for op, count in after.items() if count > max(1, before[op])}),
        ):
            named = ", ".join(map(str, sorted(ops)[:_NAMED])) + (
                f" and {len(ops) - _NAMED} more" if len(ops) > _NAMED else ""
            )
            found += [f"device {device} {what} {named}"] if ops else []
    return tuple(found)


def _passes(order: tuple[Op, ...]) -> Counter[Op]:
    """How often each pass is there, whether its backward is whole or in halves; the second half is left out."""
    whole = {Kind.I: Kind.B}
    return Counter(
        op._replace(kind=whole.get(op.kind, op.kind)) for op in order if op.kind in _SHOWN and op.kind != Kind.W
    )
