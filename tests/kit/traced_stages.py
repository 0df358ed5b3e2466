"""Chains of layers traced as stages, and stages of registry models with everything to run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from packaged import installed
from torch import Tensor, nn

from contraflow.executor.stage.eager import EagerProgram
from contraflow.executor.stage.program import StageProgram, layer_seed, named_buffers, named_parameters
from contraflow.executor.stage.tracing import StageLayers
from contraflow.models import LayeredModel, build_layer, resolve
from contraflow.models.protocol import Loss


def layers_of(
    modules: Sequence[nn.Module],
    layer_ids: Sequence[int],
    x: Tensor,
    loss: Loss | None = None,
    half: torch.dtype | None = None,
) -> StageLayers:
    """Layers with these positions in a model, of which the first one trains nothing before it."""
    label = f"stage of layers {', '.join(map(str, layer_ids))}"
    differentiated = x.is_floating_point() and layer_ids[0] != 0
    return StageLayers(tuple(modules), tuple(layer_ids), loss, differentiated, label, half)


def traced(
    modules: Sequence[nn.Module],
    layer_ids: Sequence[int],
    x: Tensor,
    loss: Loss | None = None,
    target: Tensor | None = None,
    half: torch.dtype | None = None,
) -> StageProgram:
    """Their program."""
    return StageProgram.of(layers_of(modules, layer_ids, x, loss, half), x, target)


@dataclass
class Part:
    """Some layers of a registry model on real data, as a stage. The target: where they are the last ones."""

    model: LayeredModel
    layers: StageLayers
    x: Tensor
    target: Tensor | None
    program: StageProgram

    @classmethod
    def of(cls, name: str, first: int = 0, last: int | None = None, dtype: torch.dtype = torch.float32) -> Part:
        """Layers first .. last-1, built anew; their program, which is immutable, is traced once."""
        model, layers, x, target = _built(name, first, last, dtype)
        return cls(model, layers, x, target, _program(name, first, last, dtype))

    def eager(self, limit: int = 0) -> EagerProgram:
        """The same without a graph."""
        return EagerProgram(self.layers, self.x, self.target, limit)

    def parameters(self) -> dict[str, Tensor]:
        """By name, of this stage's modules."""
        named = named_parameters(self.layers.modules, self.layers.layer_ids)
        return {name: tensor.detach() for name, tensor in named.items()}

    def buffers(self) -> dict[str, Tensor]:
        """Copies."""
        named = named_buffers(self.layers.modules, self.layers.layer_ids)
        return {name: tensor.clone() for name, tensor in named.items()}

    def zeros(self) -> dict[str, Tensor]:
        """For sums of gradients."""
        return {name: torch.zeros_like(tensor) for name, tensor in self.parameters().items()}

    def plain(self, seed: int) -> tuple[Tensor, Tensor]:
        """Plain torch, in place on the modules: (input leaf, output), seeding before every layer."""
        leaf = self.x.clone().requires_grad_(self.program.needs_input_grad)
        x = leaf
        for layer_id, module in zip(self.layers.layer_ids, self.layers.modules, strict=True):
            torch.manual_seed(layer_seed(seed, layer_id))
            x = module(x)
        return leaf, x if self.target is None else self.model.loss(x, self.target)


def _built(
    name: str, first: int, last: int | None, dtype: torch.dtype
) -> tuple[LayeredModel, StageLayers, Tensor, Tensor | None]:
    model = resolve(name)
    assert isinstance(model.data, str)
    x, target = installed(model.data).batch(0, 0, 0, 4)
    x = x.to(dtype) if x.is_floating_point() else x
    built = [build_layer(layer, 0, index, dtype) for index, layer in enumerate(model.layers)]
    with torch.no_grad():
        for module in built[:first]:
            x = module(x)
    ends = last is None or last == len(built)
    layers = layers_of(built[first:last], range(len(built))[first:last], x, model.loss if ends else None)
    return model, layers, x, target if ends else None


@cache
def _program(name: str, first: int, last: int | None, dtype: torch.dtype) -> StageProgram:
    _, layers, x, target = _built(name, first, last, dtype)
    return StageProgram.of(layers, x, target)
