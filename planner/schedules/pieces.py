"""Stages in pieces, one after the other on the same device: a backward needs what one of them keeps at a time.

Recomputation of one piece after the other is what Chen et al. (arXiv:1604.06174) call segments of a chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..plan import Kind, Op, Pipeline
from .layout import Layout

PIECES = "1f1b-pieces"


def in_pieces(layout: Layout, count: int) -> Layout:
    """A layout with every stage in so many pieces."""
    names = [range(count * stage, count * (stage + 1)) for stage in range(layout.stages)]

    def route(devices: Sequence[int]) -> tuple[int, ...]:
        return tuple(device for device in devices for _ in range(count))

    pipelines = tuple(Pipeline(route(p.forward), route(p.backward), p.micro_batches) for p in layout.pipelines)
    orders = tuple(tuple(cut_ops(order, names)) for order in layout.orders)
    return replace(layout, name=f"{PIECES}-{count}", stages=count * layout.stages, pipelines=pipelines, orders=orders)


def cut_ops(order: Sequence[Op], names: Sequence[Sequence[int]]) -> Iterator[Op]:
    """A compute order with every op in pieces: forwards in order, backwards the other way, each after its own R.

    `names`: of every stage, the stages that its pieces are.
    """
    remade = {(op.stage, op.micro_batch) for op in order if op.kind is Kind.R}
    for op in order:
        pieces = names[op.stage]
        if op.kind is Kind.R:
            continue
        for piece in pieces if op.kind is Kind.F else reversed(pieces):
            if op.kind in (Kind.B, Kind.I) and (op.stage, op.micro_batch) in remade:
                yield Op(Kind.R, piece, op.micro_batch)
            yield op._replace(stage=piece)
