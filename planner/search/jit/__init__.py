"""What the compiled searches share: how functions are compiled (`options.py`), and random numbers (`draws.py`).

Imports nothing of the project, and numba: nobody's face imports it, so that numba loads late.
"""

from . import draws, options
from .draws import draw, pick
from .options import inlined, lean

SOURCES = (draws, options)
"""For `drop_stale`: who calls these functions is compiled anew after a change of theirs."""

__all__ = ["SOURCES", "draw", "inlined", "lean", "pick"]
