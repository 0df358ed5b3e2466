"""The compiled block search, and how it is compiled: the first time that takes seconds."""

from __future__ import annotations

import numpy as np

from ...graph import Candidate
from ...plan import Pipeline, Problem
from ...problem import Cluster, Layer, ModelGraph, Workload
from ..common import Kernels
from .block import Block
from .cases import case_of
from .coarse import legs_of
from .dispatch import FIRST
from .kernel import NEVER
from .rules import improve_rules
from .tables import scratch
from .walk import improve

KERNELS = Kernels(__name__, (improve, improve_rules))


def warm() -> None:
    """Compiles them, or loads them from disk; seconds the first time."""
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, 1.0, stash_bytes=2, weight_stash_bytes=1) for k in range(2)])
    problem = Problem(model, Cluster.uniform(2, 1 << 20), Workload(2))
    candidate = Candidate(problem, (("layer0",), ("layer1",)), (Pipeline((0, 1), (0, 1), (0, 1)),))
    Block(candidate, frozenset(), 2, 0).improve(1, 1, 1.0, np.zeros(1, dtype=np.int64))
    case = case_of(candidate, frozenset(), [2])
    state = np.ones(1, dtype=np.uint64)
    improve_rules(case, scratch(case, 1), legs_of(case), np.ones(FIRST + 4), NEVER, 1, 1, 0.5, 0.5, 1.0, state)
