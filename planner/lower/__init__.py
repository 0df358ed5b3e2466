"""Compute orders to complete op lists, and plans over more or fewer micro-batches."""

from .period import period_seconds
from .plans import Assembled, assemble, assembled
from .repetition import repeat

__all__ = [
    "Assembled",
    "assemble",
    "assembled",
    "period_seconds",
    "repeat",
]
