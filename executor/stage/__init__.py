"""Stage programs: F, B, I and W of a stage as pure functions of parameters, inputs and an explicit stash.

Two engines: a traced graph, cut into programs, and torch's eager autograd where no graph can be right. Imports models
and places; knows neither ranks nor plans. Begin with `program.py`, the interface, then `engines.py`, which chooses.
"""

from .compiled import require_compiler, why_uncompiled
from .eager import EagerProgram
from .eager_probe import isolated
from .engines import Building, EngineNotice, alone, build_program, warn
from .packing import PackedStash, Stash, StashLayout, View
from .pauses import pause
from .precision import HALVES, autocasting, build_lowered, half_of, lower, output_like, run_dtype, wide
from .protocol import AnyProgram, Gradients, WeightStash, gradients_of, ones_like
from .random_state import layer_seed, own_random_state
from .selfcheck import ProgramMismatch
from .statistics import Statistics, StatisticsExchange, StatisticsQueue
from .traced import Sharing, shared_by
from .tracing import StageLayers, TraceError, named_buffers, named_parameters

__all__ = [
    "AnyProgram",
    "Building",
    "EagerProgram",
    "EngineNotice",
    "Gradients",
    "HALVES",
    "PackedStash",
    "ProgramMismatch",
    "Sharing",
    "StageLayers",
    "Stash",
    "StashLayout",
    "Statistics",
    "StatisticsExchange",
    "StatisticsQueue",
    "TraceError",
    "View",
    "WeightStash",
    "alone",
    "autocasting",
    "build_lowered",
    "build_program",
    "gradients_of",
    "half_of",
    "isolated",
    "layer_seed",
    "lower",
    "named_buffers",
    "named_parameters",
    "ones_like",
    "output_like",
    "own_random_state",
    "pause",
    "require_compiler",
    "run_dtype",
    "shared_by",
    "warn",
    "why_uncompiled",
    "wide",
]
