"""The search without a flush: least seconds a micro-batch in steady state."""

from .alternatives import why_not
from .named_steady import plan_named
from .search import search_steady

__all__ = [
    "plan_named",
    "search_steady",
    "why_not",
]
