"""The compiled timetable and its annealing, and how they are compiled: the first time that takes seconds."""

from __future__ import annotations

import numpy as np

from ...partition import Chain
from ...plan import Problem
from ...problem import Cluster, Layer, ModelGraph, Workload
from ..common import Kernels
from .anneal import improve
from .arm import Arm
from .kernel import value_of
from .tables import case_of

KERNELS = Kernels(__name__, (improve, value_of))


def warm() -> None:
    """Compiles them, or loads them from disk; seconds the first time."""
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, 1.0, stash_bytes=2, weight_stash_bytes=1) for k in range(3)])
    chain = Chain.of(Problem(model, Cluster.uniform(2, 1 << 20), Workload(2)))
    arm = Arm.of(case_of(chain, (0, 1), True), (0, 1), (1,), 0)
    arm.improve(2, 1.0, np.zeros(1, dtype=np.int64))
    arm.orders()
