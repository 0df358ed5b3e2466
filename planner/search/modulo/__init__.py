"""Plans without a flush whose passes repeat every period: devices, stash choices and cuts annealed together.

A compiled timetable (`kernel.py`, on `passes.py`, `held.py` and `jit/gaps.py`) gives every pass of one micro-batch its
time within a period and adds up what devices hold; annealing (`anneal.py`) changes decisions. Imports `common` and the
rooms below the search. Begin with `tables.py`: what is decided.
"""

from ..jit import NEVER
from .arm import Allowed, Arm, Heat
from .ready import compiled, compiling, warm
from .tables import (
    BACKWARD,
    BATCH,
    CURRENT,
    ENTRY,
    FETCHED,
    FETCHING,
    FORWARD,
    HOST,
    KEEP,
    LATE,
    LEFT,
    ONE,
    RECEIVING,
    RECOMPUTE,
    RETURNING,
    SENDING,
    SENT,
    WEIGHTS,
    Case,
    Floats,
    Ints,
)

__all__ = [
    "BACKWARD",
    "BATCH",
    "CURRENT",
    "ENTRY",
    "FETCHED",
    "FETCHING",
    "FORWARD",
    "HOST",
    "KEEP",
    "LATE",
    "LEFT",
    "NEVER",
    "ONE",
    "RECEIVING",
    "RECOMPUTE",
    "RETURNING",
    "SENDING",
    "SENT",
    "WEIGHTS",
    "Allowed",
    "Arm",
    "Case",
    "Floats",
    "Heat",
    "Ints",
    "compiled",
    "compiling",
    "warm",
]
