"""The search for plans: exact CP-SAT models and the portfolio around them."""

from .driver import Progress, Result, Shortage, plan
from .frontier import FrontierPoint, frontier

__all__ = [
    "FrontierPoint",
    "Progress",
    "Result",
    "Shortage",
    "frontier",
    "plan",
]
