"""Exact search: CP-SAT models of orders, devices and stash choices, with proven bounds.

No solver type leaves this room, and whatever it claims is simulated again. Imports the named schedules for starts and
hints. Begin with `search.py` (one candidate: solve, simulate, again) and `model.py` (the table of contents of the
model: one function a family of constraints); `structure.py` takes candidates best bound first, `windows.py` improves
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
