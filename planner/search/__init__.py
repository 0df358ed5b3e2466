"""The search for plans: exact CP-SAT models and the portfolio around them."""

from .common import Proven, gap_of
from .driver import Progress, Result, Shortage, plan
from .memory_frontier import FrontierPoint, frontier
from .steady import why_not
from .warm import kernel_cache

__all__ = [
    "FrontierPoint",
    "Progress",
    "Proven",
    "Result",
    "Shortage",
    "frontier",
    "gap_of",
    "kernel_cache",
    "plan",
    "why_not",
]
