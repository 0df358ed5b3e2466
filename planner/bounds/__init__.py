"""Lower bounds in seconds. None uses more than is certain of every plan it speaks for.

`whole`: every plan of a problem. `space`: the same under a memory limit and the switches of a SearchSpace. `period`:
the same without a flush, of the seconds a micro-batch. `fixed`: one candidate, whatever its order of ops; `fluid`: the
same with a linear programme, nearer and slower. Imports the operation graph and cuts of chains, and no plan's order.
Begin with `whole.py`; a new bound of every plan is a function and a row of its `EVERY_PLAN`.
"""

from __future__ import annotations

from .fixed import candidate, whatever_stashes
from .fluid import fluid
from .layers import Layers
from .period import period, two_sides
from .space import possible, space
from .times import Route, finish_seconds, finishes, message_seconds, route
from .whole import EVERY_PLAN, any_plan, critical_path, load, work

__all__ = [
    "EVERY_PLAN",
    "Layers",
    "Route",
    "any_plan",
    "candidate",
    "critical_path",
    "finish_seconds",
    "finishes",
    "fluid",
    "load",
    "message_seconds",
    "period",
    "possible",
    "route",
    "space",
    "two_sides",
    "whatever_stashes",
    "work",
]
