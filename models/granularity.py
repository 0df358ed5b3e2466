"""How finely a model is planned: by its layers, or with those of every block as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, get_args

from .protocol import LayeredModel, LayerSpec

Granularity = Literal["parts", "block"]
GRANULARITIES: tuple[str, ...] = get_args(Granularity)
"""parts: every layer of the model is one of the plan; block: layers of one block are."""


class Piece(NamedTuple):
    """What is one layer of model.json and of a plan: its name, and the positions in the model of what it is made of."""

    name: str
    ids: range


def pieces(model: LayeredModel, layers: Granularity = "parts") -> tuple[Piece, ...]:
    """The model in pieces, in order.

    Raises:
        ValueError: no such granularity.
    """
    if layers not in GRANULARITIES:
        raise ValueError(f"layers must be one of {', '.join(GRANULARITIES)}, got {layers!r}")
    return _grouped(model, set() if layers == "parts" else {spec.block for spec in model.layers} - {None})


def pieces_named(model: LayeredModel, names: Sequence[str]) -> tuple[Piece, ...]:
    """The model in pieces, a block being one piece where `names` has it: what a plan's layers are made of.

    The pieces may have other names than those asked for, and be more or fewer, where the names are of another model.
    """
    return _grouped(model, set(names))


def _grouped(model: LayeredModel, whole: set[str] | set[str | None]) -> tuple[Piece, ...]:
    def key(entry: tuple[int, LayerSpec]) -> tuple[bool, str]:
        spec = entry[1]
        return (True, str(spec.block)) if spec.block is not None and spec.block in whole else (False, spec.name)

    found = []
    for (_, name), members in groupby(enumerate(model.layers), key):
        ids = [index for index, _ in members]
        found.append(Piece(name, range(ids[0], ids[-1] + 1)))
    return tuple(found)


def in_pieces(pieces: Iterable[Piece], members: Iterable[str], model: LayeredModel) -> tuple[str, ...]:
    """The pieces that hold these layers of the model, each once, in the order of the layers."""
    piece_of = {model.layers[index].name: piece.name for piece in pieces for index in piece.ids}
    return tuple(dict.fromkeys(piece_of[member] for member in members))
