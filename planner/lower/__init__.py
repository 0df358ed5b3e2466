"""Lowering: from compute orders to complete op lists, and to plans over more or fewer micro-batches.

Places SENDs, RECVs, copies, gradient sums and updates where the orders do not say. Imports graph and forecast. Begin
with `complete.py`; `plans.py` makes plans with forecasts of it.
"""

from .complete import Orders
from .period import period_seconds
from .plans import Assembled, assemble, assembled, replicated, simulated
from .repetition import repeat

__all__ = [
    "Orders",
    "Assembled",
    "assemble",
    "assembled",
    "period_seconds",
    "repeat",
    "replicated",
    "simulated",
]
