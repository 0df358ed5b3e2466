"""Hashes of tensors: equal exactly where their values are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def digest(tensor: Tensor) -> str:
    """Of a tensor's bytes, whatever its strides and its device."""
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=8).hexdigest()


def unregistered(modules: Mapping[int, nn.Module]) -> dict[str, str]:
    """Of tensors that modules keep as plain attributes, by "<layer id>.<name in the layer>"."""
    return {
        f"{layer_id}.{path}.{name}" if path else f"{layer_id}.{name}": digest(value)
        for layer_id, layer in modules.items()
        for path, module in layer.named_modules()
        for name, value in sorted(vars(module).items())
        if isinstance(value, Tensor)
    }
