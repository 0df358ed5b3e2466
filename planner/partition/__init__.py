"""Cutting the layer graph into stages: dynamic programmes over a chain, one way, both ways, or with stash policies.

Imports the problem and the operation graph; knows no order of ops. Begin with `chain.py`. Graphs that are no chains
have a room of their own with a command, `dag/`; `layer_orders.py` makes chains of them.
"""

from .chain import Chain, Cuts, Floats, bottleneck, compositions, cut, least_load, lightest, link_seconds, trace
from .dag import Effort
from .folded import fold
from .layer_orders import LayerOrder, other_orders
from .mixed import cut_mixed
from .replicated import Block, Blocks, OnBlocks, cut_replicated, deal, in_flight, sloping
from .stash_choice import KEPT, QUARTERS, StashChoice, choices

__all__ = [
    "Block",
    "Blocks",
    "OnBlocks",
    "deal",
    "in_flight",
    "cut_replicated",
    "sloping",
    "Chain",
    "Cuts",
    "Effort",
    "Floats",
    "KEPT",
    "LayerOrder",
    "QUARTERS",
    "StashChoice",
    "bottleneck",
    "compositions",
    "cut",
    "cut_mixed",
    "choices",
    "fold",
    "least_load",
    "lightest",
    "link_seconds",
    "other_orders",
    "trace",
]
