"""Graphs that this process has traced: replicas of a stage on its threads, and later runs of a model, share them.

Tracing a stage takes longer than many steps of a small one. A stage program holds no weights and never changes, so
what was traced for one replica serves all that have the same layers, shapes and types.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ...models import LayeredModel
from ...models.wiring import Carried, tensors_of
from .program import StageProgram
from .tracing import StageLayers

MOST = 64
"""Programs kept of one model, those used last."""

_KEPT: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by model: OrderedDict[Hashable, StageProgram]

Make = Callable[[], StageProgram]
Sharing = Callable[[StageLayers, Carried, Tensor | None, Make], StageProgram]
"""(layers, example input, example target, how to trace them) -> the program."""


def traced_anew(layers: StageLayers, x: Carried, target: Tensor | None, make: Make) -> StageProgram:
    """Shares nothing."""
    return make()


def shared_by(model: LayeredModel, *built: Hashable) -> Sharing:
    """Shares programs among all who name the same model object and build its layers alike.

    built: what else decides how the layers are built, such as seed and type. Not for several threads at once.
    """
    if model not in _KEPT:
        _KEPT[model] = OrderedDict()
    kept: OrderedDict[Hashable, StageProgram] = _KEPT[model]

    def shared(layers: StageLayers, x: Carried, target: Tensor | None, make: Make) -> StageProgram:
        modes = tuple(module.training for module in layers.modules)
        ends = (layers.loss is not None, layers.needs_input_grad, layers.half, layers.label, layers.part)
        flags = (torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype())
        key = (
            built,
            tuple(layers.layer_ids),
            modes,
            ends,
            tuple(map(_kind, tensors_of(x))),
            target is not None and _kind(target),
            flags,
        )
        program = kept.pop(key) if key in kept else make()
        kept[key] = program
        if len(kept) > MOST:
            kept.popitem(last=False)
        return program

    return shared


def _kind(tensor: Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
