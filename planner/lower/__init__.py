"""Compute orders to complete op lists, and plans over more or fewer micro-batches."""

from .assemble import Assembled, assemble, assembled
from .period import period_seconds
from .repeat import repeat

__all__ = [
    "Assembled",
    "assemble",
    "assembled",
    "period_seconds",
    "repeat",
]
