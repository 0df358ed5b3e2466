"""What of a plan is kept when it is completed anew: its compute orders, copies and shipped stashes."""

from __future__ import annotations

from ...plan import COLLECTIVES, RECEIVES, SENDS, Kind, Op, Plan


def own_orders(plan: Plan) -> list[list[Op]]:
    """A plan's orders without what `assemble` places itself: messages, reductions and optimizer steps."""
    placed = SENDS | RECEIVES | COLLECTIVES | {Kind.STEP, Kind.PREDICT}
    return [[op for op in order if op.kind not in placed] for order in plan.orders]
