"""What a model is to Contraflow: a chain of layers, a loss and a data set; and how its layers are built."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]

RANDOM_LOCK = threading.RLock()
"""Held by whoever reseeds torch's default generators: they belong to the process, not to the thread."""


@runtime_checkable
class Dataset(Protocol):
    """Micro-batches by position: the same arguments give the same tensors in every process."""

    @property
    def name(self) -> str:
        """The name under which `data.load` finds it again."""

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one micro-batch of `size` samples, batch dimension first, on the CPU."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer, Tensor -> Tensor: the smallest piece the planner may cut between.

    `build` returns a fresh module; whatever it draws comes from torch's default generator.
    """

    name: str
    build: Callable[[], nn.Module]


@dataclass(frozen=True)
class LayeredModel:
    """A chain of layers with its loss and its data.

    Attributes:
        name: registry name, or "package.module:function".
        layers: in the order the data flows; names are unique.
        loss: (output of the last layer, target) -> scalar, the mean over the micro-batch.
        data: a data set, the name of one (see `data.load`), or None when the user brings it later.

    Raises:
        ValueError: no layers, or two layers of one name.
    """

    name: str
    layers: tuple[LayerSpec, ...]
    loss: Loss
    data: str | Dataset | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(f"model {self.name!r} has no layers")
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise ValueError(f"model {self.name!r} has two layers named {layer.name!r}")
            seen.add(layer.name)


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from integers and strings, the same in every process and Python version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def build_layer(spec: LayerSpec, seed: int, index: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Build layer `index` of a model in training mode, on the CPU.

    The parameters depend on (seed, index) alone, never on which stage the layer ends up in, and torch's
    default generator is left as it was. Floating-point parameters and buffers are converted to `dtype`
    after they were drawn in the default dtype, so float64 starts from the float32 values.
    """
    with RANDOM_LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed("parameters", seed, index))
        module = spec.build()
    return module.to(dtype).train()
