"""Models whose layers are built without values: how large they are."""

from __future__ import annotations

import torch
from torch import nn

from contraflow.models import LayeredModel


def on_meta(model: LayeredModel) -> dict[str, nn.Module]:
    """The layers by name; nothing is allocated."""
    with torch.device("meta"):
        return {layer.name: layer.build() for layer in model.layers}


def parameter_counts(model: LayeredModel) -> dict[str, int]:
    """Of every layer; what layers share is counted with the first of them."""
    layers = {name: dict(module.named_parameters()) for name, module in on_meta(model).items()}
    for tie in model.ties:
        for layer, parameter in tie.members[1:]:
            del layers[layer][parameter]
    return {name: sum(p.numel() for p in parameters.values()) for name, parameters in layers.items()}


def parameter_count(model: LayeredModel) -> int:
    """Of all layers."""
    return sum(parameter_counts(model).values())
