"""Cutting the layer graph into stages: dynamic programmes over a chain, one way, both ways, or with stash policies.

Imports the problem and the operation graph; knows no order of ops. Begin with `chain.py`. Graphs that are no chains
have a room of their own with a command: `dag/`.
"""

from .chain import Chain, Cuts, Floats, bottleneck, compositions, cut, lightest, link_seconds, trace
from .folded import fold
from .mixed import cut_mixed
from .stash_choice import KEPT, QUARTERS, StashChoice, choices

__all__ = [
    "Chain",
    "Cuts",
    "Floats",
    "KEPT",
    "QUARTERS",
    "StashChoice",
    "bottleneck",
    "compositions",
    "cut",
    "cut_mixed",
    "choices",
    "fold",
    "lightest",
    "link_seconds",
    "trace",
]
