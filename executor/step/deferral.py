"""Op lists whose optimizer steps come last: for updates that need the gradients of the whole model.

A plan may list a STEP as soon as its stage is done, before other stages' backwards. Waiting there for all gradients
would never end. So STEP, and what takes new parameters on after it, move to the end of their device's list, in their
order. Nothing else waits for them within the step, so what was free of circles stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...planner.plan import IN_LINE, RECEIVES, Kind, Op
from .waits import Waits

_LATE = frozenset({Kind.STEP, Kind.GATHER, Kind.SEND_P, Kind.RECV_P})


class DeferredList(NamedTuple):
    """One device's list and waits.

    `late`: the position of the first op that was deferred (the length if none was). `listed`: of every op, its position
    in the plan's list.
    """

    order: tuple[Op, ...]
    waits: Waits
    late: int
    listed: tuple[int, ...]


def deferred(order: Sequence[Op], waits: Waits) -> DeferredList:
    """The list with its late ops at the end.

    All waits stay as the plan's own forecast has them, so that its memory holds: what a deferred STEP would have
    waited for, the ops behind it wait for. A STEP neither takes nor frees memory.
    """
    stays = [k for k, op in enumerate(order) if op.kind not in _LATE]
    goes = [k for k, op in enumerate(order) if op.kind in _LATE]
    moved = {old: new for new, old in enumerate([*stays, *goes])}
    left: dict[int, list[int]] = {k: list(waits.left[k]) for k in range(len(order))}
    carried: list[int] = []
    for k, op in enumerate(order):
        if op.kind in _LATE:
            carried += left[k]
        elif op.kind in IN_LINE or op.kind in RECEIVES:
            left[k], carried = [*carried, *left[k]], []
        elif op.kind is Kind.FETCH:
            left[k] = [*carried, *left[k]]
    starts = {moved[k]: _gate(order, k, gate, moved) for k, gate in waits.starts.items()}
    late = {k: [] if order[k].kind in _LATE else left[k] for k in left}
    listed = (*stays, *goes)
    positions = [tuple(moved[s] for s in late[old]) for old in listed]
    return DeferredList(tuple(order[k] for k in listed), Waits(tuple(positions), starts), len(stays), listed)


def _gate(order: Sequence[Op], fetch: int, gate: int, moved: dict[int, int]) -> int:
    """The new position of the in-line op that must have run before a FETCH starts, -1: none.

    Where that is deferred, the op before it; but what is listed up to it has to be posted first.
    """
    until = gate
    while until >= 0 and (order[until].kind in _LATE or order[until].kind not in IN_LINE):
        until -= 1
    position = moved[until] if until >= 0 else -1
    return max(position, moved[fetch]) if gate > fetch else position
