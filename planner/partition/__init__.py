"""Cutting the layer graph into stages."""

from .chain import Chain, Cuts, Floats, bottleneck, compositions, cut, lightest, link_seconds, trace
from .folded import fold
from .mixed import AWAY, QUARTERS, cut_mixed, fates, kept

__all__ = [
    "AWAY",
    "Chain",
    "Cuts",
    "Floats",
    "QUARTERS",
    "bottleneck",
    "compositions",
    "cut",
    "cut_mixed",
    "fates",
    "fold",
    "kept",
    "lightest",
    "link_seconds",
    "trace",
]
