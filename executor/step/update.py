"""The end of a step on one rank: clip, unscale, step; and what all ranks must agree on before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils._python_dispatch import _disable_current_modes

from ...planner.graph import StageCosts, holders
from ...planner.plan import Plan
from ..basics import SKIP, LossScaler, Training
from ..state import StageReplica
from ..wires import Transport
from .finite import NotFinite

GROUP = "all"
"""The group of all ranks, which a transport must have where training `agrees`."""
_PIECE = 1 << 14  # elements: float32 sums of so many squares are exact to about 1e-6
_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_


class Update:
    """What a rank does with its stages' gradients.

    Attributes:
        scaler: the loss scale, the same on every rank.
        left_out: whether all ranks leave out the step under way, since something in it is not finite.
        settings: what optimizers are told instead of the training's: rate ("lr"), betas, momentum.
        grad_norm: of the last agreement: of the whole model's gradients, unscaled, before clipping. None without.
    """

    def __init__(
        self,
        plan: Plan,
        training: Training,
        transport: Transport,
        replicas: Mapping[int, StageReplica],
    ) -> None:
        self.training = training
        self.scaler = LossScaler.of(training)
        self.settings: Mapping[str, Any] = {}
        self.grad_norm: float | None = None
        self._wires = transport.host  # connections between devices are for stages and their replicas
        owners = holders(plan)
        mine, first = transport.rank, transport.seat.lane == 0
        self._counted = [
            replica.weights.stepped_gradients if first else replica.weights.divided_gradients
            for stage, replica in replicas.items()
            if owners[stage][0] == mine or replica.weights.shares is not None
        ]
        ties = {tie.number: tie for tie in StageCosts.of(plan.problem.model, plan.stages).ties}
        for replica in replicas.values():
            for number, flat in replica.weights.tied_gradients.items():
                counts = first or number in replica.weights.divided_ties
                if counts and min(ties[number].copies(owners)) == mine:
                    self._counted.append([flat])
        self._buffers = [t for replica in replicas.values() for t in replica.weights.buffers.values()]
        self._kept: list[Tensor] = []
        self._factor = 1.0
        self.left_out = False

    def begin(self) -> None:
        """At the start of a step."""
        self._factor, self.left_out = 1.0 / self.scaler.scale, False
        if self.training.on_nan == SKIP:
            with _disable_current_modes():  # in the host's memory
                self._kept = [buffer.to("cpu", copy=True) for buffer in self._buffers]

    def end(self) -> None:
        """At the end of a step: one that was left out for its losses leaves no trace in buffers either."""
        if self.left_out and self._kept:
            with _disable_current_modes():
                for buffer, kept in zip(self._buffers, self._kept, strict=True):
                    buffer.copy_(kept)

    def agree(self, finite: bool = True) -> None:
        """Collective, once all gradients are reduced: the model's norm, and whether this step is left out.

        Every stage and every tied parameter counts once, at its lowest holder, or part by part where replicas share the
        optimizer, and what all lanes of a team have, at the first. One float64 travels, the sum of the squares; where
        any gradient is not finite, or this rank's losses (`finite`) are not, neither is the sum.
        Raises NotFinite: gradients of this rank are what a run stops for.
        """
        with _disable_current_modes():  # a few numbers, no memory of the step's
            squares = sum(_norm(gradients) ** 2 for gradients in self._counted) if finite else math.nan
            if not math.isfinite(squares) and not self.training.skips:
                raise NotFinite("the norm of its gradients is not finite")
            total = torch.tensor(squares, dtype=torch.float64)
            self._wires.all_reduce(total, GROUP).wait()
            self.grad_norm = math.sqrt(total.item()) / self.scaler.scale
        self.left_out = self.training.skips and not math.isfinite(self.grad_norm)
        if self.training.clip_norm is not None:
            self._factor *= min(1.0, self.training.clip_norm / (self.grad_norm + _EPS))
        self.scaler.update(not self.left_out)

    def apply(self, replica: StageReplica, step: int) -> None:
        """Steps one stage, unless the step is left out."""
        if self.left_out:
            return
        if self._factor != 1.0:
            for flat in (*replica.weights.stepped_gradients, *replica.weights.tied_gradients.values()):
                flat.mul_(self._factor)
        replica.weights.step(self.training.rate(step), self.settings)


def _norm(gradients: list[Tensor]) -> float:
    """The 2-norm of one stage's gradients."""
    pieces = [piece for flat in gradients for piece in torch.split(flat, _PIECE)]
    return get_total_norm(pieces).item()
