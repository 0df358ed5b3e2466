"""Exact search: CP-SAT models of orders, devices and stash choices, with proven bounds.

No solver type leaves this room, and whatever it claims is simulated again. Imports the named schedules for starts and
hints. Begin with `orders.py` (one candidate) and `structure.py` (candidates best bound first); `windows.py` improves
a plan slice by slice.
"""

from .solver import Effort
from .structure import Hunt
from .windows import improve

__all__ = [
    "Effort",
    "Hunt",
    "improve",
]
