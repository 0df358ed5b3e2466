"""Where the messages of a plan go, and the numbers by which both ends know them within a step."""

from __future__ import annotations

from collections.abc import Iterable

from ...planner.plan import Kind, Op, Plan
from .agreement import Agreement

_MOST = 4096
"""So many micro-batches have numbers of their own: messages of one number are matched in list order."""


class Addresses:
    """Of one plan; `agreements`: one for each size of micro-batches; `widest`: the most tensors between two stages.

    Numbers of activations and gradients come first, then those of stashes, then of parameters.
    """

    def __init__(self, plan: Plan, agreements: Iterable[Agreement], widest: int = 1) -> None:
        self._stages, self._micro_batches = len(plan.stages), min(plan.problem.workload.micro_batches, _MOST)
        self._routes = {m: p for p in plan.pipelines for m in p.micro_batches}
        known = list(agreements)
        self._widest = widest
        self._pieces = max(widest * len(plan.stages), *(agreed.widest for agreed in known))
        self._parameters = max(agreed.most_parameters for agreed in known)

    def device(self, op: Op) -> int:
        """The device at the other end of an activation or a gradient."""
        route = self._routes[op.micro_batch]
        forward = op.kind in (Kind.SEND_F, Kind.RECV_F)
        return route.forward[op.peer] if forward else route.backward[op.peer]

    def devices(self, op: Op) -> tuple[int, int]:
        """Forward and backward device of a micro-batch's stage."""
        route = self._routes[op.micro_batch]
        return route.forward[op.stage], route.backward[op.stage]

    def tag(self, op: Op, source: int, target: int) -> int:
        """Of the first activation or gradient between two stages; the others follow."""
        place = (source * self._stages + target) * self._micro_batches + op.micro_batch % self._micro_batches
        return place * self._widest

    def stash_tag(self, op: Op, piece: int) -> int:
        """Of one piece of a stash."""
        number = op.stage * self._micro_batches + op.micro_batch % self._micro_batches
        return self._first_stash + number * self._pieces + piece

    def parameter_tag(self, stage: int) -> int:
        """Of the first parameter of a stage; the others follow."""
        first = self._first_stash + self._stages * self._micro_batches * self._pieces
        return first + stage * self._parameters

    @property
    def _first_stash(self) -> int:
        return self._stages * self._stages * self._micro_batches * self._widest
