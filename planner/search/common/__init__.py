"""What all searches share: clock and incumbent, answers, the account of effort, what fits, shapes of candidates.

Imports the rooms below the search, and none of the search. Begin with `session.py` (one call of `plan()`),
`answer.py` (bound, gap and status, made here alone) and `effort.py` (every share, size and tolerance, with its
measurement).
"""

from .answer import ONE_ORDER, Proven, Result, answered, in_words, including, told, told_of, unanswered
from .balance import Order, balanced
from .clock import Budget, Clock
from .compiled import Kernels
from .considered import Considered, MethodFound, PointFound, describe
from .effort import (
    ANNEALING,
    BLOCK,
    COUNT,
    FLOW,
    GROWTH,
    HOPE,
    MIXTURE,
    MODEL,
    PLACE,
    RACE,
    ROUND,
    SECONDS,
    SHARE,
    SIZE,
    TOLERANCE,
    WANDERING,
    PhaseShares,
)
from .fit import Lack, Shortage, Stale, copies_stashes, excess, fits, host_excess, lacking, limits, missing, shortages
from .groups import Groups, alike, dealt, equal_groups, parts
from .incumbent import Incumbent, OnProgress, Progress, objective_s
from .moved_ends import moved_end, nearby_cuts, random_cut, same_devices
from .proof import Proof
from .rounds import Earlier, Rounds
from .session import Session
from .shapes import binding, policies, priced, resized, routes, structures, subsets, with_policy
from .two_device_space import pays, registered, remaking, stash_choices, unaddressed, unknown

__all__ = [
    "ANNEALING",
    "BLOCK",
    "COUNT",
    "FLOW",
    "GROWTH",
    "HOPE",
    "MIXTURE",
    "MODEL",
    "ONE_ORDER",
    "PLACE",
    "RACE",
    "ROUND",
    "SECONDS",
    "SHARE",
    "SIZE",
    "TOLERANCE",
    "WANDERING",
    "Budget",
    "Clock",
    "Considered",
    "Earlier",
    "Groups",
    "Incumbent",
    "Kernels",
    "Lack",
    "MethodFound",
    "OnProgress",
    "Order",
    "PhaseShares",
    "PointFound",
    "Progress",
    "Proof",
    "Proven",
    "Result",
    "Rounds",
    "Session",
    "Shortage",
    "Stale",
    "alike",
    "answered",
    "balanced",
    "binding",
    "copies_stashes",
    "dealt",
    "describe",
    "equal_groups",
    "excess",
    "fits",
    "host_excess",
    "in_words",
    "including",
    "lacking",
    "limits",
    "missing",
    "moved_end",
    "nearby_cuts",
    "random_cut",
    "objective_s",
    "parts",
    "pays",
    "policies",
    "priced",
    "registered",
    "remaking",
    "resized",
    "routes",
    "same_devices",
    "shortages",
    "stash_choices",
    "structures",
    "subsets",
    "told",
    "told_of",
    "unaddressed",
    "unanswered",
    "unknown",
    "with_policy",
]
