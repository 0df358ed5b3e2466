"""What a rank keeps of a stage between steps: parameters, gradients, buffers and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...models.lanes import Shard, shards_of
from ...planner.problem import UNFUSED
from ..basics import RunError, Training
from .parts import ALL, Part, Piece, Shares
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


def set_rate(optimizer: torch.optim.Optimizer, rate: float, settings: Mapping[str, Any] | None = None) -> None:
    """The rate of all parameters from the next step on, and other settings of theirs."""
    for group in optimizer.param_groups:
        group.update({"lr": rate, **(settings or {})})


class StageWeights:
    """One replica of a stage's trained and untrained state; parameters and buffers alone where it has no `part`.

    Gradients live in one flat buffer per dtype (what replicas reduce); `accumulators` are views of it
    with the parameters' shapes, and the parameters' `.grad`. Optimizer state is allocated at once, as planned. Of tied
    parameters only those that `sharing` has this stage keep are trained and saved here.

    Args:
        masters: float32 values of the trained parameters by name, where these are 16-bit copies: the optimizer
            steps the masters, then the copies are written. Gradients are summed in float32.
        part: what this replica steps, None: nothing. Where replicas share the optimizer (see `parts`), `states`, and
            `trained` but for tied parameters, have pieces.
        remember: keep the gradient of the last step, weight decay included where torch adds it to the gradient.

    Attributes:
        parameters, buffers, accumulators: by "<layer id>.<name in the layer>"; all in the order of `by_name`.
        gradients: the flat buffers. summed: whose gradients these are, in their order.
        tied_gradients: by group number, those of tied parameters that TIE sums.
        shards: how a team divides parameters, by name; divided_ties: numbers of the tied ones among them.
        states: per optimizer state name, tensors by parameter name (the step counter apart).
        tied: by group number, value and accumulator of the tied parameters kept here, for the rank's other stages.
        trained: by name, what the optimizer steps: parameters, or their masters. last_gradients: theirs, if remembered.
        shares: this replica's part, where it is not all. taken: steps taken since the very first. changing, frozen:
            names of the parameters that somebody trains, each once, and of those that nobody does.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        optimizer: str,
        training: Training,
        masters: Mapping[str, Tensor] | None = None,
        sharing: Sharing | None = None,
        part: Part | None = ALL,
        remember: bool = False,
    ) -> None:
        sharing = sharing or Sharing()
        self._saved_as = sharing.saved_as
        cut = ((f"{layer_id}.{name}", shard) for layer_id, m in modules.items() for name, shard in shards_of(m).items())
        self.shards = dict(cut)
        self.divided_ties = {number for number, name in sharing.kept.items() if name in self.shards}
        trainable = self._keep(modules, masters or {}, sharing, part)
        self.trained, self.taken = self._accumulate(trainable, sharing, part), 0
        self._kept = dict(self.parameters)
        self._decay = training.weight_decay or 0.0
        self._decays_itself = optimizer in UNFUSED
        self.last_gradients = _flat_gradients(self.trained)[1] if remember else {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.states: dict[str, dict[str, Tensor]] = {name: {} for name in STATE_NAMES[optimizer] if part is not None}
        self._counters: dict[str, Tensor] = {}
        if self.trained:
            fused = all(p.is_floating_point() for p in self.trained.values())
            own = replace(training, weight_decay=0.0) if self._decays_itself else training
            self.optimizer = make_optimizer(optimizer, list(self.trained.values()), own, fused)
            self._allocate_state(self.trained)
        self.tied = {n: (self.parameters[k], self.accumulators.get(k)) for n, k in sharing.kept.items()}
        self._use(modules, sharing)

    def _keep(
        self, modules: Mapping[int, nn.Module], masters: Mapping[str, Tensor], sharing: Sharing, part: Part | None
    ) -> dict[str, Tensor]:
        """Parameters and buffers kept here; returns what the optimizer trains of them, masters instead of copies."""
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        trainable: dict[str, Tensor] = {}
        for layer_id, module in modules.items():
            for name, parameter in module.named_parameters():
                full = f"{layer_id}.{name}"
                if full in sharing.same or full in sharing.lent:
                    continue
                value = self.parameters[full] = parameter.detach()
                if parameter.requires_grad and part is not None:
                    trainable[full] = masters.get(full, value)
            self.buffers.update({f"{layer_id}.{name}": b.detach() for name, b in module.named_buffers()})
        self.buffers, trainable = by_name(self.buffers), by_name(trainable)
        self._masters = {name: value for name, value in trainable.items() if name in masters}
        return trainable

    def _accumulate(self, trainable: dict[str, Tensor], sharing: Sharing, part: Part | None) -> dict[str, Tensor]:
        """Makes the accumulators, tied ones apart; returns what this replica trains: all, or its part."""
        apart = {sharing.kept[n]: n for n in sharing.summed & sharing.kept.keys() if sharing.kept[n] in trainable}
        self.summed = {k: v for k, v in trainable.items() if k not in apart}
        self.shares = Shares.of(part, self.parameters, self.summed) if part is not None and part.of > 1 else None
        if self.shares is None:
            self.gradients, self.accumulators = _flat_gradients(self.summed)
        else:
            self.gradients, self.accumulators = self.shares.gradients, dict(self.shares.accumulators)
            self.parameters |= self.shares.parameters
            self.summed = self.shares.accumulators
            self._masters = {name: value for name, value in self._masters.items() if name in apart}
        self.tied_gradients: dict[int, Tensor] = {}
        for name, number in apart.items():
            (self.tied_gradients[number],), views = _flat_gradients({name: trainable[name]})
            self.accumulators |= views
        if self.shares is not None:
            trainable = by_name(self.shares.stepped | {name: trainable[name] for name in apart})
        for name, value in trainable.items():
            value.grad = self.accumulators[name] if value.grad is None else value.grad
        return trainable

    def _use(self, modules: Mapping[int, nn.Module], sharing: Sharing) -> None:
        """Layers use what is kept once: what other layers or stages lend, and this replica's part of a flat buffer."""
        used = {k: (self.parameters[kept], self.accumulators.get(kept)) for k, kept in sharing.same.items()}
        for name, (shared, accumulator) in (sharing.lent | used).items():
            self.parameters[name] = shared
            if accumulator is not None:
                self.accumulators[name] = accumulator
        named = {f"{i}.{name}": p for i, module in modules.items() for name, p in module.named_parameters()}
        moved = {} if self.shares is None else self.shares.parameters
        for name in (sharing.lent | used | moved).keys() & named.keys():
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
        yield from () if self.shares is None else self.shares.values

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

    @property
    def divided_gradients(self) -> list[Tensor]:
        """Of `stepped_gradients`, those of parameters that a team divides."""
        if self.shares is not None:
            found = self.shares.stepped.items()
            return [value.grad for name, value in found if name in self.shards and value.grad is not None]
        return [self.accumulators[name] for name in self.summed if name in self.shards]

    def named_shards(self, layer_names: Sequence[str]) -> dict[str, Shard]:
        """How a team divides what is in `named_state`, by the same keys."""
        groups = ("parameters", *(f"optimizer/{key}" for key in self.states))
        named = {public_name(self._saved_as.get(name, name), layer_names): self.shards[name] for name in self.shards}
        return {f"{group}/{name}": shard for group in groups for name, shard in named.items()}

    def forget_gradients(self) -> None:
        """What was remembered of the last step is zero from now on."""
        for gradient in self.last_gradients.values():
            gradient.zero_()

    def step(self, rate: float, settings: Mapping[str, Any] | None = None) -> None:
        """Updates the parameters in place from the accumulated gradients; `settings`: of a group, besides its rate."""
        self.taken += 1
        if self.optimizer is not None:
            if self._decays_itself and self._decay:
                self._add_decay({name: value.grad for name, value in self.trained.items() if value.grad is not None})
            for name, gradient in self.last_gradients.items():
                gradient.copy_(self.accumulators[name])
            if self._decay and not self._decays_itself:
                self._add_decay(self.last_gradients)
            set_rate(self.optimizer, rate, settings)
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
        for name, copy in {} if self.shares is None else self.shares.copies.items():
            copy.copy_(self.trained[name])

    @property
    def stepped_gradients(self) -> list[Tensor]:
        """Of the flat buffers what this replica steps, once they are summed: all, or its part."""
        return self.gradients if self.shares is None else self.shares.own_gradients

    def set_step(self, steps: int) -> None:
        """Tells the optimizer that `steps` steps have been taken (after loading a checkpoint)."""
        self.taken = steps
        for counter in self._counters.values():
            counter.fill_(steps)
        self._write_copies()

    def named_state(self, layer_names: Sequence[str]) -> dict[str, Tensor]:
        """Every tensor of the replica, the live ones, by checkpoint key; masters in place of their copies.

        "parameters/<layer>/<name>", "buffers/<layer>/<name>", "optimizer/<state>/<layer>/<name>". A tied parameter has
        the name of the tie's first member wherever it is kept. Of what replicas share out, keys end with the piece.
        """
        trained, pieces = {**self._kept, **self._masters}, dict[str, Piece]()
        if self.shares is not None:
            pieces = self.shares.pieces
            trained = {name: value for name, value in trained.items() if name not in self.shares.mastered}
            trained |= {name: self.trained[name] for name in self.shares.copies}
        groups: dict[str, Mapping[str, Tensor]] = {"parameters": trained, "buffers": self.buffers}
        groups |= {f"optimizer/{key}": tensors for key, tensors in self.states.items()}
        found = {}
        for group, tensors in groups.items():
            for name, tensor in tensors.items():
                piece = "" if tensor is self._kept.get(name) else pieces.get(name, "")
                found[f"{group}/{public_name(self._saved_as.get(name, name), layer_names)}{piece}"] = tensor
        return found


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
