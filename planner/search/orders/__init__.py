"""The order search at scale: greedy construction and annealing of per-device orders, compiled.

Imports bounds and `common`; candidates become arrays (`arrays.py`) that the kernels read. Begin with `search.py` and
`race.py`; `kernels.py` is the hot loop: an order's times, memory and critical path.
"""

from .arm import Arm
from .arrays import build, knows
from .cuts import search_cuts
from .descent import keep_what_fits
from .kernels import run
from .race import simulated
from .ready import compiled, warm
from .search import search_orders
from .translate import from_ops, to_ops, weave

__all__ = [
    "Arm",
    "build",
    "compiled",
    "from_ops",
    "keep_what_fits",
    "knows",
    "run",
    "search_cuts",
    "search_orders",
    "simulated",
    "to_ops",
    "warm",
    "weave",
]
