"""The weight halves that end a step: those come first whose sums take longest.

Nothing on a device waits for them, so they may come in any order. With sums and gathering that follow beside what the
device computes next, the last of all is then the shortest (Jackson's rule for delivery times).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...graph import Candidate, around_step_s
from ...plan import Kind, Op


def weights_by_sums(candidate: Candidate, orders: Iterable[Sequence[Op]]) -> list[list[Op]]:
    """Compute orders with the weight halves at the end of each sorted so."""
    trained = candidate.costs.trained_bytes

    def sums_s(op: Op) -> float:
        members = tuple(sorted({pipeline.backward[op.stage] for pipeline in candidate.pipelines}))
        return around_step_s(candidate.problem, members, int(trained[op.stage]))

    found = []
    for order in orders:
        end = len(order)
        while end and order[end - 1].kind is Kind.W:
            end -= 1
        found.append([*order[:end], *sorted(order[end:], key=lambda op: (-sums_s(op), op.stage))])
    return found
