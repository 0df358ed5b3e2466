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


def remade(order: Iterable[Op]) -> list[Op]:
    """A compute order with a recomputation right before every backward."""
    found: list[Op] = []
    for op in order:
        if op.kind in (Kind.B, Kind.I):
            found.append(Op(Kind.R, op.stage, op.micro_batch))
        found.append(op)
    return found
