"""The kernels of this room, and how they are compiled: the first time that takes seconds."""

from __future__ import annotations

import numpy as np

from ...graph import Candidate
from ...plan import Pipeline, Problem
from ...problem import Cluster, Layer, ModelGraph, Workload
from ..common import Kernels
from . import anneal, greedy, kernels
from .arm import Arm

KERNELS = Kernels(__name__, (anneal.anneal, greedy.hunt, kernels.run))


def compiled() -> bool:
    """Whether the compiled functions are in memory or on disk."""
    return KERNELS.compiled()


def warm() -> None:
    """Compiles the kernels, or loads them from disk; seconds the first time. Planning does it when it needs them."""
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, 1.0, stash_bytes=2, weight_stash_bytes=1) for k in range(2)])
    problem = Problem(model, Cluster.uniform(2, 1 << 20), Workload(2))
    candidate = Candidate(problem, (("layer0",), ("layer1",)), (Pipeline((0, 1), (0, 1), (0, 1)),))
    arm, stop = Arm(candidate, True, False, 0), np.zeros(1, dtype=np.int64)
    arm.start(1, 0.0, stop)
    arm.improve(1, 0.0, stop)
