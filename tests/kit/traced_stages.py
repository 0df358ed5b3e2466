"""Chains of layers traced as stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contraflow.executor.stage.program import StageProgram
from contraflow.executor.stage.tracing import StageLayers
from contraflow.models.protocol import Loss


def traced(
    modules: Sequence[nn.Module],
    layer_ids: Sequence[int],
    x: Tensor,
    loss: Loss | None = None,
    target: Tensor | None = None,
    half: torch.dtype | None = None,
) -> StageProgram:
    """The program of layers with these positions in a model, of which the first one trains nothing before it."""
    label = f"stage of layers {', '.join(map(str, layer_ids))}"
    differentiated = x.is_floating_point() and layer_ids[0] != 0
    layers = StageLayers(tuple(modules), tuple(layer_ids), loss, differentiated, label, half)
    return StageProgram.of(layers, x, target)
