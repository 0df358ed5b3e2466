"""The compiled dispatcher, and how it is compiled: the first time that takes seconds."""

from __future__ import annotations

import numpy as np

from ...plan import Problem
from ...problem import Cluster, Layer, ModelGraph, Workload
from ..common import Kernels
from . import anneal, dispatch
from .arm import Allowed, Arm
from .case import case_of
from .tables import CAP, KEEP, ROWS, WINDOW

KERNELS = Kernels(__name__, (anneal.anneal, anneal.value_of, dispatch.dispatch))


def compiled() -> bool:
    """Whether the compiled functions are in memory or on disk."""
    return KERNELS.compiled()


def warm() -> None:
    """Compiles them, or loads them from disk; seconds the first time. Planning does it when it needs them."""
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, stash_bytes=2, weight_stash_bytes=2) for k in range(2)])
    problem = Problem(model, Cluster.uniform(2, 1 << 20), Workload(2))
    stages, dec = (("layer0",), ("layer1",)), np.zeros((ROWS, 2), dtype=np.int64)
    dec[CAP] = dec[WINDOW] = 2
    arm = Arm(problem, stages, case_of(problem, stages), dec, np.zeros((3, 2, 2)), 0)
    arm.evaluate()
    arm.improve(Allowed((KEEP,), False), 1, 0.0, np.zeros(1, dtype=np.int64))
    arm.plan()
