"""Losses and gradients that are NaN or infinite: found before they reach the parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..basics import DYNAMIC, STOP, Training
from ..state import StageWeights, public_name

PROBED = 1 << 16
"""Elements of the parameter by which a first stage's backwards are judged, at most."""


class NotFinite(ArithmeticError):
    """A loss or gradient with NaN or infinity in it; says which."""


class Guard:
    """One rank's checks where a run stops at the first number that is not finite.

    Every loss is looked at, the gradient that every backward hands back (of the first stage, which hands back none,
    that of a small parameter near its beginning), and all gradients of a stage before its STEP. With a dynamic loss
    scale gradients are not: what overflows is left out by itself. On a device that queues its work, losses and
    gradients of a step are looked at together at its end, so that nothing waits.
    """

    def __init__(
        self, training: Training, weights: Mapping[int, StageWeights], layer_names: Sequence[str], queues: bool
    ) -> None:
        self._stops = training.on_nan == STOP
        self._gradients = self._stops and training.loss_scale != DYNAMIC
        self._norm_tells = training.agrees
        self._weights, self._layer_names, self._queues = weights, layer_names, queues
        self._probe = _probe(weights[0]) if 0 in weights else None
        self._flags: dict[int, Tensor] = {}

    def loss(self, value: Tensor | float) -> None:
        """After a forward of the last stage. Raises NotFinite."""
        if self._stops and isinstance(value, float) and not math.isfinite(value):
            raise NotFinite(f"the loss is {value}")

    def handed_back(self, gradient: Tensor | None) -> None:
        """After a backward; None: of the first stage. Raises NotFinite."""
        looked_at = self._probe if gradient is None else gradient
        if self._gradients and not self._queues and looked_at is not None and not finite(looked_at):
            raise NotFinite("its gradient is not finite")

    def stepping(self, stage: int) -> None:
        """Before a STEP, when all gradients are summed. Raises NotFinite naming a parameter."""
        if not self._gradients or self._norm_tells:
            return
        weights = self._weights[stage]
        for flat in (*weights.stepped_gradients, *weights.tied_gradients.values()):
            if self._queues:
                with _disable_current_modes():  # no memory of the step's
                    good = torch.isfinite(flat.sum())
                    self._flags[stage] = good & self._flags[stage] if stage in self._flags else good
            elif not finite(flat):
                raise NotFinite(f"the gradient of {self._worst(stage)} is not finite")

    def settled(self) -> Iterator[tuple[int, NotFinite]]:
        """Once the device has done what was queued: stages whose gradients were not finite, and what to say of them."""
        flags, self._flags = self._flags, {}
        for stage, flag in flags.items():
            if not bool(flag):
                yield stage, NotFinite(f"the gradient of {self._worst(stage)} is not finite")

    def _worst(self, stage: int) -> str:
        """A parameter of the stage whose gradient is not finite."""
        for name, gradient in self._weights[stage].accumulators.items():
            if not finite(gradient):
                return public_name(name, self._layer_names)
        return f"stage {stage}"


def finite(tensor: Tensor) -> bool:
    """Whether all elements are: one pass, a second one only where their sum is not."""
    if not torch._C._len_torch_dispatch_stack():  # looking costs less than leaving modes that there are none of
        return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())
    with _disable_current_modes():  # no memory of the step's
        return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def _probe(weights: StageWeights) -> Tensor | None:
    """The gradient of a small parameter near the first stage's beginning: what is wrong behind it arrives there."""
    return next((g for g in weights.accumulators.values() if g.numel() <= PROBED and g.is_floating_point()), None)
