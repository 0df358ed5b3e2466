"""What a rank keeps of a stage between steps: parameters, gradients, buffers and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...planner.problem import UNFUSED
from ..basics import RunError, Training
from .ties import Sharing

STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "nesterov": ("momentum_buffer",),
    "rmsprop": ("square_avg",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}


def make_optimizer(kind: str, parameters: Sequence[Tensor], training: Training, fused: bool) -> torch.optim.Optimizer:
    """The torch optimizer a workload names; the rate is set anew at every step.

    `fused` steps need no temporaries; without it (torch has no fused RMSprop), foreach is off, so that there are two
    tensors' in a row. StageWeights adds RMSprop's weight decay itself, in place.
    """
    options: dict[str, Any] = {"fused": True} if fused and kind != "rmsprop" else {"foreach": False}
    options["lr"] = training.rate(0)
    if training.weight_decay is not None:
        options["weight_decay"] = training.weight_decay
    if kind in ("sgd", "momentum", "nesterov"):
        momentum = 0.0 if kind == "sgd" else training.momentum
        nesterov = kind == "nesterov" and momentum > 0  # torch refuses it without
        return torch.optim.SGD(parameters, momentum=momentum, nesterov=nesterov, **options)
    if kind == "rmsprop":
        return torch.optim.RMSprop(parameters, alpha=training.smoothing, eps=training.eps, **options)
    options |= {"betas": training.betas, "eps": training.eps}
    if kind == "adam":
        return torch.optim.Adam(parameters, **options)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, **options)
    raise RunError(f"optimizer {kind!r} cannot be executed; known: {', '.join(STATE_NAMES)}")


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of all parameters from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class StageWeights:
    """One replica of a stage's trained and untrained state; parameters and buffers alone where it is not `trained`.

    Gradients live in one flat buffer per dtype (what replicas reduce); `accumulators` are views of it
    with the parameters' shapes, and the parameters' `.grad`. Optimizer state is allocated at once, as planned. Of tied
    parameters only those that `sharing` has this stage keep are trained and saved here.

    Args:
        masters: float32 values of the trained parameters by name, where these are 16-bit copies: the optimizer
            steps the masters, then the copies are written. Gradients are summed in float32.
        remember: keep the gradient of the last step, weight decay included where torch adds it to the gradient.

    Attributes:
        parameters, buffers, accumulators: by "<layer id>.<name in the layer>"; all in the order of `by_name`.
        gradients: the flat buffers. summed: whose gradients these are, in their order.
        tied_gradients: by group number, those of tied parameters that TIE sums.
        states: per optimizer state name, tensors by parameter name (the step counter apart).
        tied: by group number, value and accumulator of the tied parameters kept here, for the rank's other stages.
        trained: by name, what the optimizer steps: parameters, or their masters. last_gradients: theirs, if remembered.
        taken: steps taken since the very first. changing, frozen: names of the parameters that
            somebody trains, each once, and of those that nobody does.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        optimizer: str,
        training: Training,
        masters: Mapping[str, Tensor] | None = None,
        sharing: Sharing | None = None,
        trained: bool = True,
        remember: bool = False,
    ) -> None:
        sharing = sharing or Sharing()
        self._saved_as = sharing.saved_as
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        trainable: dict[str, Tensor] = {}
        for layer_id, module in modules.items():
            for name, parameter in module.named_parameters():
                if f"{layer_id}.{name}" in sharing.same or f"{layer_id}.{name}" in sharing.lent:
                    continue
                value = self.parameters[f"{layer_id}.{name}"] = parameter.detach()
                if parameter.requires_grad and trained:
                    trainable[f"{layer_id}.{name}"] = (masters or {}).get(f"{layer_id}.{name}", value)
            self.buffers.update({f"{layer_id}.{name}": b.detach() for name, b in module.named_buffers()})
        self.buffers, trainable = by_name(self.buffers), by_name(trainable)
        self._masters = {name: value for name, value in trainable.items() if name in (masters or {})}
        apart = {sharing.kept[n]: n for n in sharing.summed & sharing.kept.keys() if sharing.kept[n] in trainable}
        self.summed = {k: v for k, v in trainable.items() if k not in apart}
        self.gradients, self.accumulators = _flat_gradients(self.summed)
        self.tied_gradients: dict[int, Tensor] = {}
        for name, number in apart.items():
            (self.tied_gradients[number],), views = _flat_gradients({name: trainable[name]})
            self.accumulators |= views
        for name, value in trainable.items():
            value.grad = self.accumulators[name]
        self.trained, self.taken = trainable, 0
        self._decay = training.weight_decay or 0.0
        self._decays_itself = optimizer in UNFUSED
        self.last_gradients = _flat_gradients(trainable)[1] if remember else {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.states: dict[str, dict[str, Tensor]] = {name: {} for name in STATE_NAMES[optimizer] if trained}
        self._counters: dict[str, Tensor] = {}
        if trainable:
            fused = all(p.is_floating_point() for p in trainable.values())
            own = replace(training, weight_decay=0.0) if self._decays_itself else training
            self.optimizer = make_optimizer(optimizer, list(trainable.values()), own, fused)
            self._allocate_state(trainable)
        self._kept = dict(self.parameters)
        self.tied = {n: (self.parameters[k], self.accumulators.get(k)) for n, k in sharing.kept.items()}
        used = {k: (self.parameters[kept], self.accumulators.get(kept)) for k, kept in sharing.same.items()}
        for name, (shared, accumulator) in (sharing.lent | used).items():
            self.parameters[name] = shared
            if accumulator is not None:
                self.accumulators[name] = accumulator
        named = {f"{i}.{name}": p for i, module in modules.items() for name, p in module.named_parameters()}
        for name in (sharing.lent | used).keys() & named.keys():
            named[name].data = self.parameters[name]  # the layer's own is not kept beside it
        once = {id(self.parameters[name]): name for name in reversed(named) if named[name].requires_grad}
        self.changing = tuple(reversed(once.values()))
        self.frozen = {name for name, parameter in named.items() if not parameter.requires_grad}
        self.parameters = by_name(self.parameters)

    def tensors(self) -> Iterator[Tensor]:
        """All that it keeps, some of it more than once."""
        for named in (self.parameters, self.buffers, self.trained, self.last_gradients, *self.states.values()):
            yield from named.values()
        yield from (*self.gradients, *self.tied_gradients.values(), *self._counters.values())

    def _allocate_state(self, trainable: Mapping[str, Tensor]) -> None:
        assert self.optimizer is not None
        for name, parameter in trainable.items():
            state: dict[str, Tensor] = {key: torch.zeros_like(parameter) for key in self.states}
            for key, tensor in state.items():
                self.states[key][name] = tensor
            if state.keys() & {"exp_avg", "square_avg"}:
                state["step"] = self._counters[name] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            if state:
                self.optimizer.state[parameter] = state

    def zero_gradients(self) -> None:
        """Empties the accumulators; at the start of a step."""
        for flat in (*self.gradients, *self.tied_gradients.values()):
            flat.zero_()

    def forget_gradients(self) -> None:
        """What was remembered of the last step is zero from now on."""
        for gradient in self.last_gradients.values():
            gradient.zero_()

    def step(self, rate: float) -> None:
        """Updates the parameters in place from the accumulated gradients."""
        self.taken += 1
        if self.optimizer is not None:
            if self._decays_itself and self._decay:
                self._add_decay(self.accumulators)
            for name, gradient in self.last_gradients.items():
                gradient.copy_(self.accumulators[name])
            if self._decay and not self._decays_itself:
                self._add_decay(self.last_gradients)
            set_rate(self.optimizer, rate)
            self.optimizer.step()
            self._write_copies()

    def _add_decay(self, gradients: Mapping[str, Tensor]) -> None:
        """As torch does, but in place."""
        with torch.no_grad():
            for name, value in self.trained.items():
                if name in gradients:
                    gradients[name].add_(value, alpha=self._decay)

    def _write_copies(self) -> None:
        for name, master in self._masters.items():
            self.parameters[name].copy_(master)

    def set_step(self, steps: int) -> None:
        """Tells the optimizer that `steps` steps have been taken (after loading a checkpoint)."""
        self.taken = steps
        for counter in self._counters.values():
            counter.fill_(steps)
        self._write_copies()

    def named_state(self, layer_names: Sequence[str]) -> dict[str, Tensor]:
        """Every tensor of the replica, the live ones, by checkpoint key; masters in place of their copies.

        "parameters/<layer>/<name>", "buffers/<layer>/<name>", "optimizer/<state>/<layer>/<name>". A tied parameter has
        the name of the tie's first member wherever it is kept.
        """
        trained = {**self._kept, **self._masters}
        groups: dict[str, Mapping[str, Tensor]] = {"parameters": trained, "buffers": self.buffers}
        groups |= {f"optimizer/{key}": tensors for key, tensors in self.states.items()}
        return {
            f"{group}/{public_name(self._saved_as.get(name, name), layer_names)}": tensor
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        }


def by_name(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the one order that all ranks have, by layer and name: tensors of two ranks are paired in it.

    Dictionaries of two ranks need not have one: a tied parameter comes last where another stage keeps it, and a module
    may register its parameters from a set.
    """
    return {name: named[name] for name in sorted(named, key=_place)}


def _place(name: str) -> tuple[int, str]:
    layer_id, _, rest = name.partition(".")
    return int(layer_id), rest


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
