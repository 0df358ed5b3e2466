"""The model zoo: networks as lists of layers, and small real datasets. Knows torch only."""

from __future__ import annotations

from .data import load
from .granularity import GRANULARITIES, Granularity, Piece, in_pieces, pieces, pieces_named
from .loss import cross_entropy
from .protocol import (
    Dataset,
    EndingDataset,
    LayeredModel,
    LayerSpec,
    Loss,
    TargetedDataset,
    Tie,
    build_layer,
    derive_seed,
    held_out,
)
from .registry import UnknownModel, names, resolve

__all__ = [
    "GRANULARITIES",
    "Dataset",
    "EndingDataset",
    "Granularity",
    "LayerSpec",
    "LayeredModel",
    "Loss",
    "Piece",
    "TargetedDataset",
    "Tie",
    "UnknownModel",
    "build_layer",
    "cross_entropy",
    "derive_seed",
    "held_out",
    "in_pieces",
    "load",
    "names",
    "pieces",
    "pieces_named",
    "resolve",
]
