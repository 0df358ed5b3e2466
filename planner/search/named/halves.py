"""Backwards in halves or whole, and with recomputation, in compute orders."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...graph import Candidate
from ...plan import Kind, Op
from ...problem import SearchSpace


def not_split(space: SearchSpace, candidate: Candidate) -> frozenset[int]:
    """Stages whose backward stays whole: they cannot be split, or the space does not allow it."""
    separable = candidate.costs.separable
    return frozenset(s for s, can in enumerate(separable) if not (can and space.split_backward))


def whole_backwards(order: Iterable[Op], stages: Collection[int]) -> list[Op]:
    """A compute order with the backwards of these stages whole, at the place of their input halves."""
    found: list[Op] = []
    for op in order:
        if op.stage not in stages or op.kind not in (Kind.I, Kind.W):
            found.append(op)
        elif op.kind == Kind.I:
            found.append(Op(Kind.B, op.stage, op.micro_batch))
    return found


def possible_orders(candidate: Candidate, orders: Iterable[Iterable[Op]]) -> list[list[Op]]:
    """Compute orders that were listed for other stages or layers, with backwards that these may have.

    A backward is whole where its stage cannot be split, and where whole and halved ones have come together.
    """
    whole = frozenset(s for s, can in enumerate(candidate.costs.separable) if not can)
    return [_one_backward_each(order, whole) for order in orders]


def _one_backward_each(order: Iterable[Op], stages: Collection[int]) -> list[Op]:
    """A compute order with whole backwards of `stages`, and where both a whole one and halves are listed: at the later
    of their places.
    """
    listed = [*order]
    whole_ones = {(op.stage, op.micro_batch) for op in listed if op.kind == Kind.B}
    halved = {(op.stage, op.micro_batch) for op in listed if op.kind == Kind.I}
    changed = {at for at in halved if at[0] in stages or at in whole_ones}
    last = {(op.stage, op.micro_batch): k for k, op in enumerate(listed) if op.kind in (Kind.B, Kind.I)}
    found: list[Op] = []
    for k, op in enumerate(listed):
        at = op.stage, op.micro_batch
        if at not in changed or op.kind not in (Kind.B, Kind.I, Kind.W):
            found.append(op)
        elif last[at] == k:
            found.append(Op(Kind.B, *at))
    return found


def remade(order: Iterable[Op]) -> list[Op]:
    """A compute order with a recomputation right before every backward."""
    found: list[Op] = []
    for op in order:
        if op.kind in (Kind.B, Kind.I):
            found.append(Op(Kind.R, op.stage, op.micro_batch))
        found.append(op)
    return found
