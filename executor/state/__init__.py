"""What a rank holds of a stage between ops and between steps, and that all who hold the same hold the same.

Parameters, gradients, optimizer, versions, running statistics, ties. Imports stage programs and the wires' interface.
Begin with `weights.py` and `replica.py`.
"""

from .addresses import Addresses
from .agreement import Agreement, agree
from .batches import inputs_and_targets
from .compiling import compiled_stages
from .counts import counts_of
from .departures import Packed, leaving, register_leaving
from .digests import digest
from .holders import compare_holders, equalise
from .mini_batch import MiniBatch, MiniBatches
from .parts import Piece, piece_of, put_together
from .passing import planned_edges
from .prediction import Predictor
from .replica import Blueprint, StageReplica
from .teams import compare_lanes
from .ties import own_copies, repeated, tie_modules, tied_bytes
from .validate import (
    TensorShape,
    as_dtype,
    feed_of,
    find_data,
    find_model,
    inputs_text,
    lane_of,
    match_epochs,
    match_model,
    parts_fingerprint,
    require_executable,
)
from .versions import StageVersions, in_place_of
from .weights import StageWeights, by_name, make_optimizer, public_name, set_rate

__all__ = [
    "Addresses",
    "Agreement",
    "Blueprint",
    "MiniBatch",
    "MiniBatches",
    "counts_of",
    "Packed",
    "Piece",
    "Predictor",
    "StageReplica",
    "StageVersions",
    "StageWeights",
    "TensorShape",
    "agree",
    "as_dtype",
    "by_name",
    "compare_holders",
    "compare_lanes",
    "compiled_stages",
    "digest",
    "equalise",
    "feed_of",
    "find_data",
    "find_model",
    "in_place_of",
    "inputs_and_targets",
    "inputs_text",
    "lane_of",
    "leaving",
    "make_optimizer",
    "match_epochs",
    "match_model",
    "parts_fingerprint",
    "own_copies",
    "piece_of",
    "planned_edges",
    "public_name",
    "put_together",
    "register_leaving",
    "repeated",
    "require_executable",
    "set_rate",
    "tie_modules",
    "tied_bytes",
]
