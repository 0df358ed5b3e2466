"""Trained weights as others read them: under the names that the module has, in safetensors or as a state_dict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...models import LayeredModel, UnknownModel, resolve
from ...models.exported import state_names
from ...models.hugging import PREFIX, HuggingFault, hugging
from ...models.protocol import build_shapes
from ...models.registry import names
from ..basics import RunError
from ..state import piece_of
from .checkpoint import newest
from .checkpoint_files import INDEX, Index, SaveError, Taken, read_index, read_tensors

SHARD_BYTES = 4 << 30
"""No file of safetensors is larger, but for one tensor that is: so much is in memory at a time. Not measured."""


class _Whole(NamedTuple):
    """A tensor of the model: its names in the module's state, and shape and type."""

    names: tuple[str, ...]
    shape: torch.Size
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


@dataclass(frozen=True)
class _Kept:
    """A checkpoint; `pieces`: the keys that it has of every tensor."""

    path: Path
    index: Index
    pieces: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, path: Path) -> _Kept:
        index, pieces = read_index(path), dict[str, list[str]]()
        for key in index.tensors:
            pieces.setdefault(piece_of(key)[0], []).append(key)
        return cls(path, index, pieces)

    def read(self, wanted: Mapping[str, _Whole]) -> dict[str, Tensor]:
        """Tensors by key. Raises RunError."""
        found = {key: torch.empty(one.shape, dtype=one.dtype) for key, one in wanted.items()}
        taken: dict[str, list[Taken]] = {}
        for key, target in found.items():
            for name in self.pieces[key]:
                piece = piece_of(name)[1]
                part = () if piece is None else (piece.first, 0, piece.stop - piece.first)
                taken.setdefault(self.index.tensors[name], []).append(Taken(name, target, *part))
        for file, parts in taken.items():
            record = self.index.files[file]
            read_tensors(self.path / file, record, record.nbytes, parts)
        return found


def export_weights(checkpoint: Path, target: Path, model: str | None = None) -> list[Path]:
    """Writes the weights of a checkpoint, the newest of a folder, into a new folder or file; returns what was written.

    Raises RunError: no checkpoint, of another model, or there is something there; SaveError.
    """
    kept = _Kept.of(checkpoint if (checkpoint / INDEX).exists() else newest(checkpoint))
    name = kept.index.identity.model if model is None else model
    if model is None and name not in names():
        raise RunError(f"the checkpoint's model {name!r} is not in the registry: give it with --model")
    try:
        found = resolve(name, kept.index.identity.seed)
    except UnknownModel as error:
        raise RunError(str(error)) from None
    wholes = _wholes(found)
    for key, whole in wholes.items():
        if key not in kept.pieces:
            raise RunError(f"{kept.path} is of another model than {name!r}: it has no {whole.names[0]}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} is there already")
    try:
        if target.suffix in (".pt", ".pth", ".bin"):
            tensors = kept.read(wholes)
            torch.save({name: tensors[key] for key, one in wholes.items() for name in one.names}, target)
            return [target]
        target.mkdir(parents=True, exist_ok=True)
        written = list(_written(kept, wholes, target))
        if name.startswith(PREFIX):
            hugging(name).write_beside(target)
    except HuggingFault as error:
        raise RunError(str(error)) from None
    except OSError as error:
        raise SaveError.of(target, error) from None
    return written


def _wholes(model: LayeredModel) -> dict[str, _Whole]:
    """By checkpoint key, all that is in the module's state; what is tied once, with all its names."""
    first = {member: tie.members[0] for tie in model.ties for member in tie.members}
    found: dict[str, _Whole] = {}
    for spec in model.layers:
        layer = build_shapes(spec)
        known = state_names(layer)
        for group, tensors in (("parameters", layer.named_parameters()), ("buffers", layer.named_buffers())):
            for own, tensor in tensors:
                called = tuple(known.get(own, ())) if known else (f"{spec.name}.{own}",)
                if called:
                    key = "/".join((group, *first.get((spec.name, own), (spec.name, own))))
                    before = found[key].names if key in found else ()
                    found[key] = _Whole(tuple(dict.fromkeys((*before, *called))), tensor.shape, tensor.dtype)
    return found


def _written(kept: _Kept, wholes: Mapping[str, _Whole], folder: Path) -> Iterator[Path]:
    """Files of safetensors, each tensor under its first name, and an index where there are several."""
    shards: list[dict[str, _Whole]] = [{}]
    for key, one in wholes.items():
        if shards[-1] and sum(other.nbytes for other in shards[-1].values()) + one.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][key] = one
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        several = len(shards) > 1
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if several else "model.safetensors"
        tensors = kept.read(shard)
        save_file({one.names[0]: tensors[key] for key, one in shard.items()}, folder / file, {"format": "pt"})
        where |= {one.names[0]: file for one in shard.values()}
        yield folder / file
    if len(shards) > 1:
        total = {"total_size": sum(one.nbytes for one in wholes.values())}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": total, "weight_map": where}, indent=2) + "\n")
        yield path
