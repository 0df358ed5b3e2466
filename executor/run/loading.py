"""Tensors of a training as its users keep them: gathered from all ranks, and taken into a rank's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..basics import RunError
from ..state import piece_of, put_together


def whole(mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All ranks' tensors by name, on the first rank; none on the others. Collective."""
    first = dist.get_rank() == 0
    gathered: list[Any] | None = [None] * dist.get_world_size() if first else None
    dist.gather_object(dict(mine), gathered)
    return put_together({key: tensor for theirs in gathered or () for key, tensor in theirs.items()})


def load_into(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Writes a rank's tensors over, in place; of what it has a piece, whole ones do too.

    Raises RunError, before anything is written: one is missing, or has another shape.
    """
    values = {key: _found(key, given) for key in own}
    for key, target in own.items():
        if values[key].shape != target.shape:
            raise RunError(
                f"the state's {key} is {tuple(values[key].shape)}, not {tuple(target.shape)}: another model's"
            )
    for key, target in own.items():
        target.detach().copy_(values[key])


def _found(key: str, given: Mapping[str, Tensor]) -> Tensor:
    name, piece = piece_of(key)
    found = given.get(key) if key in given or piece is None else given.get(name)
    if not isinstance(found, Tensor):
        raise RunError(f"the state has no tensor {key}: it is of another model, optimizer, or rank")
    return found if key in given or piece is None else found.reshape(-1)[piece.first : piece.stop]
