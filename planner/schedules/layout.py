"""What a named schedule is: pipelines over stages and, for every device, the order of its compute ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..basics import ScheduleError
from ..plan import Kind, Op, Pipeline
from ..problem import FLUSH


@dataclass(frozen=True)
class Layout:
    """A schedule for a number of stages, independent of costs.

    `orders` holds only compute ops (F, B, I, W, R), one tuple a device; `in_flight` is the number of stashes of
    each stage that are alive at once, summed over pipelines, for the partition to plan memory with. `weights`: its
    weight policy. `ahead`: by stage, how many micro-batches its forwards may be ahead of its STEPs, where those are on
    another device and without a flush; then also `in_flight`. `most`: stashes that a device may hold where orders are
    made for given costs (`costed.py`); None: they stay as they are.
    """

    name: str
    stages: int
    pipelines: tuple[Pipeline, ...]
    orders: tuple[tuple[Op, ...], ...]
    weights: str = FLUSH
    ahead: tuple[int, ...] = ()
    most: int | None = None

    @property
    def takes_all_room(self) -> bool:
        """Whether nothing but the room limits its stashes: what it holds depends on costs and room."""
        return self.most is not None and self.most >= self.stages * sum(len(p.micro_batches) for p in self.pipelines)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Most stashes of each stage alive at once on one device; a stash leaves with its B, or with its W."""
        if self.ahead:
            return self.ahead
        most = [0] * self.stages
        for order in self.orders:
            alive: dict[int, int] = {}
            for op in order:
                if op.kind == Kind.F:
                    alive[op.stage] = alive.get(op.stage, 0) + 1
                    most[op.stage] = max(most[op.stage], alive[op.stage])
                elif op.kind in (Kind.B, Kind.W):
                    alive[op.stage] = alive.get(op.stage, 0) - 1
        return tuple(most)


def pipeline(devices: Iterable[int], micro_batches: Iterable[int]) -> Pipeline:
    """A pipeline whose stages run forward and backward on the same device."""
    route = tuple(devices)
    return Pipeline(route, route, tuple(micro_batches))


def forward(stage: int, micro_batch: int) -> Op:
    """F of one micro-batch."""
    return Op(Kind.F, stage, micro_batch)


def backward(stage: int, micro_batch: int) -> Op:
    """B of one micro-batch."""
    return Op(Kind.B, stage, micro_batch)


def input_backward(stage: int, micro_batch: int) -> Op:
    """I of one micro-batch."""
    return Op(Kind.I, stage, micro_batch)


def weight_backward(stage: int, micro_batch: int) -> Op:
    """W of one micro-batch."""
    return Op(Kind.W, stage, micro_batch)


def unsplit(layout: Layout) -> Layout:
    """The same layout for layers whose backward cannot be split: B in the place of every I, and no W."""

    def whole(op: Op) -> Op:
        return op._replace(kind=Kind.B) if op.kind is Kind.I else op

    orders = tuple(tuple(whole(op) for op in order if op.kind is not Kind.W) for order in layout.orders)
    return replace(layout, orders=orders)


def require(condition: bool, name: str, reason: str) -> None:
    """Raises ScheduleError saying why this schedule does not exist for these numbers."""
    if not condition:
        raise ScheduleError(f"{name}: {reason}")
