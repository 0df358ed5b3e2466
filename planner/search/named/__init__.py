"""Named schedules on their best cuts: where there is room, and where stash choices must make them fit.

The first plans of every search, which no answer may be worse than. Imports schedules, partition and `common`. Begin
with `portfolio.py`, then `fitted.py` for tight memory.
"""

from .callers_plan import run_hint
from .costed import timing_of
from .eager import run_eager
from .fewer import run_fewer
from .finer import run_finer
from .fitted import run_copied, run_first_plan, run_mixed, try_mixed
from .halves import not_split, possible_orders, whole_backwards
from .kept_orders import own_orders
from .laps import holds_all, run_folded, run_laps
from .laying import splits
from .least_memory import overfull, overfull_here, run_least_memory
from .likely_cuts import cuts_for
from .nearby import run_nearby
from .portfolio import (
    Order,
    device_orders,
    place,
    run_at_once,
    run_capped,
    run_lightest,
    run_named,
    run_other_cuts,
    run_remade,
    try_layout,
)
from .relieved import run_relieved, try_relieved, ways
from .relieved_grids import next_relieved_s, run_relieved_grids, try_relieved_point
from .replicas import device_rounds, most_stages, replicable, run_replicas, widths_of
from .stage_ends import move_ends
from .stash_choices import TURNS, lightened, with_choices, with_recomputation
from .uniform import next_point_s, run_uniform, try_point
from .widths import Phases, expected_s, quick_on_widths, search_widths

__all__ = [
    "Order",
    "Phases",
    "next_point_s",
    "next_relieved_s",
    "TURNS",
    "cuts_for",
    "device_orders",
    "expected_s",
    "holds_all",
    "overfull",
    "overfull_here",
    "own_orders",
    "place",
    "possible_orders",
    "quick_on_widths",
    "run_at_once",
    "run_capped",
    "run_copied",
    "run_eager",
    "run_fewer",
    "move_ends",
    "run_finer",
    "run_first_plan",
    "run_folded",
    "run_hint",
    "run_laps",
    "run_lightest",
    "run_mixed",
    "run_named",
    "run_nearby",
    "run_other_cuts",
    "run_remade",
    "run_relieved",
    "run_relieved_grids",
    "run_replicas",
    "run_uniform",
    "try_point",
    "device_rounds",
    "lightened",
    "not_split",
    "timing_of",
    "most_stages",
    "replicable",
    "widths_of",
    "run_least_memory",
    "search_widths",
    "splits",
    "try_layout",
    "try_mixed",
    "try_relieved",
    "try_relieved_point",
    "ways",
    "with_choices",
    "with_recomputation",
    "whole_backwards",
]
