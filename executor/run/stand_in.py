"""A torch optimizer that stands for those of all stages: what users set and schedulers change in it, stages follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..basics import RunError, Training
from ..state import make_optimizer

OptimizerLike = torch.optim.Optimizer | Callable[[list[Tensor]], torch.optim.Optimizer] | str
"""An optimizer of torch, whose settings are taken; what makes one of parameters, as its class does; or its name."""

_FIELDS = {"weight_decay": "weight_decay", "betas": "betas", "eps": "eps", "alpha": "smoothing"}
"""Settings of a group that are options of a training, and how these are called."""
_MOVES = dict.fromkeys(("momentum", "nesterov"), ("lr", "momentum")) | dict.fromkeys(("adam", "adamw"), ("lr", "betas"))
"""What may change from step to step, and schedulers of torch do change; of the others the rate alone."""
_LAYOUT = ("params", "foreach", "fused", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
_LAYOUT_SETTINGS = frozenset({*_LAYOUT, "capturable", "differentiable", "decoupled_weight_decay", "nesterov"})
"""What is of no matter for the numbers, of schedulers, or told by the optimizer's name."""


class StandIn:
    """The one group of settings that all stages' optimizers have.

    Attributes:
        optimizer: of torch, of one parameter that nobody trains: for schedulers. training: with its settings.

    Raises RunError: it is another optimizer than the plan counts the state of, or has settings that stages have not.
    """

    def __init__(self, given: OptimizerLike | None, planned: str, training: Training) -> None:
        if training.schedule != "constant" and training.decay_steps is None:
            raise RunError(f"a {training.schedule} schedule must say how long it is: decay_steps")
        parameter = nn.Parameter(torch.zeros(()))
        self._moves = _MOVES.get(planned, ("lr",))
        if given is None or isinstance(given, str):
            if given not in (None, planned):
                raise RunError(f"the plan is for the optimizer {planned!r}, not {given!r}")
            self.training = training.of_run(planned, 1)
            self.optimizer = make_optimizer(planned, [parameter], self.training, fused=False)
        else:
            group = _one_group(given, parameter)
            self.training = _training_of(group, _kind(group), planned, training)
            self.optimizer = make_optimizer(planned, [parameter], self.training, fused=False)
            self.optimizer.param_groups[0].update(self._moving(group))
        self._fixed = self._others(self.optimizer.param_groups[0])

    def settings(self, step: int) -> dict[str, Any]:
        """What the stages' optimizers are told before this step. Raises RunError: what cannot change has."""
        group = self.optimizer.param_groups[0]
        if self.training.warmup_steps or self.training.schedule != "constant":
            group["lr"] = self.training.rate(step)
        found = self._others(group)
        for name in self._fixed:
            if found.get(name) != self._fixed[name]:
                raise RunError(
                    f"{name} was {self._fixed[name]} and is {found.get(name)}: only {', '.join(self._moves)} change"
                )
        return self._moving(group)

    def _moving(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _plain(group[name]) for name in self._moves}

    def _others(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _plain(v) for name, v in group.items() if name not in (*self._moves, *_LAYOUT_SETTINGS)}

    def stepped(self) -> None:
        """A step is over: schedulers look whether their optimizer has taken it."""
        self.optimizer.step()


def _one_group(given: Any, parameter: nn.Parameter) -> Mapping[str, Any]:
    """The settings of the optimizer given, or made."""
    made = given if isinstance(given, torch.optim.Optimizer) else _made(given, parameter)
    groups = [{name: value for name, value in group.items() if name != "params"} for group in made.param_groups]
    if any(group != groups[0] for group in groups):
        raise RunError("the optimizer has groups of parameters with settings of their own: all stages have the same")
    return {**groups[0], "class": type(made).__name__}


def _made(given: Any, parameter: nn.Parameter) -> torch.optim.Optimizer:
    if not callable(given):
        raise RunError(f"optimizer is a {type(given).__name__}: give torch's, its class, or a function of parameters")
    made = given([parameter])
    if not isinstance(made, torch.optim.Optimizer):
        raise RunError(f"optimizer makes a {type(made).__name__}, not an optimizer of torch")
    return made


def _kind(group: Mapping[str, Any]) -> str:
    """What a plan calls it. Raises RunError: stages have none such."""
    name = group["class"]
    if name == "SGD":
        if group["dampening"] or group["maximize"]:
            raise RunError("SGD with dampening, or that maximizes, is not what stages step with")
        return "sgd" if not group["momentum"] else "nesterov" if group["nesterov"] else "momentum"
    if name == "RMSprop" and (group["centered"] or group["momentum"]):
        raise RunError("RMSprop that is centered, or has momentum, is not what stages step with")
    if name in ("Adam", "AdamW") and group["amsgrad"]:
        raise RunError(f"{name} with amsgrad is not what stages step with")
    if group.get("maximize"):
        raise RunError(f"{name} that maximizes is not what stages step with")
    return str(name).lower()


def _training_of(group: Mapping[str, Any], kind: str, planned: str, training: Training) -> Training:
    if kind != planned:
        raise RunError(f"the plan is for the optimizer {planned!r}, not {group['class']} ({kind!r})")
    said = {_FIELDS[name]: _plain(group[name]) for name in _FIELDS if name in group}
    if "momentum" in group and planned in ("momentum", "nesterov"):
        said["momentum"] = float(group["momentum"])
    return replace(training, lr=float(group["lr"]), **said).of_run(planned, 1)


def _plain(value: Any) -> Any:
    """As numbers, where they are tensors of one."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, Tensor) else value
