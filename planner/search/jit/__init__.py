"""What the compiled searches share: how functions are compiled (`options.py`), random numbers (`draws.py`), and free
times of devices that repeat every period (`gaps.py`).

Imports nothing of the project, and numba: nobody's face imports it, so that numba loads late.
"""

from . import draws, gaps, options
from .draws import draw, pick
from .gaps import CLOSE, NEVER, after, against, before, ended, reserve, running_until, runs
from .options import inlined, lean

SOURCES = (draws, gaps, options)
"""For `drop_stale`: who calls these functions is compiled anew after a change of theirs."""

__all__ = [
    "CLOSE",
    "NEVER",
    "SOURCES",
    "after",
    "against",
    "before",
    "draw",
    "ended",
    "inlined",
    "lean",
    "pick",
    "reserve",
    "running_until",
    "runs",
]
