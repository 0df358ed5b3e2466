"""Stages on any devices where memory is tight: cuts and devices annealed by when passes can follow one another.

Memory is what a stash is held for, times its size. So early stages, whose stashes wait longest, should be small or lie
apart, late ones may be large, and what lies next to one another on a device needs no message. One micro-batch after the
other takes the same way through a compiled timetable (`kernel.py`), every period; annealing (`anneal.py`) changes where
stages end and which devices they are on. Imports `common`, `named` and the rooms below the search.
Begin with `tables.py`: what is decided.
"""

from .ready import warm
from .search import Flows, search_flow

__all__ = ["Flows", "search_flow", "warm"]
