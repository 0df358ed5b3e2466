"""What a rank keeps of a stage between steps: parameters, gradients, buffers and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .errors import RunError

DEFAULT_RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 1e-3, "adamw": 1e-3}
STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}


def make_optimizer(kind: str, parameters: Sequence[Tensor], rate: float, fused: bool) -> torch.optim.Optimizer:
    """The torch optimizer a workload names, torch's defaults except the rate and a momentum of 0.9.

    `fused` steps need no temporaries; without it, foreach is off, so that there is one tensor's worth.
    """
    options: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    if kind in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9 if kind == "momentum" else 0.0, **options)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=rate, **options)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, **options)
    raise RunError(f"optimizer {kind!r} cannot be executed; known: {', '.join(STATE_NAMES)}")


class StageWeights:
    """One replica of a stage's trained and untrained state.

    Gradients live in one flat buffer per dtype (what replicas reduce); `accumulators` are views of it
    with the parameters' shapes, and the parameters' `.grad`. Optimizer state is allocated at once, as planned.

    Attributes:
        parameters, buffers, accumulators: by "<layer id>.<name in the layer>".
        gradients: the flat buffers.
        states: per optimizer state name, tensors by parameter name (the step counter apart).
    """

    def __init__(self, modules: Mapping[int, nn.Module], optimizer: str, rate: float) -> None:
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        trainable: dict[str, Tensor] = {}
        for layer_id, module in modules.items():
            for name, parameter in module.named_parameters():
                value = self.parameters[f"{layer_id}.{name}"] = parameter.detach()
                if parameter.requires_grad:
                    trainable[f"{layer_id}.{name}"] = value
            self.buffers.update({f"{layer_id}.{name}": b.detach() for name, b in module.named_buffers()})
        self.gradients, self.accumulators = _flat_gradients(trainable)
        for name, value in trainable.items():
            value.grad = self.accumulators[name]
        self.optimizer: torch.optim.Optimizer | None = None
        self.states: dict[str, dict[str, Tensor]] = {name: {} for name in STATE_NAMES[optimizer]}
        self._counters: dict[str, Tensor] = {}
        if trainable:
            fused = all(p.is_floating_point() for p in trainable.values())
            self.optimizer = make_optimizer(optimizer, list(trainable.values()), rate, fused)
            self._allocate_state(trainable)

    def _allocate_state(self, trainable: Mapping[str, Tensor]) -> None:
        assert self.optimizer is not None
        for name, parameter in trainable.items():
            state: dict[str, Tensor] = {key: torch.zeros_like(parameter) for key in self.states}
            for key, tensor in state.items():
                self.states[key][name] = tensor
            if "exp_avg" in state:
                state["step"] = self._counters[name] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            if state:
                self.optimizer.state[parameter] = state

    def zero_gradients(self) -> None:
        """Empties the accumulators; at the start of a step."""
        for flat in self.gradients:
            flat.zero_()

    def step(self) -> None:
        """Updates the parameters in place from the accumulated gradients."""
        if self.optimizer is not None:
            self.optimizer.step()

    def set_step(self, steps: int) -> None:
        """Tells the optimizer that `steps` steps have been taken (after loading a checkpoint)."""
        for counter in self._counters.values():
            counter.fill_(steps)

    def named_state(self, layer_names: Sequence[str]) -> dict[str, Tensor]:
        """Every tensor of the replica, the live ones, by checkpoint key.

        "parameters/<layer>/<name>", "buffers/<layer>/<name>", "optimizer/<state>/<layer>/<name>".
        """
        groups: dict[str, Mapping[str, Tensor]] = {"parameters": self.parameters, "buffers": self.buffers}
        groups |= {f"optimizer/{key}": tensors for key, tensors in self.states.items()}
        return {
            f"{group}/{public_name(name, layer_names)}": tensor
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        }


def public_name(name: str, layer_names: Sequence[str]) -> str:
    """ "<layer id>.<name>" as "<layer name>/<name>": what stays the same under another partition."""
    layer_id, _, rest = name.partition(".")
    return f"{layer_names[int(layer_id)]}/{rest}"


def _flat_gradients(trainable: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    flats: list[Tensor] = []
    views: dict[str, Tensor] = {}
    for dtype in dict.fromkeys(p.dtype for p in trainable.values()):
        names = [name for name, p in trainable.items() if p.dtype == dtype]
        device = trainable[names[0]].device
        flat = torch.zeros(sum(trainable[name].numel() for name in names), dtype=dtype, device=device)
        pieces = torch.split(flat, [trainable[name].numel() for name in names])
        views |= {name: piece.view(trainable[name].shape) for name, piece in zip(names, pieces, strict=True)}
        flats.append(flat)
    return flats, views
