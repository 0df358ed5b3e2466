"""The search without a flush: least seconds a micro-batch in steady state, by bisection over a dynamic programme.

Imports `named`, `modulo` and `common`, no CP-SAT. Begin with `search.py`, then `programme.py`; docs/steady.md says why
it is exact on what it searches.
"""

from .alternatives import why_not
from .named_steady import plan_named
from .search import search_steady

__all__ = [
    "plan_named",
    "search_steady",
    "why_not",
]
