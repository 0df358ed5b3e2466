"""Periodic blocks as starts: when the ops of one to three micro-batches come, again and again, on any placement.

A block is pauses between the ops of a pass and a period (`tables.py`, `kernel.py`); hunting and annealing (`walk.py`)
look for the one whose schedule, warm-up and cool-down included, is shortest under the memory limit. What is found is
an order like any other. Large problems also have a dispatcher's rules (`dispatch.py`, `rules.py`), looked for on few
devices and grown (`coarse.py`, `grown.py`). Imports `named` and `common`. Begin with `search.py`, then `kernel.py`.
"""

from .grown import search_grown
from .ready import warm
from .search import Blocks, search_blocks

__all__ = ["Blocks", "search_blocks", "search_grown", "warm"]
