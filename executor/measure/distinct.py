"""Every layer of a model in turn, measured once for all that are alike, as it is anywhere in a stage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...models import Granularity, LayeredModel, LayerSpec, Piece, pieces
from ...models.protocol import build_shapes
from ...models.wiring import Inputs, carried, tensors_of
from .between import Between, Handed, Twice
from .layer_run import Example


@dataclass(frozen=True)
class Pieced:
    """A model, and how finely it is profiled."""

    model: LayeredModel
    layers: Granularity = "parts"

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """What the layers of model.json are made of. Raises ValueError for a granularity that there is not."""
        return pieces(self.model, self.layers)


LayerCosts = Callable[[Example], tuple[dict[str, Any], Handed]]
"""A layer -> (entry in model.json, the rest)."""
Known = dict[object, tuple[dict[str, Any], Handed]]
"""By what makes layers alike."""
FAR = 4
"""A gradient's strides are followed back through so many layers: what these take is kept until then."""


def distinct_layers(
    of: Pieced,
    x: Inputs,
    target: Tensor,
    costs_of: LayerCosts,
    how: str,
    on_progress: Callable[[str], None] | None,
) -> tuple[list[dict[str, Any]], Twice]:
    """Every layer's entry in model.json, and what two of them keep; `costs_of` is asked once for layers that are alike.

    Each layer gets what layers before it have given; `how` says in the progress what was done for the costs. Raises
    ValueError: the data gives other tensors than the layers take.
    """
    known: Known = {}
    behind: deque[_Measured] = deque(maxlen=FAR)
    layers: list[dict[str, Any]] = []
    between = Between(of.model, of.pieces, x)
    for piece in of.pieces:
        likeness = tuple(_likeness(of.model.layers[index]) for index in piece.ids)
        divided = tuple(tuple((of.model.layers[index].parallel_plan or {}).items()) for index in piece.ids)
        part = between.part(piece, trained=any(trained for _, trained in likeness))
        taken, last = between.taken(part), piece.ids.stop == len(of.model.layers)
        kinds = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in taken)
        key = (likeness, divided, part.form, kinds, last)
        if fresh := key not in known:
            known[key] = _costs_anywhere(costs_of, Example(piece, part, carried(taken), target if last else None))
        costs, handed = known[key]
        entry = {"name": piece.name, **costs}
        between.add(part, entry, handed)
        if of.model.wiring.chained:
            _hand_back(behind, handed.back, known, costs_of)
            behind.append(_Measured(key, Example(piece, part, carried(taken), target if last else None), entry))
        layers.append(entry)
        if on_progress:
            on_progress(f"{piece.name}: {_summary(costs, how if fresh else 'like an earlier layer')}")
    between.count_passing()
    return layers, between.twice


class _Measured(NamedTuple):
    """A layer that has been measured: what makes it like others, what it was run on, and its entry in model.json."""

    key: object
    on: Example
    entry: dict[str, Any]


def _hand_back(before: deque[_Measured], strides: tuple[int, ...] | None, known: Known, costs_of: LayerCosts) -> None:
    """The layers before one that hands a gradient of these strides back: their bytes are the larger of those with such
    a gradient, as in one stage, and with one that has been received."""
    for layer in reversed(before):
        if strides is None:
            return
        key = (layer.key, strides)
        if key not in known:
            known[key] = costs_of(replace(layer.on, strides=strides))
        costs, handed = known[key]
        layer.entry.update(_larger(layer.entry, costs))
        strides = handed.back


def _costs_anywhere(costs_of: LayerCosts, layer: Example) -> tuple[dict[str, Any], Handed]:
    """Its costs; bytes are the larger of those inside a stage, where a tensor may be strided, and at its begin."""
    costs, handed = costs_of(layer)
    if all(tensor.is_contiguous() for tensor in tensors_of(layer.x)):
        return costs, handed
    together = carried([tensor.contiguous() for tensor in tensors_of(layer.x)])
    other, _ = costs_of(replace(layer, x=together))
    return costs | _larger(costs, other), handed


def _larger(costs: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = (key for key in costs if key.endswith("_bytes") and key in other and not key.startswith("selective"))
    return {key: max(costs[key], other[key]) for key in both}


def _summary(costs: dict[str, Any], how: str) -> str:
    backward = costs["backward_input_s"] + costs["backward_weight_s"]
    compiled = "compiled, " if costs.get("compiled") else ""
    return f"{compiled}forward {costs['forward_s'] * 1e3:.2f} ms, backward {backward * 1e3:.2f} ms ({how})"


def _likeness(spec: LayerSpec) -> tuple[object, bool]:
    """(equal for two layers of one structure: modules, plain attributes, shapes; whether some of it is trained).

    Allocates no storage.
    """
    module = build_shapes(spec)
    parts = []
    for name, part in module.named_modules():
        plain = sorted((key, repr(value)) for key, value in vars(part).items() if _is_plain(value))
        parts.append((name, type(part), tuple(plain)))
    tensors = [*module.named_parameters(), *module.named_buffers()]
    shapes = tuple((name, tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors)
    return (repr(module), tuple(parts), shapes), any(parameter.requires_grad for parameter in module.parameters())


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))
