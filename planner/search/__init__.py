"""The search for plans: named schedules, exact models, orders at scale, and the driver that shares out the effort.

Imports every room below view and cli. Begin with `driver.py`, which is `plan()`, and docs/search.md; the rooms inside
stand on one another: `common`, `orders` and `separate`, `named`, `exact`, then `techniques`, `scale` and `steady`.
"""

from .common import Proven
from .compared import Compared, Contender, compare
from .driver import Progress, Result, Shortage, plan
from .explanation import explain
from .frontier_point import Frontier, FrontierPoint
from .given_orders import plan_layout
from .joint import Choice, Effort, plan_family, points
from .kernels import kernel_cache, warm
from .memory_frontier import frontier
from .overheads import overhead_notes
from .steady import why_not
from .what_ifs import FASTER_BY, Explanation, WhatIf, facts

__all__ = [
    "FASTER_BY",
    "Explanation",
    "Choice",
    "Compared",
    "Contender",
    "Effort",
    "Frontier",
    "FrontierPoint",
    "Progress",
    "Proven",
    "Result",
    "Shortage",
    "WhatIf",
    "compare",
    "explain",
    "facts",
    "frontier",
    "kernel_cache",
    "overhead_notes",
    "plan",
    "plan_family",
    "plan_layout",
    "points",
    "warm",
    "why_not",
]
