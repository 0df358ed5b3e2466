"""Weights as they will be some updates later, from what the optimizer knows now.

PipeOptim (Guan et al. 2023, arXiv:2312.00839) predicts W - s * rate * dW, dW what the optimizer would apply now.
SpecTrain (Chen et al. 2018, arXiv:1809.02839, section 4) takes the smoothed gradient in its place, whatever the
optimizer makes of it: column `smoothed`. W is the newest version, s and the rate are the caller's:

| optimizer | dW | `smoothed` |
|---|---|---|
| sgd | g | g |
| momentum | b; with `momentum_first` mu * b + g | b |
| nesterov | g + mu * b | b |
| adam, adamw | m_hat / (sqrt(v_hat) + eps) | m |
| rmsprop | g / (sqrt(v) + eps) | g |

g is the gradient of the last update, weight decay included, zero before the first of a run; b, m, v are torch's
momentum_buffer, exp_avg, and exp_avg_sq or square_avg. AdamW's decay is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...planner.graph import PREDICTED_AT_ONCE
from ..basics import DEFAULT_RATES, RunError, Training


class Known(Protocol):
    """What a prediction needs of a stage, by parameter name; `weights.StageWeights` has it of the newest version."""

    @property
    def parameters(self) -> Mapping[str, Tensor]: ...
    @property
    def trained(self) -> Mapping[str, Tensor]: ...
    @property
    def states(self) -> Mapping[str, Mapping[str, Tensor]]: ...
    @property
    def last_gradients(self) -> Mapping[str, Tensor]: ...
    @property
    def taken(self) -> int: ...


@dataclass(frozen=True)
class Predictor:
    """One optimizer's prediction. `momentum_first`, `smoothed`: see `planner.weight_policy`.

    Raises RunError: unknown optimizer.
    """

    optimizer: str
    training: Training
    momentum_first: bool = False
    smoothed: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in DEFAULT_RATES:
            raise RunError(f"optimizer {self.optimizer!r} cannot be predicted; known: {', '.join(DEFAULT_RATES)}")

    def predict(self, weights: Known, rate: float, ahead: int) -> dict[str, Tensor]:
        """New tensors for the trained parameters of a stage by name: its weights `ahead` updates of `rate` later."""
        found: dict[str, Tensor] = {}
        distance = rate * ahead
        with torch.no_grad():
            for name, value in weights.trained.items():
                known = {"value": value} | {key: tensors[name] for key, tensors in weights.states.items()}
                if name in weights.last_gradients:
                    known["gradient"] = weights.last_gradients[name]
                out = found[name] = torch.empty_like(weights.parameters[name])
                if out.dtype == value.dtype:
                    self.write(out, known, weights.taken, distance)
                    continue
                for piece, parts in _pieces(out, known):
                    wide = torch.empty_like(parts["value"])
                    self.write(wide, parts, weights.taken, distance)
                    piece.copy_(wide)
        return found

    def write(self, out: Tensor, known: Mapping[str, Tensor], taken: int, distance: float) -> None:
        """Writes value - distance * dW into `out`, without temporaries.

        Args:
            known: "value", the optimizer's state by torch's names, and "gradient" where dW has g.
            taken: updates since the very first.
            distance: rate times updates.
        """
        value, kind, options = known["value"], self.optimizer, self.training
        mean = known.get("momentum_buffer", known.get("exp_avg", known.get("gradient"))) if self.smoothed else None
        if mean is not None:
            torch.add(value, mean, alpha=-distance, out=out)
        elif kind == "momentum" and not self.momentum_first:
            torch.add(value, known["momentum_buffer"], alpha=-distance, out=out)
        elif kind in ("sgd", "momentum", "nesterov"):
            torch.add(value, known["gradient"], alpha=-distance, out=out)
            if kind != "sgd":
                out.add_(known["momentum_buffer"], alpha=-distance * options.momentum)
        elif kind == "rmsprop":
            torch.sqrt(known["square_avg"], out=out).add_(options.eps)
            torch.div(known["gradient"], out, out=out).mul_(-distance).add_(value)
        elif taken == 0:  # of adam and adamw, from here on: nothing is known
            out.copy_(value)
        else:
            first, second = options.betas
            torch.div(known["exp_avg_sq"], 1 - second**taken, out=out).sqrt_().add_(options.eps)
            torch.div(known["exp_avg"], out, out=out).mul_(-distance / (1 - first**taken)).add_(value)


def _pieces(out: Tensor, known: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """A tensor and what belongs to it in pieces, so that little memory is needed beside them."""
    columns = {key: torch.split(tensor.reshape(-1), PREDICTED_AT_ONCE) for key, tensor in known.items()}
    for number, piece in enumerate(torch.split(out.view(-1), PREDICTED_AT_ONCE)):
        yield piece, {key: parts[number] for key, parts in columns.items()}
