"""What all searches share: what fits, answers, clock and incumbent, shapes of candidates."""

from .answer import PROVEN, Claim, Proven, gap_of, in_words, including
from .balance import Order, balanced
from .considered import Considered, Ledger, describe
from .fit import Lack, Shortage, Stale, excess, fits, host_excess, lacking, limits, missing, shortages
from .result import Result
from .session import GRACE_S, Begun, OnProgress, Progress, Session
from .shapes import MOST_CHUNKS, binding, policies, priced, resized, routes, structures, with_policy
from .two_device_space import TWO_DEVICE_CUTS, stash_choices

__all__ = [
    "Begun",
    "Claim",
    "Considered",
    "GRACE_S",
    "Lack",
    "Ledger",
    "MOST_CHUNKS",
    "TWO_DEVICE_CUTS",
    "OnProgress",
    "Order",
    "PROVEN",
    "Progress",
    "Proven",
    "Result",
    "Session",
    "Shortage",
    "Stale",
    "balanced",
    "binding",
    "describe",
    "excess",
    "fits",
    "gap_of",
    "host_excess",
    "in_words",
    "including",
    "lacking",
    "limits",
    "missing",
    "policies",
    "priced",
    "resized",
    "routes",
    "shortages",
    "stash_choices",
    "structures",
    "with_policy",
]
