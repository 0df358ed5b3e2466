"""Forward and backward devices of every stage, stash choices and orders together, at any size.

Imports `common` and the rooms below the search. A compiled dispatcher (`dispatch.py`) makes op lists of decisions, and
annealing changes these (`anneal.py`). Begin with `search.py`, then `tables.py`: what is decided.
"""

from .ready import compiled, warm
from .search import search_separate

__all__ = ["compiled", "search_separate", "warm"]
