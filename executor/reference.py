"""Single-process training with gradient accumulation in plain eager torch: what a plan's run must equal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models import Dataset, LayeredModel, build_layer, derive_seed
from .program import layer_seed
from .validate import as_dtype, find_data
from .weights import DEFAULT_RATES, make_optimizer


@dataclass(frozen=True)
class ReferenceRun:
    """Mean losses a step, and final "parameters/<layer>/<name>" and "buffers/<layer>/<name>" tensors."""

    losses: tuple[float, ...]
    state: dict[str, Tensor]


def train_reference(
    model: LayeredModel,
    micro_batches: int,
    micro_batch_size: int,
    optimizer: str = "sgd",
    steps: int = 5,
    seed: int = 0,
    lr: float | None = None,
    dtype: torch.dtype = torch.float32,
    data: Dataset | str | None = None,
    device: str = "cpu",
) -> ReferenceRun:
    """Trains on the micro-batches of every step in order, their gradients averaged; then one optimizer step.

    Parameters, data and random state are those that `execute` uses for the same seed.
    """
    source = find_data(model, data)
    layers = [build_layer(spec, seed, index, dtype).to(device) for index, spec in enumerate(model.layers)]
    parameters = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    rate = DEFAULT_RATES[optimizer] if lr is None else lr
    stepper = make_optimizer(optimizer, parameters, rate, fused=False)
    losses = []
    for step in range(steps):
        stepper.zero_grad()
        total = 0.0
        for m in range(micro_batches):
            inputs, targets = source.batch(seed, step, m, micro_batch_size)
            x = as_dtype(inputs, dtype).to(device)
            random = derive_seed(seed, step, m)
            for index, layer in enumerate(layers):
                torch.manual_seed(layer_seed(random, index))
                x = layer(x)
            torch.manual_seed(layer_seed(random, -1))
            loss = model.loss(x, as_dtype(targets, dtype).to(device))
            (loss / micro_batches).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        stepper.step()
        losses.append(total / micro_batches)
    return ReferenceRun(tuple(losses), _state(model, layers))


def _state(model: LayeredModel, layers: list[nn.Module]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for spec, layer in zip(model.layers, layers, strict=True):
        state |= {
            f"parameters/{spec.name}/{name}": p.detach().to("cpu", copy=True) for name, p in layer.named_parameters()
        }
        state |= {f"buffers/{spec.name}/{name}": b.detach().to("cpu", copy=True) for name, b in layer.named_buffers()}
    return state
