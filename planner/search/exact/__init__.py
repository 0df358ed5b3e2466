"""CP-SAT models of orders, devices and stash choices."""

from .solver import Effort
from .structure import Hunt
from .windows import improve

__all__ = [
    "Effort",
    "Hunt",
    "improve",
]
