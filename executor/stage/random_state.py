"""Random layers: seeded each on its own, so that dropout does not depend on the partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...models.protocol import RANDOM_LOCK, derive_seed


def layer_seed(seed: int, layer_id: int) -> int:
    """The seed a random layer starts from; `seed` stands for (run seed, step, micro-batch)."""
    return derive_seed("layer", seed, layer_id)


def reseed(seed: int, layer_id: int) -> None:
    """What comes before a random layer, in stage programs as in the eager reference."""
    torch.manual_seed(layer_seed(seed, layer_id))


@contextmanager
def own_random_state(device: torch.device) -> Iterator[None]:
    """Generators belong to the process: lock them, and give the caller's state back afterwards."""
    devices = [device] if device.type == "cuda" else []
    with RANDOM_LOCK, torch.random.fork_rng(devices=devices):
        yield
